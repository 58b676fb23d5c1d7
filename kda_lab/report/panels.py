"""A grid of small log-log panels that share their scales, with lines labelled at their ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from kda_lab.report import style
from kda_lab.report.frame import FOOT_LINE_IN, MARGIN_IN, NOTE_LINE_IN, TITLE_LINE_IN, write_foot, write_head
from kda_lab.report.numbers import significant
from kda_lab.report.row_plot import set_ticks
from kda_lab.report.style import RULE, SMALL_PT, TEXT_PT, TITLE_PT, Picture

LABEL_LINE_IN = 0.125


@dataclass(frozen=True)
class Grid:
    """Words and sizes of a panel figure; panels are filled row by row."""

    title: str
    panel_titles: Sequence[str]
    columns: int
    x_label: str
    y_label: str
    foot: str
    label_in: float
    """Room for the labels right of each panel, in inches."""
    panel_width_in: float = 2.5
    panel_height_in: float = 1.75
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class EndLabel:
    """A line's name, wanted at the height `y` of its last point `x`."""

    text: str
    color: str
    x: float
    y: float


def panel_grid(grid: Grid, x_limits: tuple[float, float], y_limits: tuple[float, float]) -> tuple[Picture, list[Axes]]:
    """Draw the frame of a panel figure; one axes a panel title, all with the same log scales."""
    columns = min(grid.columns, len(grid.panel_titles))
    lines = math.ceil(len(grid.panel_titles) / columns)
    left, cell_w, cell_h = 0.55, grid.panel_width_in + grid.label_in, grid.panel_height_in + 0.52
    width = left + columns * cell_w + (columns - 1) * 0.38 + MARGIN_IN
    title = style.wrapped(grid.title, TITLE_PT, width - 2 * MARGIN_IN, "bold")
    foot = style.wrapped(grid.foot, SMALL_PT, width - 2 * MARGIN_IN) if grid.foot else []
    # The unit of y stands above the panels, since rotated text is hard to read.
    told = [t for note in (grid.y_label, *grid.notes) for t in style.wrapped(note, SMALL_PT, width - 2 * MARGIN_IN)]
    top = 0.3 + TITLE_LINE_IN * len(title) + NOTE_LINE_IN * len(told)
    bottom = 0.32 + FOOT_LINE_IN * len(foot)
    height = top + lines * cell_h + bottom
    picture = style.new_picture(width, height, grid.title)
    write_head(picture, title, told)
    write_foot(picture, foot)
    panels = []
    for number, name in enumerate(grid.panel_titles):
        row, column = divmod(number, columns)
        x_in = left + column * (cell_w + 0.38)
        y_in = height - top - row * cell_h - grid.panel_height_in - 0.14
        box = (x_in / width, y_in / height, grid.panel_width_in / width, grid.panel_height_in / height)
        axes = picture.add_axes(box)
        _dress(axes, name, x_limits, y_limits)
        if number + columns >= len(grid.panel_titles):
            axes.set_xlabel(grid.x_label, fontsize=TEXT_PT)
        panels.append(axes)
    return picture, panels


def _dress(axes: Axes, name: str, x_limits: tuple[float, float], y_limits: tuple[float, float]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*x_limits)
    axes.set_ylim(*y_limits)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.grid(color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("right", "top"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=SMALL_PT)
    style.plain(axes.set_title(name, loc="left", fontsize=TEXT_PT, fontweight="bold", pad=5))


def ticks(axes: Axes, x_values: Sequence[float], y_values: Sequence[float], y_unit: str = "") -> None:
    """Label x at `x_values` and y at those of `y_values` that lie inside and leave room between them."""
    set_ticks(axes, x_values, [_plain_number(v) for v in x_values], anchor=min(x_values))
    low, high = axes.get_ylim()
    per_log = _height_in(axes) / math.log(high / low)
    kept: list[float] = []
    inside = [v for v in y_values if low <= v <= high]
    if high / low > 1000:
        inside = [v for v in inside if _is_decade(v)]
    # Powers of ten (and so 1) first: they are what a reader looks for.
    for value in sorted(inside, key=lambda v: (v != 1, not _is_decade(v), v)):
        if all(abs(math.log(value / v)) * per_log >= 0.17 for v in kept):
            kept.append(value)
    kept.sort()
    axes.yaxis.set_major_locator(FixedLocator(kept))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{_plain_number(v)}{y_unit}" for v in kept]))


def _is_decade(value: float) -> bool:
    return abs(math.log10(value) - round(math.log10(value))) < 1e-9


def _plain_number(value: float) -> str:
    return f"{value:g}" if value >= 1 else significant(value, 2).rstrip("0").rstrip(".")


def _height_in(axes: Axes) -> float:
    position = axes.get_position()
    return float((position.y1 - position.y0) * style.size_in(axes)[1])


def label_ends(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write each line's name right of the panel at its last point, moved apart where names would touch."""
    if not labels:
        return
    low, high = axes.get_ylim()
    scale = _height_in(axes) / math.log(high / low)
    ordered = sorted(labels, key=lambda label: (label.y, label.text))
    wanted = [math.log(label.y / low) * scale for label in ordered]
    placed = spread(wanted, LABEL_LINE_IN, -0.05, _height_in(axes) + 0.05)
    for label, at in zip(ordered, placed, strict=True):
        y = low * math.exp(at / scale)
        style.plain(
            axes.annotate(
                label.text, xy=(label.x, label.y), xytext=(1.06, y), textcoords=axes.get_yaxis_transform(),
                va="center", ha="left", fontsize=SMALL_PT, color=label.color, annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": label.color, "linewidth": 0.5, "alpha": 0.6,
                            "shrinkA": 1, "shrinkB": 3},
            )
        )  # fmt: skip


def spread(wanted: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Places as near to `wanted` (ascending) as they can be, `step` apart and, if they fit, in [low, high].

    Neighbours that would touch are merged into blocks centred on the mean of what they wanted.
    """
    blocks: list[list[float]] = []
    for value in wanted:
        blocks.append([value])
        while len(blocks) > 1 and _start(blocks[-1], step, low, high) < _end(blocks[-2], step, low, high) + step:
            last = blocks.pop()
            blocks[-1] += last
    return [_start(block, step, low, high) + step * i for block in blocks for i in range(len(block))]


def _start(block: Sequence[float], step: float, low: float, high: float) -> float:
    length = step * (len(block) - 1)
    centre = sum(block) / len(block)
    return max(low, min(centre - length / 2, high - length))


def _end(block: Sequence[float], step: float, low: float, high: float) -> float:
    return _start(block, step, low, high) + step * (len(block) - 1)


def padded(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """Limits of a log axis around positive values, with a margin of `share` of their span."""
    low, high = min(values), max(values)
    pad = max((high / low) ** share, 1.1)
    return low / pad, high * pad
