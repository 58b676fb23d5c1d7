"""Speedup over batch: one panel a topology, one line a length class."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report import figures
from kda_lab.report.style import svg_text
from kda_lab.timing.statistics import RowResult


def test_panels_and_lines(sweep: list[RowResult]) -> None:
    """Two topologies give two panels, each with the four classes named at their ends and every batch on x."""
    picture = figures.speedup_by_batch(sweep, candidate="grouped", foot="on a card")
    assert [a.get_title(loc="left") for a in picture.axes] == ["tp1 (HQ=24, HKV=2)", "tp2 (HQ=12, HKV=1)"]
    for axes in picture.axes:
        assert sorted(t.get_text() for t in axes.texts) == ["medium", "mixed", "saturated", "short"]
        assert sum(len(x.get_xdata()) == 6 for x in axes.lines) == 4  # type: ignore[arg-type]
    assert "on a card" in svg_text(picture)


def test_rows_without_batch_or_verdict_cannot_be_drawn(one_row: Callable[..., RowResult]) -> None:
    """Without a batch axis or a verdict there is nothing on x, and the message says so."""
    with pytest.raises(ParameterError, match="grouped has no row with a verdict and a batch axis 'B'"):
        figures.speedup_by_batch([one_row(axes={"HQ": 1})], candidate="grouped")


def test_rows_of_a_matrix_product_are_drawn_over_m(one_row: Callable[..., RowResult]) -> None:
    """An op with M and kind has M on x and its kinds as lines."""
    rows = [
        one_row(row=f"4b_down-M{m}-{kind}", axes={"M": m, "N": 2560, "K": 9216, "kind": kind})
        for m in (1, 8, 9)
        for kind in ("random", "fp32")
    ]
    axes = figures.speedup_by_batch(rows, candidate="grouped").axes[0]
    assert axes.get_xlabel() == "rows M (log scale)"
    assert sorted(t.get_text() for t in axes.texts) == ["fp32", "random"]


def test_each_baseline_is_a_line(one_row: Callable[..., RowResult]) -> None:
    """Against several baselines each gives a line, and the title their geomeans, minima and counts."""
    axes = [{"M": m, "kind": "random"} for m in (1, 8)]
    first = [one_row(row=f"a-M{x['M']}", axes=x) for x in axes]
    second = [one_row(row=f"a-M{x['M']}", axes=x, baseline="plain", ratio=4.0, low=3.9, high=4.1) for x in axes]
    refused = [one_row(row="a-M1", axes=axes[0], baseline="library", ratio=None, verdict="", state="refused")]
    picture = figures.speedup_over_each([first, second, refused], candidate="grouped")
    assert sorted(t.get_text() for t in picture.axes[0].texts) == ["per_head", "plain"]
    assert picture.title == (
        "demo.attention: grouped, geomean: 2.00× over per_head (min 2.00×, n = 2), 4.00× over plain (min 4.00×, n = 2)"
    )
    both = [*first, *[one_row(row=f"a-M{x['M']}-fp32", axes={**x, "kind": "fp32"}) for x in axes]]
    lines = figures.speedup_over_each([both], candidate="grouped").axes[0].texts
    assert sorted(t.get_text() for t in lines) == ["per_head fp32", "per_head random"]
    with pytest.raises(ParameterError, match="grouped has no row with a verdict and a batch axis 'M'"):
        figures.speedup_over_each([refused], candidate="grouped")
