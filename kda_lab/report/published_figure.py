"""Published numbers against the same numbers computed again, in units of the last printed digit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from matplotlib.axes import Axes

from kda_lab.errors import ParameterError
from kda_lab.report import style
from kda_lab.report.style import BAND, GREY, RULE, SMALL_PT, TEXT_PT, TITLE_PT, Picture

MARGIN_IN, TOP_IN, BOTTOM_IN, ROW_IN, AXIS_IN = 0.14, 0.78, 0.74, 0.19, 3.4
LOOK: Mapping[str, tuple[str, str, str]] = {
    "agrees": (style.NEUTRAL, "o", "printed digits follow from the printed inputs"),
    "rounding": (style.BLUE, "D", "follow if digits that were not printed are granted"),
    "disagrees": (style.VERMILLION, "s", "do not follow"),
}


@dataclass(frozen=True)
class PublishedNumber:
    """One derived number of a text."""

    group: str
    name: str
    printed: str
    recomputed: float
    off_digits: float
    """Recomputed minus printed, in units of the last printed digit."""
    status: Literal["agrees", "rounding", "disagrees"]


def published(numbers: Sequence[PublishedNumber], *, foot: str = "") -> Picture:
    """One strip a text with all its numbers, and a named row below it for each that does not agree.

    Args:
        numbers: those of one text beside each other.
        foot: one sentence on the source.

    Raises:
        ParameterError: there is none.
    """
    if not numbers:
        raise ParameterError("report", "numbers are empty; allowed: at least one published number.")
    rows: list[tuple[str, bool, list[PublishedNumber]]] = []
    for group, members in groupby(numbers, lambda n: n.group):
        listed = list(members)
        rows.append((group, True, [n for n in listed if n.status == "agrees"]))
        rows += [(_label(n), False, [n]) for n in listed if n.status != "agrees"]
    title = published_title(numbers)
    label_in = max(style.text_width_in(text, TEXT_PT, "bold" if head else "normal") for text, head, _ in rows)
    width, height = 2 * MARGIN_IN + label_in + 0.14 + AXIS_IN, TOP_IN + BOTTOM_IN + ROW_IN * len(rows)
    with style.settings():
        picture = style.new_picture(width, height, title)
        box = ((MARGIN_IN + label_in + 0.14) / width, BOTTOM_IN / height, AXIS_IN / width, ROW_IN * len(rows) / height)
        axes = picture.add_axes(box)
        _draw(axes, rows)
        _write(picture, title, foot, numbers)
    return picture


def published_title(numbers: Sequence[PublishedNumber]) -> str:
    """How many agree, in one sentence."""
    counts = {s: sum(n.status == s for n in numbers) for s in LOOK}
    return (
        f"Of {len(numbers)} derived numbers {counts['agrees']} agree to the printed digit, {counts['rounding']} within "
        f"the rounding of their inputs, {counts['disagrees']} do not"
    )


def _label(number: PublishedNumber) -> str:
    digits = len(number.printed.partition(".")[2].rstrip(" %abcdefghijklmnopqrstuvwxyz/×"))
    made = f"{number.recomputed:.{digits + 2}f}{'%' if number.printed.endswith('%') else ''}"
    return f"{number.name}: {number.printed}, inputs give {made}".replace(" -", " −")


def _draw(axes: Axes, rows: Sequence[tuple[str, bool, list[PublishedNumber]]]) -> None:
    axes.axvspan(-0.5, 0.5, color=BAND, alpha=0.6, zorder=0, linewidth=0)
    for y, (text, is_head, members) in enumerate(rows):
        label = axes.annotate(text, (0, y), xycoords=("axes fraction", "data"), xytext=(-8, 0), ha="right", va="center",
                              textcoords="offset points", fontsize=TEXT_PT, fontweight="bold" if is_head else "normal",
                              annotation_clip=False)  # fmt: skip
        style.plain(label)
        for number in members:
            colour, marker, _ = LOOK[number.status]
            axes.plot([number.off_digits], [y], marker=marker, markersize=4.5, color=colour, linestyle="none",
                      markerfacecolor="white" if number.status == "rounding" else colour, zorder=3)  # fmt: skip
    widest = max(1.0, *(abs(n.off_digits) for _, _, members in rows for n in members))
    axes.set_xscale("symlog", linthresh=1, linscale=1.2)
    axes.set_xlim(-1.25 * widest, 1.25 * widest)
    ticks = [t for t in (-300, -100, -30, -10, -3, -1, -0.5, 0, 0.5, 1, 3, 10, 30, 100, 300) if abs(t) <= 1.25 * widest]
    axes.set_xticks(ticks, [f"{t:g}".replace("-", "−") for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xlabel("recomputed − printed, in units of the last printed digit", fontsize=TEXT_PT)
    axes.grid(axis="x", color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL_PT, length=2)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _write(picture: Picture, title: str, foot: str, numbers: Sequence[PublishedNumber]) -> None:
    width, height = (float(v) for v in picture.get_size_inches())
    left = MARGIN_IN / width
    lines = style.wrapped(title, TITLE_PT, width - 2 * MARGIN_IN, "bold")
    style.plain(picture.text(left, 1 - 0.12 / height, "\n".join(lines), va="top", fontsize=TITLE_PT, fontweight="bold"))
    x = left
    for status, (colour, _, words) in LOOK.items():
        if any(n.status == status for n in numbers):
            key = f"{status}: {words}"
            style.plain(picture.text(x, 1 - 0.5 / height, key, va="top", fontsize=SMALL_PT, color=colour))
            x += (style.text_width_in(key, SMALL_PT) + 0.2) / width
    style.plain(picture.text(left, 0.08 / height, foot, va="bottom", fontsize=SMALL_PT, color=GREY))
