"""The grammar of dimensions: what it reads, what it refuses, and that reading and computing agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.contracts.dimensions import AxisDimension, axis_of, extent_of, parse_dimension


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("B", ("B", 0, 1, 1)),
        ("B+1", ("B", 1, 1, 1)),
        ("HKV-12", ("HKV", -12, 1, 1)),
        ("k2+3", ("k2", 3, 1, 1)),
        ("K/16", ("K", 0, 16, 1)),
        ("ceil128(M)", ("M", 0, 1, 128)),
        ("ceil4(K/16)", ("K", 0, 16, 4)),
        ("ceil4", ("ceil4", 0, 1, 1)),
    ],
)
def test_a_dimension_is_an_axis_with_at_most_one_change_of_each_kind(text: str, parts: tuple[str, int]) -> None:
    """An axis name may carry a constant or a divisor, and be rounded up."""
    assert parse_dimension(text) == AxisDimension(text, *parts)
    assert axis_of(text) == parts[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1B",
        "B*2",
        "B+",
        "B+C",
        "B + 1",
        "B+1+1",
        "K/0",
        "K/",
        "K/2+1",
        "ceil0(M)",
        "ceil1(M)",
        "ceil(M)",
        "ceil4(M+1)",
        "4(M)",
    ],
)
def test_other_expressions_are_refused(text: str) -> None:
    """Anything beyond the grammar is an error that shows the text and the grammar."""
    with pytest.raises(ValueError, match=r"a dimension is '.*'; allowed: a number, or an axis name like B, B\+1"):
        parse_dimension(text)


@pytest.mark.parametrize(
    ("dimension", "extent"),
    [(7, 7), ("M", 9), ("M+1", 10), ("M-1", 8), ("K/16", 5), ("ceil128(M)", 128), ("ceil4(K/16)", 8), ("ceil9(M)", 9)],
)
def test_an_extent_follows_from_its_axis(dimension: int | str, extent: int) -> None:
    """A dimension is computed from known axes: nine rows fill one block of 128, five scales two groups of four."""
    assert extent_of(dimension, {"M": 9, "K": 80}) == extent


def test_a_division_with_a_rest_has_no_extent() -> None:
    """An exact division refuses a rest by name; a container rounds up, since it must hold the partial group."""
    with pytest.raises(ValueError, match=r"K is 40; allowed: a multiple of 16, for K/16"):
        extent_of("K/16", {"K": 40})
    assert extent_of("ceil3(K/16)", {"K": 40}) == 3


def test_an_unknown_axis_is_a_key_error() -> None:
    """Nothing is guessed for an axis that is not given."""
    with pytest.raises(KeyError, match="M"):
        extent_of("M", {"K": 1})


@given(
    extent=st.integers(0, 10**9),
    offset=st.integers(-9, 9),
    divisor=st.sampled_from([1, 2, 3, 16]),
)
def test_an_axis_is_read_back_from_what_shows_it(extent: int, offset: int, divisor: int) -> None:
    """Reading the axis from a dimension that shows it undoes computing the dimension from the axis."""
    text = f"A/{divisor}" if divisor > 1 else f"A{offset:+d}" if offset else "A"
    dimension = parse_dimension(text)
    shown = dimension.extent(extent)
    assert dimension.shows_axis
    assert (shown is None) == (extent % divisor != 0)
    if shown is not None:
        assert dimension.axis_extent(shown) == extent


@given(extent=st.integers(0, 10**9), divisor=st.integers(1, 64), multiple=st.integers(2, 256))
def test_a_rounded_dimension_is_the_least_multiple_that_holds_the_axis(
    extent: int, divisor: int, multiple: int
) -> None:
    """It is a multiple, holds every group of the axis, and one step less would not."""
    dimension = parse_dimension(f"ceil{multiple}(A/{divisor})")
    rounded = dimension.extent(extent)
    assert not dimension.shows_axis
    assert rounded is not None
    assert rounded % multiple == 0
    assert rounded * divisor >= extent > (rounded - multiple) * divisor


@pytest.mark.parametrize("text", ["B+\u0661", "K/\u0661", "K/1\u0666", "ceil\u0664(K)", "ceil4(K/\uff11)", "B+\u00b2"])
def test_digits_of_other_scripts_are_refused(text: str) -> None:
    """Only 0 to 9 are digits, though Python would read others as numbers too."""
    with pytest.raises(ValueError, match=r"a dimension is '.*'; allowed: a number, or an axis name"):
        parse_dimension(text)


@pytest.mark.parametrize("form", ["B+{}", "B-{}", "K/{}", "ceil{}(K)", "ceil4(K/{})"])
def test_numbers_are_bounded(form: str) -> None:
    """65536 is the largest constant, divisor and multiple; a longer one is refused, however long."""
    assert parse_dimension(form.format(65536)).text == form.format(65536)
    for number in ("65537", "9" * 9, "9" * 10, "9" * 5000):
        with pytest.raises(ValueError, match=r"a dimension is '.{1,80}'; allowed: .* with numbers up to 65536"):
            parse_dimension(form.format(number))
