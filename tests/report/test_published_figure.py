"""Published against recomputed numbers: strips of those that agree, named rows of the others."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report import style
from kda_lab.report.published_figure import PublishedNumber, published, published_title

NUMBERS = [
    PublishedNumber("a", "one", "+2.19%", 2.1857, -0.43, "agrees"),
    PublishedNumber("a", "two", "-1.00%", -1.00526, -0.526, "rounding"),
    PublishedNumber("b", "three", "12", 9.0, -3.0, "disagrees"),
]


def test_the_title_counts() -> None:
    """Three kinds, in one sentence."""
    title = "Of 3 derived numbers 1 agree to the printed digit, 1 within the rounding of their inputs, 1 do not"
    assert published_title(NUMBERS) == title


def test_only_what_does_not_agree_is_named() -> None:
    """With two digits more than were printed, so that the difference shows."""
    svg = style.svg_text(published(NUMBERS, foot="source"))
    assert "two: −1.00%, inputs give −1.0053%" in svg
    assert "three: 12, inputs give 9.00" in svg
    assert "one:" not in svg


def test_the_bytes_are_the_same() -> None:
    """Twice the same picture, and a mark a number."""
    first, second = published(NUMBERS), published(NUMBERS)
    assert style.svg_text(first) == style.svg_text(second)
    (axes,) = first.axes
    assert sorted(float(line.get_xdata()[0]) for line in axes.lines) == [-3.0, -0.526, -0.43]


def test_no_number_is_refused() -> None:
    """An empty figure would say that all agree."""
    with pytest.raises(ParameterError, match="numbers are empty; allowed: at least one published number"):
        published([])
