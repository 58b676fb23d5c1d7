"""What `qsa.expand_blocks` must give: the definition in plain Python, the same by masks, and by prefix sums.

All outputs are exact integers. Inputs are read on the host: none of these may run inside graph capture.
Axes: B rows, k blocks a row, r = ratio tokens a block, W = k·r + r - 1 columns of the output.
"""

from __future__ import annotations

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Call

ROOM = "qsa.expand_blocks"
RATIO = 4


def ratio_of(call: Call) -> int:
    """Tokens a block of a call.

    Raises:
        ParameterError: the ratio is no int of 1 or more, or the output is not k·ratio + ratio - 1 wide.
    """
    ratio = call.scalars.get("ratio", RATIO)
    if type(ratio) is not int or ratio < 1:
        raise ParameterError(ROOM, [Reason("ratio", repr(ratio), "an int of 1 or more")])
    width, k = call.outputs["tokens"].shape[1], call.inputs["blocks"].shape[1]
    if width != k * ratio + ratio - 1:
        allowed = f"{k * ratio + ratio - 1}, which is k·ratio + ratio - 1 with k={k}"
        raise ParameterError(ROOM, [Reason("tokens.shape[1]", repr(width), allowed)])
    return ratio


def tokens_of(blocks: list[int], length: int, position: int, ratio: int = RATIO) -> list[int]:
    """Token ids of one row, valid ones only, in the order of the output."""
    found = [block * ratio + j for block in blocks if block >= 0 for j in range(ratio)]
    found += range((max(position, -1) + 1) // ratio * ratio, position + 1)
    return [token for token in found if token < length]


def valid_count(length: int, k: int = 512, ratio: int = RATIO) -> int:
    """Valid tokens of a decode row that selects as many blocks as there are, up to k; its position is length - 1."""
    return min(length // ratio, k) * ratio + length % ratio


def oracle_fp32(call: Call) -> dict[str, torch.Tensor]:
    """The definition, row by row in Python: `{"tokens": [B, W] int32}` on the call's device."""
    ratio, width = ratio_of(call), call.outputs["tokens"].shape[1]
    columns = (call.inputs[name].tolist() for name in ("blocks", "lengths", "positions"))
    rows = [tokens_of(blocks, length, position, ratio) for blocks, length, position in zip(*columns, strict=True)]
    padded = [row + [-1] * (width - len(row)) for row in rows]
    return {"tokens": torch.tensor(padded, dtype=torch.int32, device=call.device).view(-1, width)}


def oracle_fp64(call: Call) -> dict[str, torch.Tensor]:
    """By masks: name every candidate token, select the valid ones of each row. `{"tokens": [B, W] int32}`."""
    ratio, out = ratio_of(call), call.outputs["tokens"]
    blocks, lengths, positions = (call.inputs[name].long() for name in ("blocks", "lengths", "positions"))
    tokens = torch.full(out.shape, -1, dtype=torch.int32, device=call.device)
    for b in range(out.shape[0]):
        inner = blocks[b].repeat_interleave(ratio) * ratio + torch.arange(ratio, device=call.device).repeat(
            blocks.shape[1]
        )
        everything = torch.arange(max(int(positions[b]) + 1, 0), device=call.device)
        tail = everything[everything // ratio == (positions[b] + 1).clamp(min=0) // ratio]
        named = torch.cat([inner[inner >= 0], tail])
        valid = named[named < lengths[b]]
        tokens[b, : valid.numel()] = valid.to(torch.int32)
    return {"tokens": tokens}


def emulate(call: Call) -> dict[str, torch.Tensor]:
    """As a kernel does it: each block's count, its start by a prefix sum, scattered stores. `{"tokens": [B, W] int32}`."""
    ratio, out = ratio_of(call), call.outputs["tokens"]
    blocks, lengths, positions = (call.inputs[name].long() for name in ("blocks", "lengths", "positions"))
    first, ends = blocks * ratio, lengths[:, None]
    counts = torch.where(blocks >= 0, (ends - first).clamp(0, ratio), 0)
    starts = counts.cumsum(1) - counts
    rows, width = out.shape
    tokens = torch.full((rows, width + 1), -1, dtype=torch.int32, device=call.device)
    for j in range(ratio):
        place = torch.where(counts > j, starts + j, width)
        tokens.scatter_(1, place, (first + j).to(torch.int32))
    tail = (positions + 1).clamp(min=0) // ratio * ratio
    total = counts.sum(1)
    for j in range(ratio - 1):
        place = torch.where(tail + j < torch.minimum(positions + 1, lengths), total + j, width)
        tokens.scatter_(1, place[:, None], (tail + j).to(torch.int32)[:, None])
    return {"tokens": tokens[:, :width].contiguous()}
