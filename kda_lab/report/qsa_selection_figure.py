"""The picture of a block selection: scores over the context as heat strips, the chosen blocks under them, the tail."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.patches import Rectangle

from kda_lab.errors import ParameterError
from kda_lab.report import style
from kda_lab.report.frame import write_around
from kda_lab.report.style import ARM_COLOURS, BLUE, GREY, HAIR, INK, SMALL_PT, TITLE_PT, VERMILLION, Picture

WIDTH_IN, ROW_IN, TEXT_IN = 10.2, 0.46, 0.34
NOTE = "strip: score of each complete block;  blue: chosen blocks;  orange: the incomplete last block (tail)"
LAST_TOKENS = 28
"""Tokens of the end of each row that the right panel shows one by one."""
HEAT = LinearSegmentedColormap.from_list("heat", ["#ffffff", "#f3dfc1", "#d98c3a", "#8c3b00", "#2b0f00"])
"""White where the score is 0, dark where it is largest: readable in grey, and without the colours of the marks."""


@dataclass(frozen=True)
class SelectedRow:
    """What one row of a batch scored and chose."""

    label: str
    length: int
    """Tokens of the request, the current one included."""
    scores: torch.Tensor
    """[n_c] fp32 on the CPU: the score of each complete block."""
    tokens: torch.Tensor
    """[m] int64 on the CPU: ids of the selected tokens, in any order."""
    block_tokens: int = 4

    @property
    def blocks(self) -> torch.Tensor:
        """Ids of the chosen complete blocks, ascending."""
        complete = self.length // self.block_tokens
        found = torch.unique(self.tokens // self.block_tokens)
        return found[found < complete]

    @property
    def tail(self) -> list[int]:
        """Selected tokens of the incomplete last block, ascending."""
        first = self.length // self.block_tokens * self.block_tokens
        return sorted(int(t) for t in self.tokens if t >= first)


def selection(rows: Sequence[SelectedRow], topics: torch.Tensor | None = None, *, foot: str = "") -> Picture:
    """Two panels: the whole context of each row, and its last tokens one by one.

    Args:
        rows: at least one; drawn in the order given.
        topics: [T] int64, what each token of the text is about, drawn as a strip on top; None without one.
        foot: one sentence on device and data.

    Raises:
        ParameterError: no row is given, or none has a complete block.
    """
    if not any(len(row.scores) for row in rows):
        raise ParameterError("report", f"rows is {len(rows)} rows without a complete block; allowed: at least one.")
    strips = len(rows) + (topics is not None)
    with style.settings():
        title = style.wrapped(selection_title(rows), TITLE_PT, WIDTH_IN - 0.3, "bold")
        height = 0.42 + 0.17 * len(title) + ROW_IN * strips + 0.72
        picture = style.new_picture(WIDTH_IN, height, selection_title(rows))
        whole, last = (
            picture.add_axes((x / WIDTH_IN, 0.62 / height, w / WIDTH_IN, ROW_IN * strips / height))
            for x, w in ((1.1, 5.6), (7.0, 2.95))
        )
        _draw_whole(whole, rows, topics)
        _draw_last(last, rows, strips)
        write_around(picture, title, [style.clipped(foot, SMALL_PT, WIDTH_IN - 0.3)], NOTE)
        _draw_scale(picture, rows)
    return picture


def selection_title(rows: Sequence[SelectedRow]) -> str:
    """How much of its context each row attends to, and how many tokens that are."""
    counts = [len(row.tokens) for row in rows]
    shares = [len(row.tokens) / row.length for row in rows]
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    tokens = f"{min(counts)} to {max(counts)}" if min(counts) != max(counts) else f"{counts[0]}"
    told = low if low == high else f"{low} to {high}"
    return f"Each row attends to {tokens} tokens, {told} of its context; the incomplete last block always among them"


def _draw_whole(axes: Axes, rows: Sequence[SelectedRow], topics: torch.Tensor | None) -> None:
    longest, first = max(row.length for row in rows), int(topics is not None)
    scale = Normalize(0.0, _largest(rows))
    if topics is not None:
        _draw_topics(axes, topics[:longest])
    for number, row in enumerate(rows):
        y = number + first
        if len(row.scores):
            box = (0, len(row.scores) * row.block_tokens, y + 0.08, y - 0.4)
            axes.imshow(
                row.scores[None].numpy(), aspect="auto", extent=box, cmap=HEAT, norm=scale, interpolation="none"
            )
        axes.add_patch(_frame(0, y - 0.4, row.length, 0.48))
        axes.broken_barh(stretches(row.blocks, row.block_tokens), (y + 0.14, 0.2), facecolors=BLUE, linewidth=0)
        if row.tail:
            axes.plot([row.length], [y + 0.24], marker="<", markersize=4.5, color=VERMILLION, clip_on=False)
    labels = (["topic of the text"] if first else []) + [row.label for row in rows]
    axes.set_yticks(range(len(labels)), labels, fontsize=SMALL_PT)
    axes.set_xlim(0, longest * 1.012)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlabel("position in the context, tokens", fontsize=SMALL_PT)
    _undress(axes)


def _draw_topics(axes: Axes, topics: torch.Tensor) -> None:
    edges = [0, *(torch.nonzero(topics[1:] != topics[:-1]).flatten() + 1).tolist(), len(topics)]
    for start, end in itertools.pairwise(edges):
        topic = int(topics[start])
        colour = ARM_COLOURS[topic % len(ARM_COLOURS)]
        alpha = 0.85 if topic < len(ARM_COLOURS) else 0.4
        axes.broken_barh([(start, end - start)], (-0.2, 0.4), facecolors=colour, alpha=alpha, linewidth=0)


def _draw_last(axes: Axes, rows: Sequence[SelectedRow], strips: int) -> None:
    """The last tokens of each row, aligned at the row's own end."""
    first = strips - len(rows)
    for number, row in enumerate(rows):
        chosen, tail = {int(t) for t in row.tokens}, set(row.tail)
        for token in range(max(0, row.length - LAST_TOKENS), row.length):
            colour = VERMILLION if token in tail else BLUE if token in chosen else HAIR
            x = token - row.length
            axes.broken_barh([(x + 0.08, 0.84)], (number + first - 0.22, 0.5), facecolors=colour, linewidth=0)
            # A thin line between blocks: a block is chosen whole or not at all.
            if token % row.block_tokens == 0:
                axes.plot([x, x], [number + first - 0.3, number + first + 0.36], color=INK, linewidth=0.5)
        words = f"{len(row.blocks)} of {len(row.scores)} blocks, tail of {len(row.tail)}"
        style.plain(
            axes.text(-LAST_TOKENS, number + first - 0.41, words, fontsize=SMALL_PT - 0.4, color=GREY, va="center")
        )
    axes.set_yticks([])
    axes.set_xlim(-LAST_TOKENS - 0.2, 0.4)
    axes.set_ylim(strips - 0.5, -0.5)
    axes.set_xlabel("tokens before the end of the row", fontsize=SMALL_PT)
    _undress(axes)


