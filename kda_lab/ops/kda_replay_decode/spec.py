"""Signature of `kda.replay_decode`, and what happens when no kernel may run: a registered torch function computes it."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="kda.replay_decode",
    tensors=(
        "mixed_qkv",
        "a",
        "b",
        "a_log",
        "dt_bias",
        "state",
        "ring_d",
        "ring_k",
        "ring_g",
        "write_positions",
        "state_indices",
    ),
    scalars=("lower_bound", "circular", "predecayed", "force_flush"),
    outputs=("out", "state", "ring_d", "ring_k", "ring_g"),
    fallback=("kda_replay_decode_torch",),
    refusal="unsupported KDA replay call",
)
