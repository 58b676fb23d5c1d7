"""Signature of `kda.fold`, and what happens when no kernel may run: a registered torch function computes it."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="kda.fold",
    tensors=("ring_k", "ring_v", "ring_g", "ring_beta", "state", "state_indices", "accepted"),
    scalars=(),
    outputs=("state",),
    fallback=("kda_fold_torch",),
    refusal="unsupported KDA fold call",
)
