"""The figure: a panel a size, a line an arm and mode, and its title's numbers."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.projection.figure import fusion_speedup
from kda_lab.projection.plan import Cell
from kda_lab.projection.results import Result


def result(attn_tp: int, tokens: int, arm: str, mode: str, speedup: float) -> Result:
    """A result that says this speedup."""
    return Result(
        Cell(attn_tp, tokens, mode), arm, "serial", 10 / speedup, 10.0, speedup, speedup * 0.98, speedup * 1.02, 0.01,
        "faster", 0.6, 5.0, None, None,
    )  # fmt: skip


RESULTS = [
    result(size, tokens, arm, mode, speed)
    for size in (1, 8)
    for tokens in (1, 16, 256)
    for arm, mode, speed in (("three", "graph", 1.1), ("three_side", "graph", 1.3), ("three", "eager", 1.6))
]


def test_lines_panels_and_title() -> None:
    """Three lines in each of two panels; geometric means in the title; foot and band in words."""
    picture = fusion_speedup(RESULTS, "a foot")
    assert len(picture.axes) == 2
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["attention parallel 1", "attention parallel 8"]
    assert picture.title == (
        "Projection fusion, geomean over five GEMMs: three, graph 1.10×; three + side, graph 1.30×; three, eager 1.60×"
    )
    drawn = [line.get_ydata().tolist() for line in picture.axes[0].lines if len(line.get_xdata()) == 3]
    assert drawn == [[1.1] * 3, [1.3] * 3, [1.6] * 3]
    words = [text.get_text() for text in picture.texts]
    assert "a foot" in words
    assert any("A/A difference" in word for word in words)


def test_a_line_may_be_absent_from_a_panel() -> None:
    """A size whose cells were not reached in one mode lacks that line and nothing else."""
    partial = [r for r in RESULTS if r.cell.attn_tp == 1 or r.cell.mode == "graph"]
    picture = fusion_speedup(partial)
    assert [sum(len(line.get_xdata()) == 3 for line in axes.lines) for axes in picture.axes] == [3, 2]


def test_nothing_to_draw_is_refused() -> None:
    """Without a measured cell there is no figure."""
    with pytest.raises(ParameterError, match="results is empty; allowed: at least one measured cell"):
        fusion_speedup([])
