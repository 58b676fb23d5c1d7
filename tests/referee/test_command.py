"""The command `kda-lab referee`: exit codes, reports, refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kda_lab.cli import app
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.readers import write_claims

RUNNER = CliRunner()


def written(folder: Path, name: str, cand: float) -> Path:
    """A claim file of six runs an arm."""
    runs = tuple(
        Run(arm=a, metrics={"kernel_us": level + 0.1 * i})
        for a, level in (("baseline", 100.0), ("candidate", cand))
        for i in range(6)
    )
    path = folder / f"{name}.yaml"
    write_claims(path, [Claim(name=name, metric="kernel_us", runs=runs)])
    return path


def test_verdicts_are_printed_and_written(tmp_path: Path) -> None:
    """A folder of claims: a table, the arithmetic, JSON and Markdown; exit 0."""
    folder = tmp_path / "claims"
    folder.mkdir()
    written(folder, "quick", 95.0)
    written(folder, "same", 100.0)
    reports = [tmp_path / "out.json", tmp_path / "out.md"]
    done = RUNNER.invoke(app, ["referee", str(folder), "--json", str(reports[0]), "--markdown", str(reports[1])])
    assert done.exit_code == 0, done.output
    assert "faster(-4.99 %, p = 0.0022)" in done.output
    assert "924 relabellings" in done.output
    assert "2 claims, 2 answered" in done.output
    assert [j["verdict"] for j in json.loads(reports[0].read_text())] == ["faster", "equivalent"]
    assert "| same | kernel_us | equivalent(margin 1 %) |" in reports[1].read_text()


def test_strict_fails_on_an_open_question(tmp_path: Path) -> None:
    """A noisy claim exits 0, and 1 with --strict; the arithmetic can be left out."""
    path = written(tmp_path, "noisy", 100.2)
    text = path.read_text().replace("100.5", "130.5")
    path.write_text(text)
    assert RUNNER.invoke(app, ["referee", str(path)]).exit_code == 0
    done = RUNNER.invoke(app, ["referee", str(path), "--strict", "--no-arithmetic"])
    assert done.exit_code == 1
    assert "inconclusive(MDE " in done.output
    assert "relabellings" not in done.output


@pytest.mark.parametrize(
    ("content", "words"),
    [("", "a.yaml"), ("claims: [", "a.yaml"), ("\x00\x01", "a.yaml"), ("- 1\n- 2\n", "a.yaml")],
    ids=["empty", "truncated", "binary", "other"],
)
def test_bad_input_is_one_line(tmp_path: Path, content: str, words: str) -> None:
    """Exit 2, one line that names the file, and no report."""
    path = tmp_path / "a.yaml"
    path.write_text(content)
    done = RUNNER.invoke(app, ["referee", str(path), "--json", str(tmp_path / "out.json")])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: referee: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Exit 2 with what is allowed."""
    done = RUNNER.invoke(app, ["referee", str(tmp_path / "none.yaml")])
    assert done.exit_code == 2
    assert "none.yaml'; allowed: a file or folder that exists" in done.stderr


def test_a_report_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The place is a folder below a file: exit 2, nothing printed as a verdict."""
    path = written(tmp_path, "quick", 95.0)
    done = RUNNER.invoke(app, ["referee", str(path), "--json", str(path / "out.json")])
    assert done.exit_code == 2
    assert "allowed: a file that can be written" in done.stderr
    assert "Verdicts" not in done.stdout
