"""The chain of three plain launches, in the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kda_lab import interpreter
from kda_lab.ops.kda_fused_decode import cases, chain

interpreter.ensure_faithful()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter runs where there is no GPU")
@pytest.mark.parametrize("name", ["no_memory", "odd_width", "all_padding", "closed_gate"])
def test_the_chain_is_right_at_the_edges(name: str, is_right: Callable[..., bool]) -> None:
    """Masked lanes, far gates, padding: every element within its allowance, the rounding before the norm included."""
    call = cases.with_guard_rows(cases.edge_calls(2)[name], 1)
    call.outputs["out"].fill_(float("nan"))
    tensors = {**call.inputs, **{n: call.outputs[n] for n in cases.POOLS}}
    bound, epsilon = call.scalars["lower_bound"], call.scalars["epsilon"]
    chain.decode(tensors, bound, epsilon, call.outputs["out"], chain.between(tensors))
    assert is_right(call)
