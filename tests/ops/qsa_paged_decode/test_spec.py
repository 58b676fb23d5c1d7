"""The signature of the op."""

from __future__ import annotations

from kda_lab.ops.qsa_paged_decode.spec import SPEC


def test_signature() -> None:
    """Seven tensors in the order of the door, one scalar, one output, a torch function to fall back on."""
    assert SPEC.tensors == ("q", "k_pool", "v_pool", "tokens", "lengths", "requests", "req_to_slot")
    assert (SPEC.scalars, SPEC.outputs, SPEC.folder) == (("softmax_scale",), ("out",), "qsa_paged_decode")
    assert SPEC.fallback == ("qsa_paged_decode_torch",)
