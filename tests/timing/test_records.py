"""Timing records: what makes one believable, and the forms it is kept in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

from kda_lab.errors import TimingError
from kda_lab.timing import records

Make = Callable[..., dict[str, Any]]
FAILED = {"passed": False, "error": 0.9, "limit": 5e-3, "detail": "error is 0.9; allowed: at most 0.005"}
REFUSED = {
    "kind": "refused",
    "op": "fake.double",
    "row": "W64",
    "axes": {"W": 64},
    "arm": "peer",
    "role": "peer",
    "reason": "unavailable, because it is not installed",
}


def test_valid_record_comes_back_with_json_types(timing_record: Make) -> None:
    """A believable record is completed with defaults and survives JSON unchanged."""
    done = records.validated(timing_record())
    assert json.loads(json.dumps(done, allow_nan=False)) == done
    assert (done["state_reason"], done["source_sha256"], done["recheck"]["detail"]) == ("", "", "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"provenance": {"device": {"interpreter": True}}}, "a time of the interpreter is never recorded"),
        ({"samples_us": [10.0, -1.0, 11.0]}, "samples_us holds a time that is not above 0"),
        ({"median_us": 9.0}, "median_us is not the median of samples_us"),
        ({"bytes_rotated": 25601}, "bytes_rotated is not input_sets x bytes_per_call"),
        ({"calls_per_graph": 49}, "calls_per_graph is not a multiple of input_sets"),
        ({"l2_bytes": 25600}, "state is cold, but bytes_rotated is below 5 x l2_bytes"),
        ({"state": "warm"}, "state is not cold and state_reason is empty"),
        ({"recheck": FAILED}, "recheck failed and state is not invalid"),
        ({"recheck": {**FAILED, "detail": ""}}, "recheck.detail must say what failed, and only then"),
        ({"recheck": {"passed": True, "error": 0.9, "limit": 5e-3}}, "recheck passed with an error above its limit"),
        ({"recheck": {"passed": True, "error": None, "limit": 5e-3}}, "recheck passed with an error above its limit"),
        ({"kernels": None}, "kernels is None without kernels_reason, or the reverse"),
        ({"kernels_reason": "x"}, "kernels is None without kernels_reason, or the reverse"),
        ({"role": "winner"}, "record.role is 'winner'; allowed: Input should be 'baseline'"),
        ({"speed": 2}, "record.speed is 2; allowed: Extra inputs are not permitted"),
        ({"roof_us": float("inf")}, "record.roof_us is inf; allowed: Input should be a finite number"),
        ({"samples_us": []}, "record.samples_us is []; allowed: Tuple should have at least 1 item"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unbelievable_record_is_refused(timing_record: Make, changes: dict[str, Any], message: str) -> None:
    """Each broken rule is refused in its own words."""
    with pytest.raises(TimingError) as caught:
        records.validated(timing_record(**changes))
    assert message in str(caught.value)


def test_refusal_needs_a_reason() -> None:
    """A refused record says why."""
    assert records.validated(REFUSED)["reason"] == "unavailable, because it is not installed"
    with pytest.raises(TimingError, match=r"record\.reason is ''"):
        records.validated({**REFUSED, "reason": ""})


def test_json_lines_hold_one_sorted_record_a_line(timing_record: Make) -> None:
    """JSON Lines have one record a line, keys sorted, so that equal records give equal bytes."""
    text = records.to_jsonl([timing_record(), REFUSED])
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["kind"] for line in lines] == ["timing", "refused"]
    assert list(lines[0]) == sorted(lines[0])


def test_table_keeps_every_number_unrounded(timing_record: Make) -> None:
    """The table has one row a record, dotted telemetry columns, and the raw samples."""
    frame = records.to_frame([timing_record(axes={"W": 64}), timing_record(axes={"W": "any"}, trial=1), REFUSED])
    assert len(frame) == 3
    assert frame["telemetry.sm_clock_mhz"][0] == 1980
    assert frame["recheck.error"][1] == 1e-4
    assert list(frame["axes.W"]) == ["64", "any", "64"]
    assert json.loads(frame["kernels"][0]) == {"double_kernel": 1}
    assert list(frame["samples_us"][0]) == [9.0, 10.0, 12.0]


def test_parquet_reads_back_as_the_table(timing_record: Make, tmp_path: Path) -> None:
    """The Parquet file holds what the table holds."""
    found = [timing_record(), timing_record(trial=1, axes={"W": 64, "B": 2}), REFUSED]
    records.write_parquet(found, tmp_path / "timing.parquet")
    back = pandas.read_parquet(tmp_path / "timing.parquet")
    frame = records.to_frame(found)
    assert list(back.columns) == list(frame.columns)
    assert list(back["trial"][:2]) == [0, 1]
    assert list(back["samples_us"][1]) == [9.0, 10.0, 12.0]
