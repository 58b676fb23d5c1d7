"""The documentation is true where a machine can check it: links, commands, versions, numbers of the README."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import pytest
from typer.main import get_command

import kda_lab
from kda_lab.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "kda_lab").rglob("README.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file or folder of the tree."""
    targets = re.findall(r"\]\(([^)#]+?)\)", page.read_text())
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_named_commands_exist(page: Path) -> None:
    """Every `kda-lab <command>` that a page shows is a command."""
    shown = set(re.findall(r"kda-lab ([a-z]+(?:-[a-z]+)*)\b", page.read_text()))
    assert not shown - set(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_named_files_exist(page: Path) -> None:
    """Every notebook, test or module that a page names by its path is there."""
    named = set(re.findall(r"`((?:notebooks|tests|benchmarks|docs|kda_lab)/[\w./-]+\.\w+)`", page.read_text()))
    assert not [name for name in named if "<" not in name and not (ROOT / name).exists()]


def test_the_changelog_has_this_version() -> None:
    """The version of the package has a section."""
    assert f"## {kda_lab.__version__} " in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("run", ["h200-replay-qsa", "h200-sweep-qsa"])
def test_the_readme_quotes_the_committed_runs(run: str) -> None:
    """Geomean and minimum in the README are those of the run's rows, to three digits."""
    line = next(text for text in (ROOT / "README.md").read_text().splitlines() if f"`reports/{run}`" in text)
    with (ROOT / "reports" / run / "rows.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    times = {(r["row"], r["arm"], r["role"]): float(r["arm_us"]) for r in rows if r["arm_us"]}
    ours = [r["row"] for r in rows if r["arm"] == "grouped"]
    for arm, role in (("per_head", "baseline"), ("flashinfer_ragged_fa2", "peer")):
        ratios = [times[row, arm, role] / times[row, "grouped", "candidate"] for row in ours]
        geomean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
        found = re.search(rf"geomean {geomean:.3g}×, min {min(ratios):.3g}×", line)
        assert found, f"{arm}: {geomean:.3g} and {min(ratios):.3g} are not in: {line}"
    assert f"| {len(ours)} |" in line
