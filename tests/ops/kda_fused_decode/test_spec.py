"""The signature of the op."""

from __future__ import annotations

from kda_lab.ops.kda_fused_decode.spec import SPEC


def test_signature() -> None:
    """Eleven tensors in the order of the door, two scalars; windows and states are both read and updated."""
    assert SPEC.tensors == (
        "mixed_qkv", "conv_state", "conv_weight", "a", "b", "a_log", "dt_bias", "gate", "norm_weight", "state",
        "state_indices",
    )  # fmt: skip
    assert (SPEC.scalars, SPEC.outputs) == (("lower_bound", "epsilon"), ("out", "conv_state", "state"))
    assert (SPEC.folder, SPEC.fallback) == ("kda_fused_decode", ("kda_fused_decode_torch",))
