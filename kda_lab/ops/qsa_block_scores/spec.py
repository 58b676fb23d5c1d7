"""Signature of `qsa.block_scores`, and what runs where no kernel takes a call: the op's torch function."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="qsa.block_scores",
    tensors=("q_index", "keys", "pages", "lengths"),
    scalars=(),
    outputs=("scores",),
    fallback=("qsa_block_scores_torch",),
    refusal="unsupported QSA block scores call",
)
"""scores[b, n] = 128^-0.5 · sum_h max(0, q_index[b, h] · keys[pages[b, n // 16] · 16 + n % 16]); -inf at n >= lengths[b]

q_index [B, HI, 128] bf16: index queries, normalised and rotated
keys    [S, 128] bf16: the pool of compressed keys, 16 entries a page
pages   [B, N/16] int32: page ids of each row, -1 where unused; read below lengths[b] only
lengths [B] int32: compressed keys of each row, 0 to N
scores  [B, N] fp32
"""
