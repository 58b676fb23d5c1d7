"""The list of runs: every run, in any state, sorted, the same bytes twice."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kda_lab.report import html, index
from kda_lab.run_folder import RunFolder, read_json_lines, write_json_lines
from kda_lab.timing.statistics import RowResult

Fill = Callable[..., RunFolder]


@pytest.fixture
def reports(
    tmp_path: Path, capture_rows: list[RowResult], verify_records: list[dict[str, Any]], fill_run: Fill
) -> Path:
    html.write_report(fill_run(tmp_path / "b-timed", capture_rows[:6], verify_records[:1]))
    fill_run(tmp_path / "a-bare", capture_rows[:6], [])
    broken = fill_run(tmp_path / "local" / "c-broken", [], verify_records[:1], "cpu")
    broken.verdict.write_text("{")
    for name in ("evidence", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / ".hidden" / "verdict.json").write_text("{}")
    (tmp_path / "note.txt").write_text("not a run")
    return tmp_path


def test_runs_are_listed_by_name_with_their_verdicts(reports: Path) -> None:
    """Runs of both levels, with and without a page; a broken verdict is `no verdict`; hidden folders are not runs."""
    page = index.write_index(reports).read_text()
    assert re.findall(r'class="text run"><a href="([^"]+)">([^<]+)<', page) == [
        ("a-bare/", "a-bare"),
        ("b-timed/index.html", "b-timed"),
        ("local/c-broken/", "local/c-broken"),
    ]
    assert re.findall(r"<strong>(.*?)</strong>", page) == ["PASSED", "PASSED", "no verdict"]
    for words in (
        "demo.attention",
        "NVIDIA H200",
        "2026-11-29T16:00:00Z",
        "not timed (interpreter)",
        'href="b-timed/rows.csv"',
    ):
        assert words in page, words


def test_speedups_are_the_same_with_and_without_a_summary(reports: Path) -> None:
    """Geomean, minimum and count come from the summary, or from the records where there is none."""
    page = index.write_index(reports).read_text()
    told = re.findall(r"grouped: geomean [\d.]+×, min [\d.]+×, n = 1 \(against per_head\)", page)
    assert len(told) == 2 and told[0] == told[1]


@pytest.mark.parametrize("text", ["{", "[]", '{"timing_sha256": "", "speedups": []}', "null"])
def test_a_summary_that_is_broken_or_stale_is_not_believed(reports: Path, text: str) -> None:
    """A summary of other records, or one that cannot be read, is replaced by the records."""
    (reports / "b-timed" / "summary.json").write_text(text)
    assert "n = 1" in index.write_index(reports).read_text().split("b-timed/index.html")[1].split("</tr>")[0]


def test_a_summary_with_a_wrong_entry_is_not_believed(reports: Path) -> None:
    """The hash may fit while an entry does not: then the records decide too."""
    path = reports / "b-timed" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "speedups": [{"arm": "x"}]}))
    assert "n = 1" in index.write_index(reports).read_text().split("b-timed/index.html")[1].split("</tr>")[0]


def test_changed_records_change_the_index(reports: Path) -> None:
    """After the timing records changed, the old summary is no longer shown."""
    run = RunFolder(reports / "b-timed")
    before = index.write_index(reports).read_text()
    slower = [
        {**r, "median_us": r["median_us"] * (2 if r.get("role") == "candidate" else 1)}
        for r in read_json_lines(run.timing_records)
    ]
    write_json_lines(run.timing_records, slower)
    assert index.write_index(reports).read_text() != before


def test_the_index_is_the_same_bytes_twice(reports: Path) -> None:
    """Nothing of the time of writing enters the page."""
    assert index.write_index(reports).read_bytes() == index.write_index(reports).read_bytes()


def test_no_runs(tmp_path: Path) -> None:
    """A folder without runs, or none at all, gives a page that says so."""
    assert "No run yet." in index.write_index(tmp_path / "new").read_text()