def stretches(blocks: torch.Tensor, block_tokens: int) -> list[tuple[int, int]]:
    """Ascending block ids as stretches of tokens: (first token, token count)."""
    found: list[tuple[int, int]] = []
    for block in blocks.tolist():
        start = block * block_tokens
        if found and sum(found[-1]) == start:
            found[-1] = (found[-1][0], found[-1][1] + block_tokens)
        else:
            found.append((start, block_tokens))
    return found


def _draw_scale(picture: Picture, rows: Sequence[SelectedRow]) -> None:
    """The colour scale of the scores, above the right panel."""
    width, height = picture.get_size_inches()
    axes = picture.add_axes((7.0 / width, 1 - 0.5 / height, 1.5 / width, 0.08 / height))
    bar = picture.colorbar(ScalarMappable(Normalize(0.0, _largest(rows)), HEAT), cax=axes, orientation="horizontal")
    bar.outline.set_linewidth(0.4)  # type: ignore[operator]
    bar.ax.tick_params(labelsize=SMALL_PT - 0.4, length=2, pad=1)
    style.plain(
        picture.text(8.6 / width, 1 - 0.46 / height, "score of a block", va="center", fontsize=SMALL_PT, color=GREY)
    )


def _largest(rows: Sequence[SelectedRow]) -> float:
    return max(float(row.scores.max()) for row in rows if len(row.scores)) or 1.0


def _frame(x: float, y: float, width: float, height: float) -> Rectangle:
    return Rectangle((x, y), width, height, fill=False, edgecolor=GREY, linewidth=0.5, zorder=3)


def _undress(axes: Axes) -> None:
    axes.tick_params(length=0, labelsize=SMALL_PT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
