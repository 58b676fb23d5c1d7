"""Signature of `kda.packed_decode`, and what happens when no kernel may run: a registered torch function computes it."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="kda.packed_decode",
    tensors=("mixed_qkv", "a", "b", "a_log", "dt_bias", "state", "state_indices"),
    scalars=("lower_bound",),
    outputs=("out", "state"),
    fallback=("kda_packed_decode_torch",),
    refusal="unsupported KDA packed decode call",
)
