"""Signature of `kda.fused_decode`, and what happens when no kernel may run: a registered torch function computes it."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="kda.fused_decode",
    tensors=(
        "mixed_qkv",
        "conv_state",
        "conv_weight",
        "a",
        "b",
        "a_log",
        "dt_bias",
        "gate",
        "norm_weight",
        "state",
        "state_indices",
    ),
    scalars=("lower_bound", "epsilon"),
    outputs=("out", "conv_state", "state"),
    fallback=("kda_fused_decode_torch",),
    refusal="unsupported KDA fused decode call",
)
