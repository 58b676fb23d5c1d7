"""`kda-lab slices` prints tables and findings, writes files on request, and refuses in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kda_lab.cli import app

UNFUSED, FUSED = "made_up_unfused", "made_up_fused"
CUT = ("--marker", "moe_fused_gate", "--per-step", "12", "--first", "4", "--last", "8")


def run(files: dict[str, Path], *more: str, kind: str = ".pt.trace.json.gz", cut: tuple[str, ...] = CUT) -> Result:
    """The command on the made-up pair."""
    return CliRunner().invoke(app, ["slices", str(files[UNFUSED + kind]), str(files[FUSED + kind]), *cut, *more])


@pytest.mark.parametrize("kind", [".pt.trace.json.gz", ".sqlite"])
def test_tables_and_findings_are_printed(files: dict[str, Path], kind: str) -> None:
    """The same totals from either format."""
    done = run(files, kind=kind)
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert ["wall,", "µs", "1977.695", "1951.731", "-25.964", "-1.31"] in lines
    assert ["kernels", "114", "105", "-9", "-7.89"] in lines
    assert "note: kernels overlap: the sum of durations (+7.91 %)" in done.output


def test_files_are_written_on_request(files: dict[str, Path], tmp_path: Path) -> None:
    """And named."""
    done = run(files, "--out", str(tmp_path / "o"))
    assert done.exit_code == 0, done.output
    assert done.output.count("wrote ") == len(list((tmp_path / "o").iterdir())) == 9


def test_settings_reach_every_step(files: dict[str, Path], tmp_path: Path) -> None:
    """Categories, device and limits of the file hold."""
    path = tmp_path / "s.yaml"
    path.write_text("categories: [{name: quant, patterns: [group_quant]}]")
    assert "quant" in run(files, "--settings", str(path)).output
    path.write_text("device: 3")
    assert "device is 3; allowed: 0" in run(files, "--settings", str(path)).output
    path.write_text("categories: [{name: '[red]q', patterns: [group_quant]}]")
    assert "[red]q" in run(files, "--settings", str(path)).output


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (
            ("--marker", "nothing_like_it", "--per-step", "12", "--first", "4", "--last", "8"),
            "marker is 'nothing_like_it'",
        ),
        (
            ("--marker", "moe_fused_gate", "--per-step", "11", "--first", "4", "--last", "8"),
            "is 60; allowed: a positive multiple",
        ),
        (
            ("--marker", "moe_fused_gate", "--per-step", "12", "--first", "8", "--last", "4"),
            "last is 4; allowed: 9 to 12.",
        ),
    ],
    ids=["marker", "per-step", "order"],
)
def test_a_refusal_is_one_line_and_exit_code_2(
    files: dict[str, Path], tmp_path: Path, cut: tuple[str, ...], message: str
) -> None:
    """No traceback, and no file."""
    done = run(files, "--out", str(tmp_path / "o"), cut=cut)
    assert done.exit_code == 2
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert not (tmp_path / "o").exists()
