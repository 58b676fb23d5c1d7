"""Dispatched shapes: only bracketed, faster, measured rows; a row that is not faster splits its range."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.contracts.model import AxisRange, Declaration, ShapeRule, TensorGate
from kda_lab.contracts.shapes import require_within
from kda_lab.export.candidate import read_candidate
from kda_lab.export.shapes import contract_axes, dispatched_rules, range_axis

DECLARATION: Declaration = read_candidate(Path(__file__).with_name("toy_candidate.py")).declaration
VERDICTS = ("faster", "slower", "same", "ambiguous", "")


@dataclass(frozen=True)
class Measured:
    row: str
    axes: dict[str, Any]
    verdict: str


def measured(batch: int, verdict: str = "faster", kind: Any = "short", heads: tuple[int, int] = (12, 1)) -> Measured:
    axes = {"HQ": heads[0], "HKV": heads[1], "B": batch, "lengths": kind}
    return Measured(f"B{batch}-{kind}", axes, verdict)


def ranges(rows: list[Measured]) -> list[tuple[int, int]]:
    found = [rule.axes["B"] for rule in dispatched_rules(DECLARATION, rows)]
    return [(a.minimum, a.maximum) for a in found if isinstance(a, AxisRange)]


def test_axes_come_from_the_declaration() -> None:
    """Axes are those of the tensors' shapes; the range axis is the one that callable rules give as a range."""
    assert contract_axes(DECLARATION) == ("B", "HQ", "N", "HKV")
    assert range_axis(DECLARATION) == "B"


def test_no_range_goes_over_what_another_kernel_takes() -> None:
    """Its values need not have been measured here; those on both sides are ranges of their own."""
    taken = ShapeRule(axes={"HQ": 12, "B": AxisRange(minimum=2, maximum=5)})
    rows = [measured(1), measured(4), measured(8), measured(16)]
    for timed in (rows, [rows[0], *rows[2:]]):
        found = [rule.axes["B"] for rule in dispatched_rules(DECLARATION, timed, [taken])]
        assert found == [AxisRange(minimum=1, maximum=1), AxisRange(minimum=8, maximum=16)]


def test_classes_that_are_all_rare_carry_no_range() -> None:
    """Three values of a class each say nothing of what lies between them."""
    assert ranges([measured(1, kind="a"), measured(2, kind="b"), measured(4, kind="c")]) == []


def test_a_declaration_names_which_of_two_ranges_is_walked() -> None:
    """Then a batch is bracketed at each measured value of the other; without it each measured shape stands alone."""
    several = ShapeRule(axes={axis: AxisRange(minimum=1, maximum=99) for axis in ("B", "HQ")})
    free = DECLARATION.model_copy(update={"callable": (several,)})
    rows = [measured(1), measured(4)]
    assert range_axis(free) is None and len(dispatched_rules(free, rows)) == 2
    walked = free.model_copy(update={"range_axis": "B"})
    (rule,) = dispatched_rules(walked, rows)
    assert rule.axes == {"HQ": 12, "HKV": 1, "B": AxisRange(minimum=1, maximum=4)}
    with pytest.raises(ValueError, match="range_axis is 'HKV'; allowed: an axis that callable gives as a range: B, HQ"):
        Declaration.model_validate({**free.model_dump(), "range_axis": "HKV"})


def test_consecutive_faster_batches_form_one_range() -> None:
    """Batches 1, 4 and 8, all faster, serve 1 to 8, and the basis names them."""
    (rule,) = dispatched_rules(DECLARATION, [measured(8), measured(1), measured(4)])
    assert rule.axes == {"HQ": 12, "HKV": 1, "B": AxisRange(minimum=1, maximum=8)}
    assert rule.basis == "bracketed by measured rows at B = 1, 4, 8, all faster beyond noise (short)"


def test_what_another_kernel_takes_is_left_to_it() -> None:
    """Rows within its rules, single ones of replays too, neither begin nor carry a range; those beside them do."""
    rows = [measured(1), measured(4), measured(3, kind="captured"), measured(8), measured(16)]
    taken = ShapeRule(axes={"HQ": 12, "B": AxisRange(minimum=1, maximum=7)})
    (rule,) = dispatched_rules(DECLARATION, rows, [taken])
    assert rule.axes["B"] == AxisRange(minimum=8, maximum=16)
    assert dispatched_rules(DECLARATION, rows, [ShapeRule(axes={"HKV": 1})]) == ()
    assert len(dispatched_rules(DECLARATION, rows, [ShapeRule(axes={"HKV": 2})])) == 1


@pytest.mark.parametrize("verdict", ["slower", "same", "ambiguous", ""])
def test_row_that_is_not_faster_splits_the_range(verdict: str) -> None:
    """Slower, same, ambiguous and unmeasured rows end a range: their batch and the gaps beside it are left out."""
    assert ranges([measured(1), measured(2), measured(4, verdict), measured(8), measured(16)]) == [(1, 2), (8, 16)]


