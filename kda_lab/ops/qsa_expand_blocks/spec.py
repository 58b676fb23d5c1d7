"""Signature of `qsa.expand_blocks`: chosen blocks and the incomplete tail as token ids, valid ones first."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="qsa.expand_blocks",
    tensors=("blocks", "lengths", "positions"),
    scalars=("ratio",),
    outputs=("tokens",),
    fallback=("qsa_expand_blocks_torch",),
    refusal="unsupported QSA expansion call",
)
"""tokens[b] = for each column of blocks[b] with id i >= 0, in order: i·ratio to i·ratio + ratio - 1, those < lengths[b];
then the tail ratio·((positions[b] + 1) // ratio) to positions[b], those < lengths[b]; then -1.

blocks    [B, k] int32; negative ids are no blocks, wherever they stand
lengths   [B] int32, tokens of the row's request, the current one included
positions [B] int32, position of the row's query, from 0
ratio     tokens a block, 4 in the released model
tokens    [B, k·ratio + ratio - 1] int32: 2051 for 512 blocks of 4
"""
