"""The command `kda-lab audit`: exit codes, one line for bad input, reports that are whole or absent, progress apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kda_lab import cli
from kda_lab.audit.exported_model import CHECKS, Places


def run(*arguments: object) -> Any:
    """The whole command line, as a shell would start it."""
    return CliRunner().invoke(cli.app, ["audit", *map(str, arguments)])


@pytest.fixture
def here(toy: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The toy's checkout is the package that the command audits."""
    monkeypatch.setattr(Places, "of_package", classmethod(lambda _cls: toy.places))
    return toy


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """A source tree and an export that lost a parameter."""
    source, export = tmp_path / "source", tmp_path / "export"
    for folder, text in ((source, "def f(a, b=1):\n    return a + b\n"), (export, "def f(a):\n    return a\n")):
        folder.mkdir()
        (folder / "kernel.py").write_text(text)
    (source / "serve.py").write_text("from kernel import f\n\nprint(f(1, b=2))\n")
    return source, export


@pytest.mark.usefixtures("compiled_before", "replayed_before")
def test_a_clean_export_exits_0(here: Any) -> None:
    """Every check is a row on stdout, the verdict is the last line, and progress goes to stderr."""
    done = run()
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("toy_decode")] == list(CHECKS)
    assert lines[-1].startswith("clean: 1 exported kernels, ")
    assert lines[-1].endswith("the smallest capture of each op.")
    assert "audit: toy_decode: cold compile" in done.stderr
    assert "cold compile" not in done.stdout


@pytest.mark.usefixtures("compiled_before", "replayed_before")
def test_a_finding_exits_1_and_is_written(here: Any, tmp_path: Path) -> None:
    """JSON and Markdown hold what the table shows."""
    (here.folder / "LICENSE.txt").unlink()
    done = run(
        "toy_decode", "--full", "--captures", "all", "--json", tmp_path / "a.json", "--markdown", tmp_path / "a.md"
    )
    assert done.exit_code == 1
    record = json.loads((tmp_path / "a.json").read_text())
    assert (record["passed"], record["scope"]) == (False, "every compile unit; every capture")
    assert "LICENSE.txt is missing" in (tmp_path / "a.md").read_text()
    assert "LICENSE.txt is missing" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent"], "audit: kernel is 'absent'; allowed: toy_decode."),
        (["a", "b", "c"], "audit: arguments is ['a', 'b', 'c']; allowed: none, one kernel, or SOURCE and EXPORT."),
        (["--captures", "some"], "audit: --captures is 'some'; allowed: 'one', 'all'."),
        (["--base", "x"], "audit: options with exported kernels is --base; allowed: those of that audit, see --help."),
        (["a", "b", "--full"], "audit: options with two trees is --full; allowed: those of that audit, see --help."),
        (["nowhere/a", "nowhere/b"], "audit: "),
    ],
    ids=["kernel", "count", "captures", "base", "full", "trees"],
)
def test_bad_input_exits_2_with_one_line(here: Any, arguments: list[str], words: str, tmp_path: Path) -> None:
    """One line names the field; no traceback, and no report."""
    done = run(*arguments, "--json", tmp_path / "a.json")
    assert done.exit_code == 2, done.output
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert line.startswith(f"error: {words}")
    assert "Traceback" not in done.output
    assert not (tmp_path / "a.json").exists()


@pytest.mark.usefixtures("compiled_before", "replayed_before")
def test_a_report_that_cannot_be_written_exits_2(here: Any, tmp_path: Path) -> None:
    """A path below a file is refused in one line."""
    (tmp_path / "file").write_text("")
    done = run("--markdown", tmp_path / "file" / "a.md")
    assert done.exit_code == 2
    assert "error: audit: report is " in done.stderr


def test_a_lost_parameter_exits_1(trees: tuple[Path, Path], tmp_path: Path) -> None:
    """Two trees: each finding is a row, and the call that would crash is named with its line."""
    done = run(*trees, "--json", tmp_path / "a.json", "--markdown", tmp_path / "a.md")
    assert done.exit_code == 1, done.output
    assert "AUD-3" in done.stdout
    assert "serve.py" in done.stdout
    record = json.loads((tmp_path / "a.json").read_text())
    assert {finding["rule"] for finding in record["findings"]} >= {"AUD-3", "AUD-4"}
    assert (tmp_path / "a.md").read_text().startswith("# ")


def test_equal_trees_exit_0(trees: tuple[Path, Path]) -> None:
    """A tree against itself has no finding."""
    done = run(trees[0], trees[0])
    assert done.exit_code == 0, done.output
    assert "2 identical" in done.stdout


def test_cosmetic_findings_fail_unless_semantic(trees: tuple[Path, Path]) -> None:
    """A changed comment makes other bytes; with --semantic that is listed and no failure."""
    source = trees[0]
    copy = source.with_name("copy")
    copy.mkdir()
    for path in source.iterdir():
        (copy / path.name).write_text(path.read_text() + "# a comment\n")
    assert run(source, copy).exit_code == 1
    done = run(source, copy, "--semantic")
    assert done.exit_code == 0, done.output
    assert "2 differs" in done.stdout


def test_an_allow_list_and_a_scope_reach_the_audit(trees: tuple[Path, Path], tmp_path: Path) -> None:
    """A scope that names nothing and an allow-list that is missing are refused by name."""
    done = run(*trees, "--scope", "absent/*")
    assert done.exit_code == 2
    assert "scope is ['absent/*']" in done.stderr
    assert run(*trees, "--allow", tmp_path / "absent.yaml").exit_code == 2
