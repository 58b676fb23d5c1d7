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
