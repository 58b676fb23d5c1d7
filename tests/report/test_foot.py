"""The small print: device, clocks, trials, order, cold proof, captures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kda_lab.report.foot import foot
from kda_lab.report.records import RunRecords, read_run
from kda_lab.run_folder import RunFolder, read_json_lines, write_json_lines
from kda_lab.timing.statistics import RowResult

Fill = Callable[..., RunFolder]


def read(run: RunFolder) -> RunRecords:
    return read_run(run)


def test_all_parts(
    tmp_path: Path, capture_rows: list[RowResult], verify_records: list[dict[str, Any]], fill_run: Fill
) -> None:
    """GPU, clocks, driver, trials, order, protocol, cold proof and capture hash are all there."""
    text = foot(read(fill_run(tmp_path, capture_rows[:12], verify_records)))
    assert text.startswith(
        "NVIDIA H200 · SM 1755–1980 MHz, memory 3201 MHz · driver 580.159.04 · 5 trials per arm, 0 dropped, "
    )
    assert "order ABBA, protocol v1 · cold: 101–180 input sets, at least 5× L2 (60 MiB) · captures sha256:" in text


def test_an_order_that_is_not_abba_is_said(tmp_path: Path, capture_rows: list[RowResult], fill_run: Fill) -> None:
    """The order is read off the records, not assumed."""
    run = fill_run(tmp_path, capture_rows[:6], [])
    records = list(read_json_lines(run.timing_records))
    names = sorted({(r["arm"], r["role"]) for r in records})
    write_json_lines(run.timing_records, [{**r, "order": names.index((r["arm"], r["role"]))} for r in records])
    assert "order not ABBA" in foot(read(run))


def test_an_arm_that_drops_out_does_not_spoil_the_order(
    tmp_path: Path, capture_rows: list[RowResult], fill_run: Fill
) -> None:
    """Orders are compared on the arms that both trials have."""
    run = fill_run(tmp_path, capture_rows[:6], [])
    records = [r for r in read_json_lines(run.timing_records) if not (r["arm"] == "split_merge" and r["trial"] > 2)]
    write_json_lines(run.timing_records, records)
    assert "order ABBA" in foot(read(run))


def test_dropped_trials_are_counted(tmp_path: Path, capture_rows: list[RowResult], fill_run: Fill) -> None:
    """A dropped trial shows in the small print."""
    run = fill_run(tmp_path, capture_rows[:6], [])
    first, *rest = read_json_lines(run.timing_records)
    write_json_lines(run.timing_records, [{**first, "dropped": "throttled"}, *rest])
    assert "1 dropped" in foot(read(run))


def test_a_cpu_run(tmp_path: Path, verify_records: list[dict[str, Any]], fill_run: Fill) -> None:
    """Without times the foot says why."""
    text = foot(read(fill_run(tmp_path, [], verify_records[:1], "cpu")))
    assert text.startswith("x86_64 · not timed (interpreter) · captures sha256:")
