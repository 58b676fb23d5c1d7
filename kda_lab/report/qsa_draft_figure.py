"""The picture of a draft row: valid tokens with holes between them, and what two ways of compacting make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from kda_lab.errors import ParameterError, Reason
from kda_lab.report import style
from kda_lab.report.frame import write_around
from kda_lab.report.style import BLUE, GREY, HAIR, INK, SMALL_PT, TITLE_PT, VERMILLION, Picture

CELL_IN, ROW_IN, LABEL_IN = 0.43, 0.5, 2.75
NOTE = "blue: frozen tokens;  orange: newer tokens;  hatched: a KV row that nothing wrote;  struck out: lost"
BEFORE, BEHIND = 5, 6
"""Columns shown before and behind the end of the frozen prefix."""
END = 6
"""Columns shown at the end of the row."""


@dataclass(frozen=True)
class DraftRow:
    """One row of draft columns."""

    tokens: tuple[int, ...]
    """Token ids, -1 where a column is a hole."""
    steps: int
    """Columns at the end that newer tokens take."""

    @property
    def prefix(self) -> int:
        """Valid columns before the first hole."""
        return next((c for c, token in enumerate(self.tokens) if token < 0), len(self.tokens))

    @property
    def valid(self) -> list[int]:
        """Token ids without the holes, in order."""
        return [token for token in self.tokens if token >= 0]

    @property
    def newer(self) -> list[int]:
        """Valid tokens in the last columns."""
        return [token for token in self.tokens[-self.steps :] if token >= 0]


def draft_row(row: DraftRow, *, foot: str = "") -> Picture:
    """Three lines of cells: the row as it is, what `column < count` keeps of it, and what a compaction must keep.

    Only the columns around the end of the prefix and those at the end of the row are drawn.

    Raises:
        ParameterError: the row has no hole before its last columns, so there is nothing to show.
    """
    if row.prefix + BEHIND > len(row.tokens) - END or not row.newer:
        allowed = f"a hole more than {BEHIND + END} columns before the end, and valid last columns"
        raise ParameterError("report", [Reason("row", f"{row.prefix} valid columns, then {len(row.newer)}", allowed)])
    first, last = max(0, row.prefix - BEFORE), len(row.tokens) - END
    left = list(range(first, row.prefix + BEHIND))
    right = list(range(last, len(row.tokens)))
    title = draft_title(row)
    width = LABEL_IN + CELL_IN * (len(left) + len(right) + 1) + 0.2
    with style.settings():
        lines = style.wrapped(title, TITLE_PT, width - 0.3, "bold")
        height = 0.62 + 0.17 * len(lines) + 3 * ROW_IN + 0.4
        picture = style.new_picture(width, height, title)
        box = (LABEL_IN / width, 0.42 / height, (width - LABEL_IN - 0.2) / width, 3.45 * ROW_IN / height)
        axes = picture.add_axes(box)
        _draw(axes, row, left, right)
        write_around(picture, lines, [foot], NOTE)
    return picture


def draft_title(row: DraftRow) -> str:
    """What is lost and what is read instead, in numbers."""
    count, lost = len(row.valid), len(row.newer)
    return (
        f"A draft row of {len(row.tokens)} columns holds {count} tokens with a gap of {_gap(row)} columns between them: "
        f"`column < count` reads {lost} holes and drops the {lost} newest tokens"
    )


def _gap(row: DraftRow) -> int:
    behind = [c for c, token in enumerate(row.tokens) if token >= 0 and c >= row.prefix]
    return behind[0] - row.prefix


def _draw(axes: Axes, row: DraftRow, left: Sequence[int], right: Sequence[int]) -> None:
    count, tokens = len(row.valid), row.tokens
    packed = [*row.valid, *[-1] * (len(tokens) - count)]
    lines = (
        ("the row: frozen selection, newer tokens last", [(tokens[c], "token") for c in range(len(tokens))]),
        (f"column < {count}: what a naive copy takes", [(tokens[c], "taken" if c < count else "") for c in range(len(tokens))]),
        ("stream compaction: every valid column", [(packed[c], "taken" if c < count else "") for c in range(len(tokens))]),
    )  # fmt: skip
    newer = set(row.newer)
    for line, (label, cells) in enumerate(lines):
        style.plain(axes.text(-0.35, line, label, ha="right", va="center", fontsize=SMALL_PT))
        for at, column in enumerate([*left, None, *right]):
            if column is None:
                axes.text(at + 0.5, line, "…", ha="center", va="center", fontsize=SMALL_PT, color=GREY)
            else:
                _draw_cell(axes, (at, line), cells[column], cells[column][0] in newer)
    for at, column in enumerate([*left, None, *right]):
        if column is not None:
            axes.text(at + 0.5, -0.62, str(column), ha="center", va="center", fontsize=SMALL_PT - 1, color=GREY)
    style.plain(axes.text(-0.35, -0.62, "column", ha="right", va="center", fontsize=SMALL_PT - 0.4, color=GREY))
    axes.set_xlim(0, len(left) + len(right) + 1)
    axes.set_ylim(2.6, -0.85)
    axes.axis("off")


def _draw_cell(axes: Axes, at: tuple[int, int], cell: tuple[int, str], newer: bool) -> None:
    """One column: blue a frozen token, orange a newer one, hatched a hole that is read, empty what is not read."""
    (x, y), (token, state) = at, cell
    hole, shown = token < 0, state in ("token", "taken")
    stale = hole and state == "taken"
    colour = HAIR if hole or not shown else VERMILLION if newer else BLUE
    fill, edge = ("white", INK) if stale else (colour, "white")
    axes.add_patch(
        Rectangle((x + 0.04, y - 0.32), 0.92, 0.64, hatch="////" if stale else None, facecolor=fill, edgecolor=edge)
    )
    words = "stale" if stale else "−1" if hole and state == "token" else "" if hole else str(token)
    lost = not hole and not shown
    ink = INK if stale else GREY if hole or lost else "white"
    weight = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6}} if stale else {}
    text = axes.text(x + 0.5, y, words, ha="center", va="center", fontsize=SMALL_PT - 1, color=ink, **weight)
    if lost:
        axes.plot([x + 0.12, x + 0.88], [y, y], color=VERMILLION, linewidth=1.2)
    style.plain(text)
