"""Results: speedups of paired rounds, the word of the statistics, the A/A control, sums against walls, bits."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kda_lab.projection import results
from kda_lab.projection.arms import CONTROL, FIVE, OUTPUTS, SIDE, THREE
from kda_lab.projection.plan import Cell

NOISE = (1.0, 1.002, 0.999, 1.001, 0.998, 1.0005, 1.0015, 0.9995)


def record(arm: str, us: float, shift: int = 0, **more: Any) -> dict[str, Any]:
    """A graph record of eight rounds around `us`."""
    rounds = [us * NOISE[(i + shift) % 8] for i in range(8)]
    given = {
        "kind": "projection", "attn_tp": 8, "tokens": 4, "mode": "graph", "arm": arm, "branch": "serial", "rounds_us": rounds,
        "median_us": us, "floor_us": 5.0, "busy": None, "bits": dict.fromkeys(OUTPUTS, True),
        "check": {"passed": True, "error": 1e-3, "limit": 5e-3},
    }  # fmt: skip
    return {**given, **more}


def cell(three_us: float, control_us: float = 20.0, **more: Any) -> list[dict[str, Any]]:
    return [record(FIVE, 20.0), record(THREE, three_us, 3, **more), record(CONTROL, control_us, 5)]


@pytest.mark.parametrize(("us", "word"), [(15.0, "faster"), (26.0, "slower"), (20.02, "same")])
def test_the_word_is_that_of_the_referees_statistics(us: float, word: str) -> None:
    """A quarter less is faster, a third more slower, a thousandth is within the margin."""
    found = results.summarise(cell(us))[0]
    assert found.word == word
    assert found.speedup == pytest.approx(20 / us, rel=0.005)
    assert found.low <= found.speedup <= found.high
    assert found.saved_us == pytest.approx(20 - us)
    assert found.cell == Cell(8, 4, "graph")


def test_a_shift_of_the_control_takes_the_word_back() -> None:
    """3 % faster beside a control that is 4 % faster than itself shows nothing."""
    assert results.summarise(cell(19.4, 19.2))[0].word == "ambiguous"
    assert results.summarise(cell(19.4, 20.0))[0].word == "faster"


def test_a_sum_that_rises_while_the_wall_falls_is_named() -> None:
    """Kernels beside each other take longer: +8 % summed, -25 % wall. Without kernels nothing is said."""
    busy = {"summed_us": 18.0, "union_us": 18.0, "overlap_us": 0.0}
    wide = {"summed_us": 19.44, "union_us": 14.0, "overlap_us": 5.44}
    records = [record(FIVE, 20.0, busy=busy), record(SIDE, 15.0, 3, busy=wide, branch="side"), record(CONTROL, 20.0, 5)]
    found = results.summarise(records)[0]
    assert found.summed_percent == pytest.approx(8)
    assert (found.contradicts, found.overlap_us, found.branch) == (True, 5.44, "side")
    silent = results.summarise(cell(15.0))[0]
    assert (silent.summed_percent, silent.overlap_us, silent.contradicts) == (None, None, False)


def test_cells_are_kept_apart_and_skipped_ones_left_out() -> None:
    """Another number of tokens is another cell; a cell that was not reached has no result."""
    other = [{**r, "tokens": 8} for r in cell(10.0)]
    skipped = {"kind": "skipped", "attn_tp": 1, "tokens": 1, "mode": "eager", "reason": "not reached within 1 s"}
    found = results.summarise([*cell(15.0), skipped, *other])
    assert [(r.cell.tokens, r.arm) for r in found] == [(4, THREE), (8, THREE)]
    assert results.geomean(found) == pytest.approx(math.sqrt(20 / 15 * 2), rel=0.005)
    assert math.isnan(results.geomean([]))


def test_wrong_values_are_faults_and_speeds_are_not() -> None:
    """A record beyond its limit is named with both numbers; a slow arm is a finding."""
    broken = record(THREE, 90.0, check={"passed": False, "error": 0.25, "limit": 5e-3})
    assert results.faults([record(FIVE, 20.0), broken]) == ["tp8-M4-graph three: error 0.25, limit 0.005"]


def test_bits_count_only_where_the_control_repeats_itself() -> None:
    """Of three cells one has a control that differs from itself, one an arm with other bits in one result."""
    other = {**dict.fromkeys(OUTPUTS, True), "a": False}
    groups = [
        cell(15.0),
        [{**r, "tokens": 8} for r in cell(15.0, bits=other)],
        [{**r, "tokens": 16, **({"bits": other} if r["arm"] == CONTROL else {})} for r in cell(15.0)],
    ]
    assert results.bit_counts([r for group in groups for r in group]) == [("graph", THREE, 3, 2, 1)]
