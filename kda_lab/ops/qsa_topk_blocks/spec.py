"""Signature of `qsa.topk_blocks`: which blocks of four tokens each row attends to."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="qsa.topk_blocks",
    tensors=("scores", "lengths"),
    scalars=("k",),
    outputs=("blocks",),
    fallback=("qsa_topk_blocks_torch",),
    refusal="unsupported QSA top-k call",
)
"""blocks[b] = the ids of the k largest scores[b, n], n < lengths[b]: all of them where there are no more than k.

scores  [B, N] fp32; what stands at n >= lengths[b] is not looked at; a NaN counts as -inf
lengths [B] int32, compressed lengths, 0 to N
k       ids a row, 512 in the released model
blocks  [B, k] int32, -1 behind the chosen ids

The op leaves the order open and ties free (`selection.is_valid_selection`). An implementation of it here gives ids in
ascending order and ties to the lower id, so that its bits can be compared.
"""
