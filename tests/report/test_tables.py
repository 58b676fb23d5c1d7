"""Tables: nothing left out, units in the heads, rounding only on the page."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pandas

from kda_lab.report import tables
from kda_lab.timing.statistics import RowResult

Make = Callable[..., RowResult]


def test_every_row_stays_in(sweep: list[RowResult]) -> None:
    """All 288 rows are lines, the refused ones with a dash and their reason."""
    table = tables.rows_table(sweep)
    refused = [line for line in table.lines if line[-1].startswith("refused")]
    assert len(table.lines) == 288 and len(refused) == 2
    assert refused[0][5] == "—" and "workspace of 134217728 bytes is too small" in refused[0][-1]
    assert all(len(line) == len(table.heads) for line in table.lines)


def test_the_page_rounds_and_the_ratio_has_its_interval(one_row: Make) -> None:
    """Three significant digits; the ratio stands beside both times with its interval."""
    row = one_row(baseline_us=20.1234, arm_us=10.0567, ratio=2.00099, dropped_trials=1)
    line = tables.rows_table([row]).lines[0]
    assert line[3:9] == ("20.1", "10.1", "2.00 [1.90, 2.10]", "1.00", "faster", "4.00")
    assert line[11] == "5 (−1)"


def test_csv_and_parquet_do_not_round(one_row: Make) -> None:
    """A number comes back from both files with all its digits, and what is missing stays missing."""
    rows = [one_row(ratio=2.0009912345678), one_row(row="r2", ratio=None, axes={"B": 4, "lengths": [1, 2]})]
    frame = tables.rows_frame(rows)
    for back in (
        pandas.read_csv(io.StringIO(tables.csv_text(frame))),
        pandas.read_parquet(io.BytesIO(tables.parquet_bytes(frame))),
    ):
        assert back["ratio"][0] == 2.0009912345678 and pandas.isna(back["ratio"][1])
        assert list(back["axis_B"]) == [4, 4] and list(back["axis_lengths"]) == ["short", "[1, 2]"]
        assert back["trials"].dtype.kind == "i"


def test_files_are_the_same_bytes_twice(sweep: list[RowResult]) -> None:
    """The same rows give the same CSV and the same Parquet."""
    first, second = tables.rows_frame(sweep), tables.rows_frame(sweep)
    assert tables.csv_text(first) == tables.csv_text(second)
    assert tables.parquet_bytes(first) == tables.parquet_bytes(second)


def test_batches_have_geomean_minimum_and_count(one_row: Make) -> None:
    """A batch's line is the geomean, minimum and count of its rows with a verdict; others are only counted."""
    axes = {"HQ": 24, "B": 1, "lengths": "short"}
    rows = [
        one_row(ratio=2.0),
        one_row(row="tp1-x", ratio=8.0),
        one_row(row="tp2-y", axes=axes, ratio=3.0),
        one_row(row="tp2-z", axes=axes, ratio=99.0, verdict="", state="warm"),
        one_row(arm="per_head", role="baseline"),
    ]
    lines = tables.batch_table(rows).lines
    assert lines[0] == ("grouped", "all", "all", "3.63", "2.00", "3", "3", "0", "0", "0", "1")
    assert lines[1][2:6] == ("1", "3.00", "3.00", "1") and lines[2][2:6] == ("4", "4.00", "2.00", "2")
    assert [line[1] for line in lines[3:]] == ["tp1 (HQ=24, HKV=2)"] * 2 + ["tp2 (HQ=24)"] * 2
    assert {line[0] for line in lines} == {"grouped"}


def test_headline_compares_candidates_with_peers(one_row: Make) -> None:
    """Against the baseline every arm has a line; against a peer only candidates do; nothing measured is a dash."""
    peer = one_row(arm="library", role="peer", verdict="", ratio=None)
    again = [
        one_row(baseline="library", ratio=1.5),
        one_row(arm="library", role="peer", baseline="library", verdict=""),
    ]
    lines = tables.headline_table([[one_row(), peer], again]).lines
    assert lines == (
        ("grouped", "candidate", "per_head", "2.00×", "2.00×", "1", "1 of 1", "0 of 1"),
        ("library", "peer", "per_head", "—", "—", "0", "0 of 1", "0 of 1"),
        ("grouped", "candidate", "library", "1.50×", "1.50×", "1", "1 of 1", "0 of 1"),
    )


