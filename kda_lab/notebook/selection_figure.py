"""The picture of a QSA capture: which blocks of the text each layer attends to, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes

from kda_lab.captures.qsa_blocks import AttendedBlocks
from kda_lab.captures.qsa_selection import BLOCK_TOKENS
from kda_lab.report.style import ARM_COLOURS, SMALL_PT, Picture, new_picture, settings

WIDTH_IN, ROW_IN, EDGE_IN = 9.0, 0.26, 1.1


def selection_figure(rows: Sequence[AttendedBlocks]) -> Picture:
    """One panel a layer, one strip a query position; x is the position in the text.

    Args:
        rows: of `attended_blocks`, at least one.
    """
    layers = sorted({row.layer for row in rows})
    with settings():
        picture = new_picture(WIDTH_IN, EDGE_IN + len(rows) * ROW_IN + 0.45 * len(layers), _title(rows, layers))
        panels = picture.subplots(len(layers), 1, sharex=True, squeeze=False)[:, 0]
        for number, (axes, layer) in enumerate(zip(panels, layers, strict=True)):
            _draw_layer(axes, [row for row in rows if row.layer == layer], ARM_COLOURS[number % len(ARM_COLOURS)])
            axes.set_title(f"layer {layer}", loc="left", fontsize=SMALL_PT)
        panels[-1].set_xlabel("position in the text, tokens")
        picture.suptitle(picture.title, x=0.02, ha="left", fontsize=SMALL_PT + 1.3)
        picture.subplots_adjust(left=0.13, right=0.77, top=1 - 0.62 / picture.get_figheight(), hspace=0.5)
        picture.subplots_adjust(bottom=0.45 / picture.get_figheight())
    return picture


def runs(blocks: torch.Tensor) -> list[tuple[int, int]]:
    """Ascending block ids as stretches of tokens: (first token, token count)."""
    found: list[tuple[int, int]] = []
    for block in blocks.tolist():
        first = block * BLOCK_TOKENS
        if found and sum(found[-1]) == first:
            found[-1] = (found[-1][0], found[-1][1] + BLOCK_TOKENS)
        else:
            found.append((first, BLOCK_TOKENS))
    return found


def _draw_layer(axes: Axes, rows: Sequence[AttendedBlocks], colour: str) -> None:
    last = max(row.position for row in rows)
    for height, row in enumerate(rows):
        axes.broken_barh(runs(row.blocks), (height - 0.4, 0.8), facecolors=colour, linewidth=0)
        words = f"{row.keys} keys, {row.effective_keys:.3g} effective"
        axes.annotate(words, (1.01, height), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL_PT)
    axes.set_yticks(range(len(rows)), [f"query {row.position}" for row in rows], fontsize=SMALL_PT)
    axes.set_xlim(0, last + 1)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(length=0, labelsize=SMALL_PT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _title(rows: Sequence[AttendedBlocks], layers: Sequence[int]) -> str:
    shares = [len(row.blocks) / (row.position // BLOCK_TOKENS + 1) for row in rows]
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    title = f"Each row attends to {low if low == high else f'{low} to {high}'} of the blocks before it"
    if len(layers) < 2:
        return f"{title}."
    first, second = (next(row.blocks for row in rows if row.layer == layer) for layer in layers[:2])
    common = float(torch.isin(first, second).float().mean())
    return f"{title}; layers {layers[0]} and {layers[1]} have {common:.0%} of them in common."