def test_one_slow_length_class_takes_the_batch_out() -> None:
    """A batch counts only when every one of its rows is faster."""
    rows = [measured(b, "faster", kind) for b in (1, 2, 4) for kind in ("short", "saturated")]
    rows[3] = measured(2, "same", "saturated")
    assert ranges(rows) == [(1, 1), (4, 4)]


def test_unmeasured_length_class_does_not_bracket() -> None:
    """The last batch lacks a class that the others have, so the range ends before it."""
    rows = [measured(b, "faster", kind) for b in (1, 2) for kind in ("short", "saturated")]
    assert ranges([*rows, measured(4, "faster", "short")]) == [(1, 2)]


def test_replay_row_can_split_but_not_extend() -> None:
    """A single replay row inside a sweep vetoes when it is slow; when it is fast it changes nothing."""
    sweep = [measured(b, "faster", kind) for b in (1, 2, 4, 8) for kind in ("short", "saturated")]
    assert ranges([*sweep, measured(3, "faster", "replay"), measured(12, "faster", "replay")]) == [(1, 8)]
    assert ranges([*sweep, measured(3, "same", "replay")]) == [(1, 2), (4, 8)]


def test_topologies_are_judged_apart() -> None:
    """Each combination of the other axes has its own rule."""
    rules = dispatched_rules(
        DECLARATION, [measured(1), measured(1, "slower", heads=(24, 2)), measured(2, heads=(24, 2))]
    )
    assert [(r.axes["HQ"], r.axes["B"]) for r in rules] == [
        (12, AxisRange(minimum=1, maximum=1)),
        (24, AxisRange(minimum=2, maximum=2)),
    ]


def test_without_a_range_axis_only_points_are_served() -> None:
    """Where no axis is declared as a range, a rule is exactly a measured shape whose rows are all faster."""
    fixed = DECLARATION.model_copy(update={"callable": (ShapeRule(axes={"B": (1, 2), "HQ": 12, "HKV": 1}),)})
    rules = dispatched_rules(
        fixed, [measured(1), measured(1, "faster", "long"), measured(2), measured(2, "same", "long")]
    )
    assert [(r.axes, r.basis) for r in rules] == [({"B": 1, "HQ": 12, "HKV": 1}, "measured rows B1-short, B1-long")]


GEMM = DECLARATION.model_copy(
    update={
        "tensors": {
            "x_fp4": TensorGate(dtypes=("uint8",), shape=("M", "K/2")),
            "x_sf": TensorGate(dtypes=("uint8",), shape=("ceil128(M)", "ceil4(K/16)")),
            "out": TensorGate(dtypes=("bfloat16",), shape=("M", "N")),
        },
        "callable": (
            ShapeRule(
                axes={
                    "M": AxisRange(minimum=1, maximum=16),
                    "N": AxisRange(minimum=16, maximum=1 << 20, multiple_of=16),
                    "K": AxisRange(minimum=64, maximum=1 << 20, multiple_of=64),
                }
            ),
        ),
    }
)


def product(rows: int, kind: str = "random", verdict: str = "faster", depth: int = 2560) -> Measured:
    return Measured(f"4b-M{rows}-{kind}", {"M": rows, "N": 9216, "K": depth, "kind": kind}, verdict)


def test_axes_of_a_matrix_product_come_from_its_grammar() -> None:
    """K/2, ceil128(M) and ceil4(K/16) name M and K; with three ranges there is no one axis to walk."""
    assert contract_axes(GEMM) == ("M", "K", "N")
    assert range_axis(GEMM) is None


def test_several_range_axes_serve_measured_points_only() -> None:
    """Each (M, N, K) whose rows are all faster is a rule of its own; nothing between two points is added."""
    rows = [
        product(1),
        product(1, "exact"),
        product(8),
        product(16, verdict="same"),
        product(4),
        product(4, "exact", "slower"),
    ]
    rules = dispatched_rules(GEMM, [*rows, product(2, depth=9216)])
    assert [(r.axes, r.basis) for r in rules] == [
        ({"M": 1, "K": 2560, "N": 9216}, "measured rows 4b-M1-random, 4b-M1-exact"),
        ({"M": 8, "K": 2560, "N": 9216}, "measured rows 4b-M8-random"),
        ({"M": 2, "K": 9216, "N": 9216}, "measured rows 4b-M2-random"),
    ]
    require_within(rules, GEMM.callable)


@given(st.dictionaries(st.tuples(st.integers(1, 64), st.sampled_from(["a", "b"])), st.sampled_from(VERDICTS)))
def test_no_batch_with_a_row_that_is_not_faster_is_ever_inside(verdicts: dict[tuple[int, str], str]) -> None:
    """Whatever was measured: ends are measured faster batches, and no range covers a measured one that is not."""
    rows = [measured(batch, verdict, kind) for (batch, kind), verdict in verdicts.items()]
    bad = {r.axes["B"] for r in rows if r.verdict != "faster"}
    good = {r.axes["B"] for r in rows} - bad
    found = ranges(rows)
    assert all({low, high} <= good and not any(low <= b <= high for b in bad) for low, high in found)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(found))
