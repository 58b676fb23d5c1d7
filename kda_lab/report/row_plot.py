"""A figure of horizontal rows: labels left, one log axis, text columns right, title above, foot below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from matplotlib.transforms import Transform, blended_transform_factory

from kda_lab.report import style
from kda_lab.report.frame import FOOT_LINE_IN, MARGIN_IN, NOTE_LINE_IN, TITLE_LINE_IN, write_foot, write_head
from kda_lab.report.style import GREY, HAIR, INK, RULE, SMALL_PT, TEXT_PT, TITLE_PT, Picture

TOP_IN, GAP_IN, AXIS_IN, ROW_IN = 0.16, 0.14, 3.1, 0.19


@dataclass(frozen=True)
class Column:
    """A text column right of the axis: its head and one text a row, right-aligned unless said otherwise."""

    head: str
    cells: Sequence[str]
    align: str = "right"

    @property
    def width_in(self) -> float:
        return max(style.text_width_in(t, TEXT_PT, "bold") for t in (self.head, *self.cells))


@dataclass(frozen=True)
class Layout:
    """What a row figure shows beside its marks. A row whose label is None is a gap with a heading."""

    title: str
    labels: Sequence[str | None]
    headings: Sequence[str]
    """One a row; printed in bold where the label is None."""
    columns: Sequence[Column]
    axis_label: str
    foot: str
    notes: Sequence[str] = field(default_factory=tuple)
    """Short lines between title and rows that explain the marks."""


@dataclass(frozen=True)
class RowPlot:
    """The drawn frame; marks go on `axes`, whose y is the row's index counted from the top."""

    picture: Picture
    axes: Axes
    columns_x: tuple[float, ...]
    """x of each text column in figure fractions, at its aligned edge."""

    @property
    def across(self) -> Transform:
        """x in figure fractions, y in rows."""
        return blended_transform_factory(self.picture.transFigure, self.axes.transData)

    def write(
        self, column: int, row: int, text: str, *, color: str = INK, bold: bool = False, align: str = "right"
    ) -> None:
        """Write one cell of a text column."""
        weight = "bold" if bold else "normal"
        style.plain(
            self.axes.text(
                self.columns_x[column], row, text, transform=self.across, ha=align, va="center", color=color,
                fontsize=TEXT_PT, fontweight=weight,
            )
        )  # fmt: skip


def row_plot(layout: Layout, limits: tuple[float, float]) -> RowPlot:
    """Draw the frame of a row figure: everything but the marks and the cells.

    Args:
        layout: words of the figure.
        limits: left and right end of the log axis, both > 0.
    """
    count = len(layout.labels)
    label_in = max(
        style.text_width_in(label or heading, TEXT_PT, "normal" if label else "bold")
        for label, heading in zip(layout.labels, layout.headings, strict=True)
    )
    axis_left = MARGIN_IN + label_in + GAP_IN
    edges, right = _column_edges(layout.columns, axis_left + AXIS_IN + GAP_IN)
    width = right + MARGIN_IN
    title = style.wrapped(layout.title, TITLE_PT, width - 2 * MARGIN_IN, "bold")
    foot = style.wrapped(layout.foot, SMALL_PT, width - 2 * MARGIN_IN) if layout.foot else []
    top = TOP_IN + TITLE_LINE_IN * len(title) + NOTE_LINE_IN * len(layout.notes) + 0.34
    bottom = 0.56 + FOOT_LINE_IN * len(foot) + 0.08
    height = top + ROW_IN * count + bottom
    picture = style.new_picture(width, height, layout.title)
    axes = picture.add_axes((axis_left / width, bottom / height, AXIS_IN / width, ROW_IN * count / height))
    plot = RowPlot(picture, axes, tuple(e / width for e in edges))
    _dress_axis(axes, limits, count, layout.axis_label)
    _write_frame(plot, layout, title, foot)
    return plot


def _column_edges(columns: Sequence[Column], start_in: float) -> tuple[list[float], float]:
    edges, x = [], start_in
    for column in columns:
        edges.append(x if column.align == "left" else x + column.width_in)
        x += column.width_in + 0.2
    return edges, x - 0.2


def _dress_axis(axes: Axes, limits: tuple[float, float], count: int, label: str) -> None:
    axes.set_xscale("log")
    axes.set_xlim(*limits)
    axes.set_ylim(count - 0.5, -0.5)
    axes.yaxis.set_major_locator(NullLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(label, fontsize=TEXT_PT)
    axes.tick_params(labelsize=TEXT_PT)


def _write_frame(plot: RowPlot, layout: Layout, title: Sequence[str], foot: Sequence[str]) -> None:
    axes, width = plot.axes, plot.picture.get_size_inches()[0]
    write_head(plot.picture, title, layout.notes, TOP_IN)
    write_foot(plot.picture, foot)
    for number, column in enumerate(layout.columns):
        plot.write(number, -1, column.head, color=GREY, align=column.align)
    left = axes.get_position().x0 - GAP_IN / width
    for index, (label, heading) in enumerate(zip(layout.labels, layout.headings, strict=True)):
        text, weight = (heading, "bold") if label is None else (label, "normal")
        x, align = (MARGIN_IN / width, "left") if label is None else (left, "right")
        if label is not None:
            axes.axhline(index, color=HAIR, linewidth=0.5, zorder=0)
        style.plain(
            axes.text(x, index, text, transform=plot.across, ha=align, va="center", fontsize=TEXT_PT, fontweight=weight)
        )


def set_ticks(axes: Axes, values: Sequence[float], labels: Sequence[str], anchor: float) -> None:
    """Label those ticks of a log axis that lie inside and do not touch; the one nearest `anchor` first."""
    low, high = axes.get_xlim()
    position = axes.get_position()
    width_in = (position.x1 - position.x0) * style.size_in(axes)[0]
    scale = width_in / math.log(high / low)
    inside = [(v, t) for v, t in zip(values, labels, strict=True) if low <= v <= high]
    kept: list[tuple[float, str]] = []
    for value, text in sorted(inside, key=lambda item: _importance(item[0], anchor)):
        room = [(style.text_width_in(text, TEXT_PT) + style.text_width_in(t, TEXT_PT)) / 2 + 0.1 for _, t in kept]
        if all(abs(math.log(value / v)) * scale >= r for (v, _), r in zip(kept, room, strict=True)):
            kept.append((value, text))
    kept.sort()
    axes.xaxis.set_major_locator(FixedLocator([v for v, _ in kept]))
    axes.xaxis.set_major_formatter(FixedFormatter([t for _, t in kept]))


def _importance(value: float, anchor: float) -> tuple[int, float]:
    """Sort key: the anchor, then powers of ten, then 2 and 5, then the rest, each outwards from the anchor."""
    distance = abs(math.log(value / anchor))
    if distance < 1e-9:
        return (0, 0.0)
    leading = round(value / 10 ** math.floor(math.log10(value) + 1e-12), 6)
    return ({1.0: 1, 2.0: 2, 5.0: 2}.get(leading, 3), distance)
