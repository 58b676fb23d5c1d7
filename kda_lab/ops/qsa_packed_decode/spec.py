"""Signature of `qsa.packed_decode`, and what happens when no kernel may run: the call raises."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="qsa.packed_decode",
    tensors=("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"),
    scalars=("max_seqlen_k", "softmax_scale", "max_seqlen_q"),
    outputs=("out",),
    fallback=(),
    refusal="unsupported QSA call",
)
