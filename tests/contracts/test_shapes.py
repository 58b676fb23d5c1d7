"""Shape rules: what a range holds, how it is printed, and when one value lies within another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kda_lab.contracts.shapes import AxisRange, ShapeRule, always_multiple, holds, in_words, require_within


@st.composite
def extents(draw: Any) -> Any:
    """A number, a tuple of numbers, or a range that holds at least one."""
    kind = draw(st.sampled_from(["one", "list", "range"]))
    if kind == "one":
        return draw(st.integers(0, 40))
    if kind == "list":
        return tuple(draw(st.lists(st.integers(0, 40), min_size=1, max_size=5)))
    step, first = draw(st.integers(1, 9)), draw(st.integers(0, 40))
    inside = -(-first // step) * step
    return AxisRange(minimum=first, maximum=draw(st.integers(inside, inside + 40)), multiple_of=step)


def held(value: Any) -> set[int]:
    """Every extent up to 100 that a value holds, by asking for each."""
    return {extent for extent in range(101) if holds(value, extent)}


def test_a_range_of_multiples_holds_multiples_only() -> None:
    """The multiples count from zero, not from the minimum."""
    found = AxisRange(minimum=10, maximum=50, multiple_of=16)
    assert held(found) == {16, 32, 48}
    assert (found.first, found.last, found.count) == (16, 48, 3)


def test_a_range_is_printed_with_its_step() -> None:
    """A step of one is not worth a word."""
    assert str(AxisRange(minimum=1, maximum=16)) == "1..16"
    assert in_words(AxisRange(minimum=64, maximum=512, multiple_of=64)) == "64..512 (multiples of 64)"
    assert in_words((12, 24)) == "12|24"
    assert in_words(24) == "24"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"minimum": 17}, "minimum 17 is above maximum 16"),
        ({"multiple_of": 0}, "greater than or equal to 1"),
        ({"multiple_of": 32}, "no multiple of 32 lies from 1 to 16"),
    ],
)
def test_an_empty_range_is_refused(changes: dict[str, int], words: str) -> None:
    """A range that no extent can be in is a mistake of its writer."""
    with pytest.raises(ValidationError, match=words):
        AxisRange(**{"minimum": 1, "maximum": 16, **changes})


@given(narrow=extents(), wide=extents())
def test_within_means_every_extent_is_within(narrow: Any, wide: Any) -> None:
    """A rule lies within another exactly when each extent that it holds is held by the other."""
    within = True
    try:
        require_within([ShapeRule(axes={"A": narrow})], [ShapeRule(axes={"A": wide})])
    except ValueError as error:
        assert "allowed: one that lies within one callable rule" in str(error)
        within = False
    assert within == (held(narrow) <= held(wide))


@given(value=extents(), divisor=st.integers(1, 9))
def test_always_multiple_never_says_yes_wrongly(value: Any, divisor: int) -> None:
    """Where it says yes every extent is a multiple; for numbers and lists it is exact."""
    every = all(extent % divisor == 0 for extent in held(value))
    found = always_multiple(value, divisor)
    assert found <= every
    if not isinstance(value, AxisRange):
        assert found == every
