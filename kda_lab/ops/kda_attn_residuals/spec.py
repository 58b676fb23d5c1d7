"""Signature of `kda.attn_residuals`, and what runs where no kernel takes a call: the op's torch function."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="kda.attn_residuals",
    tensors=("bank", "prefix", "delta", "score_weight", "out_weight"),
    scalars=("valid", "write_prefix", "add_delta", "epsilon"),
    outputs=("out", "bank", "prefix"),
    fallback=("kda_attn_residuals_torch",),
    refusal="unsupported attention residuals call",
)
"""With R = valid + 1 rows of token t, its snapshots bank[t, :valid] and then its prefix:

prefix[t]       <- bf16(prefix[t] + delta[t]) first, where add_delta
score[r]         = sum_d row[r, d] · score_weight[d] / sqrt(mean_d row[r, d]² + epsilon)
mix              = sum_r softmax_r(score)[r] · row[r]
out[t]           = bf16(mix · out_weight / sqrt(mean_d mix² + epsilon))
bank[t, valid]  <- prefix[t], bit for bit, where write_prefix; it is no row of this call

bank [T, NB, D] bf16, updated in place; prefix [T, D] bf16, updated in place; delta [T, D] bf16, read where add_delta
score_weight [D] fp32: the score norm's weight times the projection's; out_weight [D] fp32; out [T, D] bf16
valid 0 to NB, and below NB where write_prefix; valid = 0 is RMSNorm of the prefix
"""
