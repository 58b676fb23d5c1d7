"""The parts that all gate tables are made of."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.gate import KINDS, Limits, Rising, check_floors, check_kind, exact_gates


def test_known_kinds_and_floors_pass() -> None:
    """Both kinds of capture have limits, and a floor may be 0."""
    for kind in KINDS:
        check_kind("an.op", kind)
    check_floors("an.op", 0.0, 1e-3)


def test_another_kind_is_refused_by_name() -> None:
    """The error says which op was asked, what was given and what is allowed."""
    with pytest.raises(ParameterError, match=r"an\.op: kind is 'made up'; allowed: 'real', 'synthetic'"):
        check_kind("an.op", "made up")


@pytest.mark.parametrize(
    ("floor", "row_floor", "words"),
    [
        (-1e-9, 0.0, "floor is -1e-09"),
        (float("nan"), 0.0, "floor is nan"),
        (0.0, float("inf"), "row_floor is inf"),
    ],
)
def test_impossible_floors_are_refused(floor: float, row_floor: float, words: str) -> None:
    """A floor is a distance: finite and not negative."""
    with pytest.raises(
        ParameterError, match=f"an.op: {words}; allowed: a finite number of at least 0. Mend the oracle."
    ):
        check_floors("an.op", floor, row_floor)


def test_limits_rise_with_the_floor() -> None:
    """Each is its number until the floor times its factor is more; the worst row falls back to what the whole has."""
    plain = Rising("an.op", 1e-3, 2.0)
    assert plain.limits("real", 1e-4) == plain.limits("synthetic", 5e-4) == Limits(1e-3, 1e-3)
    assert plain.limits("real", 1e-3, 4e-3) == Limits(2e-3, 8e-3)
    assert plain.limits("real", 1e-3) == Limits(2e-3, 2e-3)
    apart = Rising("an.op", 1e-3, 2.0, row_error=1e-2, row_factor=3.0, updated_error=1e-6)
    assert apart.limits("real", 1e-4) == Limits(1e-3, 1e-2)
    assert apart.limits("real", 1e-3, 4e-3) == Limits(2e-3, pytest.approx(1.2e-2))
    assert apart.updated_limit("real", 1e-9) == 1e-6
    assert apart.updated_limit("synthetic", 1e-3) == plain.updated_limit("synthetic", 1e-3) == 2e-3


def test_a_row_may_have_a_number_or_a_factor_of_its_own() -> None:
    """What is not said of the worst row is taken from the whole."""
    assert Rising("an.op", 1e-3, 2.0, row_error=1e-2).limits("real", 0.0, 1e-2) == Limits(1e-3, 2e-2)
    assert Rising("an.op", 1e-3, 2.0, row_factor=3.0).limits("real", 0.0, 1e-3) == Limits(1e-3, pytest.approx(3e-3))
    with pytest.raises(ParameterError, match=r"an\.op: row_floor is -1"):
        Rising("an.op", 1e-3, 2.0, row_factor=3.0).limits("real", 0.0, -1)


def test_exact_gates_let_no_element_pass() -> None:
    """All are 0 for both kinds, in the order of the checks, in the words that were given."""
    found = exact_gates(guards="elements in the gaps")
    assert [g.gate for g in found] == ["output_written", "output_finite", "guards", "inputs_unchanged", "repeat_bits"]
    assert {(g.real, g.synthetic) for g in found} == {(0.0, 0.0)}
    assert [g.metric for g in found if g.gate == "guards"] == ["elements in the gaps"]
