"""Signature of `qsa.paged_decode`, and what happens when no kernel may run: a registered torch function computes it."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="qsa.paged_decode",
    tensors=("q", "k_pool", "v_pool", "tokens", "lengths", "requests", "req_to_slot"),
    scalars=("softmax_scale",),
    outputs=("out",),
    fallback=("qsa_paged_decode_torch",),
    refusal="unsupported QSA paged call",
)
