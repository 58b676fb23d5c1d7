"""Slices of two traces: kernels on the lanes of their streams, and the parts of wall and summed durations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from kda_lab.errors import ParameterError
from kda_lab.report import style
from kda_lab.report.frame import write_around
from kda_lab.report.style import INK, NEUTRAL, RULE, SMALL_PT, TEXT_PT, Picture

WIDTH_IN, LEFT_IN, RIGHT_IN = 10.2, 1.35, 0.16
LANE_IN, ARM_GAP_IN, HEAD_IN, FOOT_IN = 0.34, 0.24, 0.64, 0.78
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "oooo", "++++")
"""A second channel beside the colour: where colours come round again, or cannot be told apart."""
BUSY, IDLE, AGAIN = "at least one kernel runs", "idle", "overlap: counted again by the sum"
PART_COLOURS = {BUSY: style.BLUE, IDLE: "white", AGAIN: style.VERMILLION}


@dataclass(frozen=True)
class Bar:
    """One kernel on a lane."""

    start_us: float
    """From the slice's start."""
    duration_us: float
    category: str


@dataclass(frozen=True)
class DrawnArm:
    """One arm's representative slice; times in microseconds."""

    name: str
    lanes: Mapping[str, Sequence[Bar]]
    """Label of a stream to its kernels."""
    wall_us: float
    union_us: float
    overlap_us: float
    idle_us: float


def slice_lanes(
    arms: Sequence[DrawnArm], categories: Sequence[str], other: str, *, title: str, foot: str = ""
) -> Picture:
    """One lane a stream, both arms on one time axis from their slice's start; a thin line ends each slice.

    Args:
        arms: baseline first; each with at least one lane.
        categories: all, in the order of the legend; colour and hatch follow the place. Those without a kernel are left out.
        other: the category that is drawn grey.
        title: what the comparison found.
        foot: one sentence on files, marker and steps.

    Raises:
        ParameterError: no arm, or an arm without a kernel.
    """
    if not arms or not all(any(a.lanes.values()) for a in arms):
        raise ParameterError(
            "report", "an arm has no kernel; allowed: at least one kernel an arm. Compare other slices."
        )
    lanes = [(arm, label, bars) for arm in arms for label, bars in arm.lanes.items()]
    body_in = len(lanes) * LANE_IN + (len(arms) - 1) * ARM_GAP_IN
    height_in = HEAD_IN + body_in + FOOT_IN
    used = {bar.category for _, _, bars in lanes for bar in bars}
    looks = {name: look for name, look in category_looks(categories, other).items() if name in used}
    with style.settings():
        picture = style.new_picture(WIDTH_IN, height_in, title)
        axes = _axes(picture, height_in, body_in)
        ticks, y_in = [], 0.0
        for number, (arm, label, bars) in enumerate(lanes):
            y_in += ARM_GAP_IN if number and lanes[number - 1][0] is not arm else 0.0
            _draw_lane(axes, bars, y_in, looks)
            axes.plot([arm.wall_us] * 2, [y_in, y_in + LANE_IN], color=INK, linewidth=1.2, zorder=4)
            ticks.append((y_in + LANE_IN / 2, f"{arm.name}, {label}"))
            y_in += LANE_IN
        axes.set_xlim(0, 1.01 * max(_reach(a) for a in arms))
        axes.set_ylim(body_in, 0)
        _label(axes, ticks, "µs from the start of the slice; black line: its end")
        write_around(picture, [title], style.wrapped(foot, SMALL_PT, WIDTH_IN - 0.3))
        _legend(picture, looks, height_in)
    return picture


