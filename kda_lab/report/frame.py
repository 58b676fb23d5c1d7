"""Words around a figure of free layout: its title, a note that reads its marks, its foot; and axes without ornaments."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from kda_lab.report import style
from kda_lab.report.style import GREY, RULE, SMALL_PT, TITLE_PT, Picture

MARGIN_IN, TITLE_LINE_IN, NOTE_LINE_IN, FOOT_LINE_IN, FOOT_IN = 0.14, 0.17, 0.16, 0.145, 0.08


def write_around(picture: Picture, title: Sequence[str], foot: Sequence[str], note: str = "") -> None:
    """Write title and note from the top, and the foot at the bottom of a figure.

    Args:
        picture: the figure, of its final size.
        title: its lines.
        foot: its lines.
        note: one line on what the marks mean; empty for none.
    """
    width, height = picture.get_size_inches()
    write_head(picture, title, [note] if note else [])
    left, y = MARGIN_IN / width, FOOT_IN / height
    style.plain(picture.text(left, y, "\n".join(foot), va="bottom", fontsize=SMALL_PT, color=GREY))


def write_head(picture: Picture, title: Sequence[str], notes: Sequence[str], top_in: float = MARGIN_IN) -> None:
    """Write the lines of title and notes below each other, `top_in` inches from the figure's upper edge."""
    width, height = picture.get_size_inches()
    left, y = MARGIN_IN / width, height - top_in
    for line in title:
        style.plain(picture.text(left, y / height, line, va="top", fontsize=TITLE_PT, fontweight="bold"))
        y -= TITLE_LINE_IN
    for line in notes:
        style.plain(picture.text(left, (y - 0.03) / height, line, va="top", fontsize=SMALL_PT, color=GREY))
        y -= NOTE_LINE_IN


def write_foot(picture: Picture, foot: Sequence[str]) -> None:
    """Write the foot's lines, a text each, so that the last one stands at the figure's lower edge."""
    width, height = picture.get_size_inches()
    for index, line in enumerate(foot):
        y = 0.1 + FOOT_LINE_IN * (len(foot) - 1 - index)
        style.plain(picture.text(MARGIN_IN / width, y / height, line, va="bottom", fontsize=SMALL_PT, color=GREY))


def undress(axes: Axes) -> None:
    """A faint grid behind the marks, small ticks, no spines above and on the right."""
    axes.grid(color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL_PT, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
