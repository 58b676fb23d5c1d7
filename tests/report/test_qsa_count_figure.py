"""The saw-tooth picture draws the rule, marks the run's rows, and says how many of them lie on it."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report.qsa_count_figure import CountedRow, counts_title, selected_counts
from kda_lab.report.style import svg_text

BUDGET = 64


def rule(length: int) -> int:
    """16 blocks of 4 and the tail."""
    return min(length // 4, 16) * 4 + length % 4


def test_the_title_counts_the_rows_on_the_curve() -> None:
    """A row beside the curve shows."""
    rows = [CountedRow(67, 67), CountedRow(68, 64), CountedRow(70, 67)]
    assert counts_title(rule, BUDGET, rows) == (
        "A saturated row attends to 64 to 67 tokens, never always 67; 2 of 3 rows of this run lie on the curve"
    )


def test_curve_teeth_and_marks_are_drawn() -> None:
    """The right panel goes one length after the other; the peaks and troughs carry their numbers."""
    picture = selected_counts(rule, BUDGET, 200, [CountedRow(200, 64), CountedRow(66, 66)], foot="CPU")
    whole, near = picture.axes
    curve = near.lines[0].get_xydata()
    assert [(int(x), int(y)) for x, y in curve] == [(n, rule(n)) for n in range(BUDGET - 12, BUDGET + 13)]
    assert [t.get_text() for t in near.texts] == ["67", "64", "67", "64", "67"]
    assert [t.get_text() for t in whole.texts] == ["dense attention", "200 → 64", "66 → 66"]
    # Of the run's two rows one lies near the budget.
    assert len(near.lines) == 2
    assert "CPU" in svg_text(picture)


def test_a_long_context_is_drawn_with_few_points() -> None:
    """At most about two thousand points, whatever the context."""
    picture = selected_counts(rule, BUDGET, 262_144, [CountedRow(8, 8)])
    assert len(picture.axes[0].lines[0].get_xydata()) <= 2002


def test_without_rows_there_is_no_picture() -> None:
    """The words say what is missing."""
    with pytest.raises(ParameterError, match="rows is empty; allowed: at least one counted row"):
        selected_counts(rule, BUDGET, 100, [])
