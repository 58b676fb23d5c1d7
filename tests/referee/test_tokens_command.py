"""`kda-lab compare-tokens`: exit codes and what is printed and written."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from kda_lab.cli import app


def run(*arguments: str | Path) -> Result:
    """Run the command as the command line does."""
    return CliRunner().invoke(app, ["compare-tokens", *map(str, arguments)])


def outputs(path: Path, candidate: int) -> Path:
    """A baseline, its repeat, and a candidate that answers one id."""
    rows = [("base", 0, 1), ("base", 1, 1), ("cand", 0, candidate)]
    lines = [{"prompt": "p", "arm": a, "round": r, "mode": "deterministic", "token_ids": [i]} for a, r, i in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_identical_exits_zero_and_is_written(tmp_path: Path) -> None:
    """Identical outputs: exit 0, a sentence with the mode, and the verdicts as JSON."""
    done = run(
        outputs(tmp_path / "a.jsonl", 1), "--baseline", "base", "--candidate", "cand", "--json", tmp_path / "v.json"
    )
    assert done.exit_code == 0, done.output
    assert done.output.startswith("deterministic: identical: 1 of 1 prompts")
    (written,) = json.loads((tmp_path / "v.json").read_text())
    assert (written["word"], written["candidate"]["tokens"]) == ("identical", 1)


def test_a_difference_exits_one(tmp_path: Path) -> None:
    """Another verdict than identical: exit 1."""
    done = run(outputs(tmp_path / "a.jsonl", 2), "--baseline", "base", "--candidate", "cand")
    assert (done.exit_code, "differs at prompt p token 0 (ids 1, 2" in done.output) == (1, True)


def test_bad_input_exits_two_with_one_line(tmp_path: Path) -> None:
    """A broken file: exit 2, one line with file and line, nothing written."""
    path = outputs(tmp_path / "a.jsonl", 2)
    path.write_text(path.read_text()[:-9])
    done = run(path, "--baseline", "base", "--candidate", "cand", "--json", tmp_path / "v.json")
    assert done.exit_code == 2
    assert "a.jsonl:3: JSON is" in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "v.json").exists()


def test_a_report_that_cannot_be_written_exits_two(tmp_path: Path) -> None:
    """A place that cannot be written: exit 2 and one line."""
    (tmp_path / "file").write_text("")
    path = outputs(tmp_path / "a.jsonl", 1)
    done = run(path, "--baseline", "base", "--candidate", "cand", "--json", tmp_path / "file" / "v.json")
    assert done.exit_code == 2
    assert "error: compare-tokens: report is" in done.output


def test_the_documented_lines_answer_the_documented_command(tmp_path: Path) -> None:
    """The records of the guide hold both arms and the control that its command asks for."""
    text = (Path(__file__).parents[2] / "docs/referee.md").read_text()
    section = text.split("## Comparing outputs token by token")[1]
    (tmp_path / "tokens.jsonl").write_text(section.split("```json\n")[1].split("```")[0])
    words = section.split("kda-lab compare-tokens tokens.jsonl ")[1].split("\n")[0].split()
    done = run(tmp_path / "tokens.jsonl", *words)
    assert done.exit_code == 0, done.output
    assert "identical" in done.output