def test_replays_show_checks_and_failures(verify_records: list[dict[str, Any]]) -> None:
    """Each replay has errors, limits, checks k/n and, where it failed, the names of what failed."""
    replays = [r for r in verify_records if r["kind"] == "replay"]
    lines = tables.verify_table(replays).lines
    failed = [line for line in lines if line[12] == "FAILED"]
    assert len(lines) == 75 and len(failed) == 15
    assert failed[0][11] == "8/11" and failed[0][13] == "error_fp32; error_pinned; row_max"
    assert lines[0][9:13] == ("2.00e-3", "4.00e-3", "11/11", "passed")


def test_power_names_survivors_and_void_gates(verify_records: list[dict[str, Any]]) -> None:
    """All killed, a survivor, no mutant at all, and a control that failed are four different words."""
    power = next(r for r in verify_records if r["kind"] == "power")
    survivor = {"name": "m", "killed": False, "by": "", "applies": True, "why_not": ""}
    records = [
        power,
        {"capture": "a", "killed": 0, "total": 1, "mutants": [survivor]},
        {"capture": "b", "killed": 0, "total": 0, "mutants": []},
        {**power, "control": {"passed": False, "failed": ["row_max"]}},
    ]
    lines = tables.power_table(records).lines
    assert [line[3] for line in lines] == ["all killed", "SURVIVORS", "NO MUTANT APPLIES", "VOID"]
    assert lines[0][1:3] == ("6/6", "1") and lines[1][4] == "m" and lines[3][4].endswith("fails row_max")


def test_a_count_that_disagrees_with_its_list_is_not_all_killed() -> None:
    """A record that claims full power but lists a survivor is shown with the survivor."""
    survivor = {"name": "m", "killed": False, "applies": True}
    assert (
        tables.power_table([{"capture": "a", "killed": 1, "total": 1, "mutants": [survivor]}]).lines[0][3]
        == "SURVIVORS"
    )


def test_mutants_list_killing_checks_and_reasons(verify_records: list[dict[str, Any]]) -> None:
    """Each mutant has k/n, the checks that killed it, and why it does not apply elsewhere."""
    lines = {line[0]: line for line in tables.mutant_table([r for r in verify_records if r["kind"] == "power"]).lines}
    assert lines["all_zero"][1:4] == ("15/15", "killed", "changed_lengths_longer (5), error_fp32 (5), row_max (5)")
    assert lines["head_map"][1] == "5/5" and lines["head_map"][4:] == ("10", "one KV head: both maps agree")
    assert lines["zero_length_nan"][1:3] == ("0/0", "—")


def test_a_surviving_mutant_is_said() -> None:
    """A mutant that survived on one capture has SURVIVED."""
    mutants = [{"name": "m", "killed": k, "by": "row_max", "applies": True} for k in (True, False)]
    assert tables.mutant_table([{"mutants": [m]} for m in mutants]).lines[0][1:3] == ("1/2", "SURVIVED")


def test_refusals_and_stress() -> None:
    """Refusals keep their reason, stress its launches and its verdict."""
    refused = tables.refused_table(
        [
            {"row": "r", "arm": "a", "role": "peer", "reason": "no driver"},
            {"arm": "b", "reason": "x"},
            {"arm": "c", "role": "policy", "reason": "y", "layers": 4},
        ]
    )
    assert refused.lines == (
        ("r", "a", "peer", "no driver"), ("all", "b", "", "x"), ("in the chain", "c", "policy", "y"),
    )  # fmt: skip
    stress = {
        "capture": "c",
        "arm": "a",
        "role": "candidate",
        "launches": 10000,
        "differing": 0,
        "nonzero_state": 0,
        "passed": True,
    }
    assert tables.stress_table([stress]).lines[0][3:7] == ("10000", "0", "0", "passed")
    assert tables.stress_table([{**stress, "passed": False, "failure": "hung"}]).lines[0][6:] == ("FAILED", "hung")


def test_sizes_of_captures_have_lines_of_their_own(one_row: Make) -> None:
    """Large and small captures, as the op's source tells them apart, each with its own geomean; sweep rows have none."""
    classes = {"q12": 2.0, "q4-saturated": 8.0, "q1": 3.0, "short": 50.0}
    rows = [
        one_row(op="qsa.packed_decode", row=f"tp1-{k}", axes={"HQ": 24, "B": 1, "lengths": k}, ratio=ratio)
        for k, ratio in classes.items()
    ]
    lines = tables.batch_table(rows).lines
    assert [line[1:6] for line in lines[1:3]] == [
        ("all", "large", "4.00", "2.00", "2"),
        ("all", "small", "3.00", "3.00", "1"),
    ]
    assert not {"large", "small"} & {line[2] for line in tables.batch_table(rows[3:]).lines}
