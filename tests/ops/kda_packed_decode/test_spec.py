"""The signature of the op."""

from __future__ import annotations

from kda_lab.ops.kda_packed_decode.spec import SPEC


def test_signature() -> None:
    """Seven tensors in the order of the door, one scalar; the state is both read and updated."""
    assert SPEC.tensors == ("mixed_qkv", "a", "b", "a_log", "dt_bias", "state", "state_indices")
    assert (SPEC.scalars, SPEC.outputs) == (("lower_bound",), ("out", "state"))
    assert (SPEC.folder, SPEC.fallback) == ("kda_packed_decode", ("kda_packed_decode_torch",))
