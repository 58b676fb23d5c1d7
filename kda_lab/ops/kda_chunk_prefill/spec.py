"""Signature of `kda.chunk_prefill`, and what happens when no kernel may run: a registered torch function computes it."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="kda.chunk_prefill",
    tensors=(
        "q",
        "k",
        "v",
        "a",
        "beta",
        "a_log",
        "dt_bias",
        "cu_seqlens",
        "state",
        "state_indices",
        "has_state",
    ),
    scalars=("lower_bound",),
    outputs=("out", "state"),
    fallback=("kda_chunk_prefill_torch",),
    refusal="unsupported KDA prefill call",
)
