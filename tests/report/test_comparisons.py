"""The same times against the baseline and against each peer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kda_lab.report.comparisons import compare
from kda_lab.report.records import read_run
from kda_lab.run_folder import RunFolder, read_json_lines, write_json_lines
from kda_lab.timing.statistics import RowResult


@pytest.fixture
def run(tmp_path: Path, capture_rows: list[RowResult], fill_run: Callable[..., RunFolder]) -> RunFolder:
    return fill_run(tmp_path, capture_rows[:12], [])


def test_candidates_are_compared_with_every_peer(run: RunFolder) -> None:
    """Each peer becomes a baseline once, and the one with the least time is the strongest."""
    found = compare(read_run(run))
    assert list(found.against_peers) == ["split_merge", "flashinfer_ragged_fa2", "flashinfer_ragged_fa3"]
    times = {p: [r.arm_us for r in found.rows if r.arm == p] for p in found.against_peers}
    assert found.strongest_peer == min(times, key=lambda p: times[p][0] * times[p][1])  # type: ignore[operator]
    row = next(r for r in found.against_peers["split_merge"] if r.arm == "grouped")
    assert row.baseline == "split_merge" and row.verdict == "faster" and len(found.all) == 4


def test_without_candidates_or_records_there_is_nothing_to_compare(run: RunFolder, tmp_path: Path) -> None:
    """Peers alone are compared with the baseline only; an empty run gives empty rows."""
    write_json_lines(run.timing_records, [r for r in read_json_lines(run.timing_records) if r["role"] != "candidate"])
    found = compare(read_run(run))
    assert found.against_peers == {} and found.rows and found.strongest_peer == ""
    assert compare(read_run(RunFolder.at(tmp_path / "empty"))).rows == ()


def test_records_that_cannot_be_summarised_are_named(run: RunFolder) -> None:
    """A record with a field missing makes one problem, not a crash."""
    records = [{k: v for k, v in r.items() if k != "dropped"} for r in read_json_lines(run.timing_records)]
    write_json_lines(run.timing_records, records)
    found = compare(read_run(run))
    assert found.rows == () and found.problems == ("timing.jsonl: cannot be summarised: KeyError: 'dropped'",)


def labelled(run: RunFolder) -> None:
    """Add the run's baseline, control and candidate once more, as rows timed with eight sets."""
    records = list(read_json_lines(run.timing_records))
    again = [r for r in records if r["role"] != "peer" and r["kind"] == "timing"]
    eight = [{**r, "row": f"{r['row']} (eight sets)", "bytes_rotated": 8 * r["bytes_per_call"]} for r in again]
    write_json_lines(run.timing_records, [*records, *eight])


def test_rows_of_other_modes_stand_apart(run: RunFolder) -> None:
    """Rows with eight sets are summarised beside the cold ones, have ratios and never a verdict."""
    before = compare(read_run(run))
    labelled(run)
    found = compare(read_run(run))
    assert (found.rows, found.against_peers) == (before.rows, before.against_peers)
    mine = [r for r in found.labelled if r.role == "candidate"]
    assert [r.row for r in mine] == [f"{r.row} (eight sets)" for r in found.rows if r.role == "candidate"]
    assert {r.verdict for r in mine} == {""} and all(r.ratio and r.low for r in mine)


def test_peers_change_nothing_of_one_another(run: RunFolder) -> None:
    """The rows against one peer are those of a run that holds no other peer."""
    lines = list(read_json_lines(run.timing_records))
    found = compare(read_run(run)).against_peers["split_merge"]
    write_json_lines(run.timing_records, [r for r in lines if r["role"] != "peer" or r["arm"] == "split_merge"])
    assert compare(read_run(run)).against_peers["split_merge"] == found
