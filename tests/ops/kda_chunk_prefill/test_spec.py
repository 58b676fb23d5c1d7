"""The signature of the prefill, and that the registry finds all of its files."""

from __future__ import annotations

from kda_lab.ops.registry import load_op


def test_the_state_is_updated_in_place() -> None:
    """The pool is both a tensor and an output; out is an output alone."""
    spec = load_op("kda.chunk_prefill").spec
    assert spec.folder == "kda_chunk_prefill"
    assert set(spec.tensors) & set(spec.outputs) == {"state"}
    assert spec.outputs == ("out", "state")
    assert spec.scalars == ("lower_bound",)
    assert spec.fallback == ("kda_chunk_prefill_torch",)