def category_looks(categories: Sequence[str], other: str) -> dict[str, tuple[str, str]]:
    """Category to colour and hatch, by its place; `other` is grey and plain."""
    looks = {}
    for number, name in enumerate(n for n in categories if n != other):
        colours = len(style.ARM_COLOURS)
        looks[name] = (style.ARM_COLOURS[number % colours], HATCHES[number // colours % len(HATCHES)])
    return {**looks, **({other: (NEUTRAL, "")} if other in categories else {})}


def slice_parts(arms: Sequence[DrawnArm], *, title: str, foot: str = "") -> Picture:
    """Two bars an arm: the wall as time with a kernel and idle time, the sum of durations as union and overlap.

    Args:
        arms: baseline first.
        title: what the comparison found.
        foot: one sentence on files, marker and steps.

    Raises:
        ParameterError: no arm.
    """
    if not arms:
        raise ParameterError("report", "arms is empty; allowed: at least one arm. Compare two slices.")
    bars = [bar for arm in arms for bar in _parts_of(arm)]
    body_in = len(bars) * LANE_IN + (len(arms) - 1) * ARM_GAP_IN
    height_in = HEAD_IN + body_in + FOOT_IN
    with style.settings():
        picture = style.new_picture(WIDTH_IN, height_in, title)
        axes = _axes(picture, height_in, body_in)
        ticks = []
        for number, (label, parts) in enumerate(bars):
            middle = number * LANE_IN + number // 2 * ARM_GAP_IN + LANE_IN / 2
            _draw_parts(axes, middle, parts)
            ticks.append((middle, label))
        axes.set_xlim(0, 1.28 * max(sum(parts.values()) for _, parts in bars))
        axes.set_ylim(body_in, 0)
        _label(axes, ticks, "µs")
        axes.grid(visible=False)
        write_around(picture, [title], style.wrapped(foot, SMALL_PT, WIDTH_IN - 0.3))
        _legend(picture, {name: (colour, "") for name, colour in PART_COLOURS.items()}, height_in)
    return picture


def _parts_of(arm: DrawnArm) -> list[tuple[str, dict[str, float]]]:
    return [
        (f"{arm.name}, wall", {BUSY: arm.wall_us - arm.idle_us, IDLE: arm.idle_us}),
        (f"{arm.name}, summed", {BUSY: arm.union_us, AGAIN: arm.overlap_us}),
    ]


def _draw_parts(axes: Axes, middle: float, parts: Mapping[str, float]) -> None:
    left = 0.0
    for name, width in parts.items():
        axes.barh(middle, width, 0.72 * LANE_IN, left, color=PART_COLOURS[name], edgecolor=INK, linewidth=0.5, zorder=3)
        left += width
    words = f"{' + '.join(f'{v:.3f}' for v in parts.values())} = {left:.3f}"
    text = axes.annotate(
        words, (left, middle), xytext=(4, 0), textcoords="offset points", va="center", fontsize=SMALL_PT
    )
    style.plain(text)


def _draw_lane(axes: Axes, bars: Sequence[Bar], y_in: float, looks: Mapping[str, tuple[str, str]]) -> None:
    for category, (colour, hatch) in looks.items():
        spans = [(b.start_us, b.duration_us) for b in bars if b.category == category]
        if spans:
            axes.broken_barh(
                spans, (y_in + 0.1 * LANE_IN, 0.8 * LANE_IN), facecolor=colour, edgecolor="white", linewidth=0.25,
                hatch=hatch, zorder=3,
            )  # fmt: skip


def _reach(arm: DrawnArm) -> float:
    return max([arm.wall_us, *(b.start_us + b.duration_us for bars in arm.lanes.values() for b in bars)])


def _axes(picture: Picture, height_in: float, body_in: float) -> Axes:
    width = (WIDTH_IN - LEFT_IN - RIGHT_IN) / WIDTH_IN
    return picture.add_axes((LEFT_IN / WIDTH_IN, FOOT_IN / height_in, width, body_in / height_in))


def _label(axes: Axes, ticks: Sequence[tuple[float, str]], words: str) -> None:
    axes.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    axes.set_xlabel(words, fontsize=TEXT_PT)
    axes.tick_params(labelsize=SMALL_PT, length=2)
    axes.grid(axis="x", color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _legend(picture: Picture, looks: Mapping[str, tuple[str, str]], height_in: float) -> None:
    marks = [Patch(facecolor=c, edgecolor=INK, linewidth=0.4, hatch=h, label=name) for name, (c, h) in looks.items()]
    picture.legend(
        handles=marks, loc="upper left", bbox_to_anchor=(0.08 / WIDTH_IN, 1 - 0.34 / height_in), ncols=len(marks),
        frameon=False, fontsize=SMALL_PT, handlelength=1.4, columnspacing=1.4, borderaxespad=0,
    )  # fmt: skip
