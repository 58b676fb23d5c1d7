"""The saw-tooth: how many tokens a row attends to, by the length of its context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from kda_lab.errors import ParameterError
from kda_lab.report import style
from kda_lab.report.frame import undress, write_around
from kda_lab.report.style import BLUE, GREY, SMALL_PT, TEXT_PT, VERMILLION, Picture

WIDTH_IN, HEIGHT_IN = 10.2, 3.1
NOTE = "selected tokens of a row;  orange: rows of this run, counted in what the kernel wrote"
NEAR = 12
"""Lengths on either side of the first saturated one that the right panel shows one by one."""
LABELLED = 4
"""Rows of the run whose numbers are written beside their marks, at most."""


@dataclass(frozen=True)
class CountedRow:
    """What an expansion left of one row, counted in its tokens."""

    length: int
    count: int
    """Valid tokens that the stage wrote."""


def selected_counts(
    rule: Callable[[int], int], budget: int, context: int, rows: Sequence[CountedRow], *, foot: str = ""
) -> Picture:
    """The rule as a curve, over the whole context and around the budget; the run's own rows as marks on it.

    Args:
        rule: length of a context to the number of selected tokens.
        budget: tokens of the chosen blocks; the right panel is centred on it.
        context: longest length that the left panel shows.
        rows: what the run counted, at least one.
        foot: one sentence on device and data.

    Raises:
        ParameterError: no row is given.
    """
    if not rows:
        raise ParameterError("report", "rows is empty; allowed: at least one counted row.")
    title = counts_title(rule, budget, rows)
    with style.settings():
        picture = style.new_picture(WIDTH_IN, HEIGHT_IN, title)
        boxes = ((0.6, 4.3), (5.6, 4.35))
        whole, near = (picture.add_axes((x / WIDTH_IN, 0.21, w / WIDTH_IN, 0.58)) for x, w in boxes)
        _draw_whole(whole, rule, max(context, budget + NEAR), rows)
        _draw_near(near, rule, budget, rows)
        write_around(picture, [title], [foot], NOTE)
    return picture


def counts_title(rule: Callable[[int], int], budget: int, rows: Sequence[CountedRow]) -> str:
    """The range of a saturated row, and whether the run's rows lie on the curve."""
    full = [rule(length) for length in range(budget, budget + 16)]
    right = sum(rule(row.length) == row.count for row in rows)
    return f"A saturated row attends to {min(full)} to {max(full)} tokens, never always {max(full)}; {right} of {len(rows)} rows of this run lie on the curve"


def _draw_whole(axes: Axes, rule: Callable[[int], int], context: int, rows: Sequence[CountedRow]) -> None:
    step = max(1, context // 2000)
    lengths = list(range(1, context + 1, step))
    axes.plot(lengths, [rule(n) for n in lengths], color=BLUE, linewidth=1)
    axes.plot(lengths, lengths, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    top = max(rule(n) for n in lengths) * 1.25
    style.plain(axes.text(top * 1.01, top * 0.97, "dense attention", fontsize=SMALL_PT, color=GREY, va="top"))
    _mark(axes, rows)
    axes.set_xlim(0, context * 1.02)
    axes.set_ylim(0, top)
    axes.set_xlabel("length of the context, tokens", fontsize=TEXT_PT)
    undress(axes)


def _draw_near(axes: Axes, rule: Callable[[int], int], budget: int, rows: Sequence[CountedRow]) -> None:
    lengths = list(range(budget - NEAR, budget + NEAR + 1))
    axes.plot(lengths, [rule(n) for n in lengths], color=BLUE, linewidth=0.8, marker="o", markersize=3)
    for row in rows:
        if lengths[0] <= row.length <= lengths[-1]:
            axes.plot([row.length], [row.count], marker="D", markersize=5, color=VERMILLION, linestyle="none", zorder=4)
    for length in lengths[1:-1]:
        low, here, high = (rule(n) for n in (length - 1, length, length + 1))
        # The teeth alone: where the count falls next, and where it has just fallen.
        if here > high or here < low:
            text = axes.annotate(str(here), (length, here), xytext=(0, 7 if here > high else -8), fontsize=SMALL_PT - 0.4,
                                 textcoords="offset points", ha="center", va="center", color=GREY)  # fmt: skip
            style.plain(text)
    axes.set_xlim(lengths[0] - 0.5, lengths[-1] + 0.5)
    axes.set_ylim(lengths[0] - 1, max(rule(n) for n in lengths) + 2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.set_xlabel("the same, one length after the other", fontsize=TEXT_PT)
    undress(axes)


def _mark(axes: Axes, rows: Sequence[CountedRow]) -> None:
    for number, row in enumerate(rows):
        axes.plot([row.length], [row.count], marker="D", markersize=5, color=VERMILLION, linestyle="none", zorder=4)
        if number < LABELLED:
            at_the_edge = row.length > 0.85 * max(r.length for r in rows)
            text = axes.annotate(f"{row.length} → {row.count}", (row.length, row.count), textcoords="offset points",
                                 xytext=(4, 6) if at_the_edge else (4, -13), ha="right" if at_the_edge else "left", fontsize=SMALL_PT, color=VERMILLION)  # fmt: skip
            style.plain(text)
