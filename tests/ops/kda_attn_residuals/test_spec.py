"""The signature of the op."""

from __future__ import annotations

from kda_lab.ops.kda_attn_residuals.spec import SPEC


def test_signature() -> None:
    """Five tensors, four scalars; bank and prefix are results too, so they are updated in place."""
    assert SPEC.tensors == ("bank", "prefix", "delta", "score_weight", "out_weight")
    assert SPEC.scalars == ("valid", "write_prefix", "add_delta", "epsilon")
    assert SPEC.outputs == ("out", "bank", "prefix")
    assert (SPEC.folder, SPEC.fallback) == ("kda_attn_residuals", ("kda_attn_residuals_torch",))
