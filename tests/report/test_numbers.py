"""Numbers as people read them: significant digits, dashes, spans."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.report.numbers import DASH, measured, percent, scientific, significant, span, times


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (11.23, "11.2"),
        (2611.0, "2610"),
        (0.41, "0.410"),
        (9.996, "10.0"),
        (999.6, "1000"),
        (0.0, "0"),
        (-1.234, "-1.23"),
    ],
)
def test_three_significant_digits(value: float, text: str) -> None:
    """A number keeps three significant digits, also where rounding adds a place."""
    assert significant(value) == text


@given(st.floats(min_value=1e-6, max_value=1e9))
def test_significant_stays_within_half_a_unit_of_the_third_digit(value: float) -> None:
    """Whatever the size, the printed number differs by at most half a unit in the third digit."""
    assert math.isclose(float(significant(value)), value, rel_tol=5.1e-3)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_was_not_measured_is_a_dash(value: float | None) -> None:
    """None, NaN and infinity print as a dash in every format."""
    assert {significant(value), scientific(value), times(value), percent(value)} == {DASH}


def test_truth_values_and_text_are_no_measurements() -> None:
    """Only finite numbers count as measured."""
    assert [measured(v) for v in (True, "1", None, 1, 0.5)] == [False, False, False, True, True]


def test_other_formats() -> None:
    """Errors are scientific, ratios carry a sign, shares are percent."""
    assert (scientific(0.00163), scientific(0.0), times(2.07), percent(0.034)) == ("1.63e-3", "0", "2.07×", "3.40")


def test_span_joins_only_different_ends() -> None:
    """A span prints one number where both ends print alike, and nothing without values."""
    assert (span([1980.0, 1980.0], "MHz"), span([1755, 1980], "MHz"), span([], "MHz")) == (
        "1980 MHz",
        "1755–1980 MHz",
        "",
    )
