"""Signature of `kda.verify_snapshots`, and what happens when no kernel may run: a registered torch function computes it."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="kda.verify_snapshots",
    tensors=(
        "mixed_qkv",
        "conv_state",
        "conv_weight",
        "a",
        "b",
        "a_log",
        "dt_bias",
        "state",
        "state_indices",
    ),
    scalars=("lower_bound",),
    outputs=("out", "windows", "snapshots"),
    fallback=("kda_verify_snapshots_torch",),
    refusal="unsupported KDA verify call",
)
