"""What the rows of a recorded QSA capture attend to: the blocks of the text, and how many keys really count."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kda_lab.captures.qsa_gemma import LAYERS, TOKENS
from kda_lab.captures.qsa_selection import BLOCK_TOKENS, effective_keys
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import CaptureError, Reason


@dataclass(frozen=True)
class AttendedBlocks:
    """One row of a call and one of its KV heads."""

    position: int
    """Query position in the text."""
    layer: int
    keys: int
    """Live length: tokens that the row attends to."""
    blocks: torch.Tensor
    """Ids of the blocks of 4 tokens, ascending int64; the incomplete last one included."""
    effective_keys: float
    """Median over the 12 heads of exp(entropy): 1 where one key holds all the weight."""


def attended_blocks(captures: CaptureSet, name: str) -> list[AttendedBlocks]:
    """What each row and KV head of a capture attends to, rows first.

    Args:
        captures: a set that `record_qsa` wrote.
        name: a capture of it.
    Raises:
        CaptureError: the capture's K is not gathered from a pool, or comes from other layers.
    """
    capture, index = captures.load(name), captures.gather_index(name, "k")
    layers = capture.entry.source.layers
    if index is None or not set(layers) <= set(LAYERS):
        raise CaptureError("captures", [Reason(f"{name}: layers", repr(layers), f"some of {LAYERS}, gathered")])
    q, k, scale = capture.call.inputs["q"], capture.call.inputs["k"], float(capture.call.scalars["softmax_scale"] or 0)
    group = q.shape[1] // k.shape[1]
    found, start = [], 0
    for row, length in enumerate(capture.call.facts["lengths"]):
        for head, layer in enumerate(layers):
            tokens = index[start : start + length, head].long() - LAYERS.index(layer) * TOKENS
            queries = q[row, head * group : (head + 1) * group]
            effective = effective_keys(queries, k[start : start + length, head], scale)
            found.append(
                AttendedBlocks(
                    position=capture.entry.source.positions[row],
                    layer=layer,
                    keys=length,
                    blocks=torch.unique(tokens // BLOCK_TOKENS),
                    effective_keys=float(effective.median()),
                )
            )
        start += length
    return found
