"""The parts that all gate tables are made of."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.gate import KINDS, check_floors, check_kind


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
