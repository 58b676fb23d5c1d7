"""The speedup figure says what the records say."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report import figures
from kda_lab.report.style import VERDICT_STYLE, svg_text
from kda_lab.timing.statistics import RowResult

Make = Callable[..., RowResult]


def rows_of_each_verdict(one_row: Make) -> list[RowResult]:
    return [
        one_row(row="tp1-a"),
        one_row(row="tp1-b", ratio=0.5, low=0.45, high=0.55, arm_us=40.0, verdict="slower"),
        one_row(row="tp2-c", ratio=1.0, low=0.995, high=1.005, arm_us=20.0, verdict="same"),
        one_row(
            row="tp2-d", ratio=1.02, low=0.98, high=1.06, arm_us=19.6, verdict="ambiguous", reason="crosses the band"
        ),
        one_row(
            row="tp2-e",
            ratio=None,
            low=None,
            high=None,
            arm_us=None,
            verdict="",
            state="refused",
            reason="no <driver> & co",
        ),
    ]


def test_title_counts_verdicts_and_gives_geomean_minimum_and_count(one_row: Make) -> None:
    """The title states the result; rows without a verdict are counted, not hidden."""
    title = figures.speedup(rows_of_each_verdict(one_row), candidate="grouped").title
    assert title == (
        "demo.attention: grouped against per_head: 1 of 5 rows faster beyond noise, 1 slower, 1 same, 1 ambiguous, "
        "1 without a verdict; geomean 1.00×, min 0.500×, n = 4"
    )


def test_rows_keep_case_order_under_their_topology(one_row: Make) -> None:
    """Rows stand in the order of the records, under one heading a topology."""
    text = svg_text(figures.speedup(rows_of_each_verdict(one_row), candidate="grouped", foot="on a card"))
    order = [text.index(t) for t in ("tp1 (HQ", "tp1-a", "tp1-b", "tp2 (HQ", "tp2-c", "tp2-d", "tp2-e")]
    assert order == sorted(order)
    assert "on a card" in text


def test_each_row_ends_with_its_numbers_and_the_verdict_in_words(one_row: Make) -> None:
    """Ratio with interval, both times, and the verdict as a word; a refused row gives its reason."""
    text = svg_text(figures.speedup(rows_of_each_verdict(one_row), candidate="grouped"))
    for words in (
        "2.00 [1.90, 2.10]",
        ">20.0<",
        ">40.0<",
        "faster",
        "slower",
        "same",
        "ambiguous",
        "no &lt;driver&gt; &amp; co",
    ):
        assert words in text


def test_verdicts_differ_in_shape_and_colour(one_row: Make) -> None:
    """Each verdict is drawn with its own marker and colour pair; a row without verdict has no mark."""
    axes = figures.speedup(rows_of_each_verdict(one_row), candidate="grouped").axes[0]
    marks = [(x.get_marker(), x.get_markerfacecolor()) for x in axes.lines if x.get_marker() != "None"]
    assert marks == [(VERDICT_STYLE[v]["marker"], VERDICT_STYLE[v]["markerfacecolor"]) for v in VERDICT_STYLE]


def test_a_warm_row_is_not_drawn_as_a_ratio(one_row: Make) -> None:
    """A ratio without a verdict is neither marked nor printed nor counted."""
    rows = [one_row(), one_row(row="tp1-w", ratio=9.99, verdict="", state="warm", reason="above the copy rate")]
    picture = figures.speedup(rows, candidate="grouped")
    assert ">9.99" not in svg_text(picture) and "n = 1" in picture.title


def test_the_band_is_each_rows_own_noise(one_row: Make) -> None:
    """Every row has a band from 1 − noise to 1 + noise, also where the noise is huge."""
    rows = [one_row(row="tp1-a", noise=0.02), one_row(row="tp1-b", noise=3.0)]
    bands = [(p.get_x(), p.get_x() + p.get_width()) for p in figures.speedup(rows, candidate="grouped").axes[0].patches]  # type: ignore[attr-defined]
    assert bands == [pytest.approx((0.98, 1.02)), pytest.approx((0.1, 4.0))]


def test_without_a_control_the_figure_says_so(one_row: Make) -> None:
    """A run without an A/A arm has no noise floor, and the figure says it."""
    row = one_row(noise=None, verdict="ambiguous", reason="no band")
    assert "no A/A arm was measured" in svg_text(figures.speedup([row], candidate="grouped"))


def test_another_baseline_than_the_records_is_refused(one_row: Make) -> None:
    """Ratios cannot be relabelled: the baseline asked for must be the one that was divided."""
    with pytest.raises(
        ParameterError, match=r"report: baseline is 'torch'; allowed: per_head\. The ratios in the records"
    ):
        figures.speedup([one_row()], candidate="grouped", baseline="torch")


def test_nothing_measured_is_still_a_figure(one_row: Make) -> None:
    """An arm that was refused everywhere is drawn with its reasons."""
    row = one_row(ratio=None, low=None, high=None, arm_us=None, verdict="", state="refused", reason="no driver")
    assert (
        figures.speedup([row], candidate="grouped").title == "demo.attention: grouped has a verdict on none of 1 rows"
    )


def test_a_sweep_of_48_rows_stays_legible(sweep: list[RowResult]) -> None:
    """With 48 rows no two row labels overlap."""
    picture = figures.speedup(sweep, candidate="grouped")
    picture.draw_without_rendering()
    boxes = [
        t.get_window_extent()
        for t in picture.axes[0].texts
        if t.get_text().startswith("tp") and "(" not in t.get_text()
    ]
    assert len(boxes) == 48
    ordered = sorted(boxes, key=lambda b: -b.y0)
    assert all(a.y0 >= b.y1 for a, b in itertools.pairwise(ordered))
