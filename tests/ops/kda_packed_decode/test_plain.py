"""The plain Triton step, in the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kda_lab import interpreter
from kda_lab.ops.kda_packed_decode import cases, plain

interpreter.ensure_faithful()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter runs where there is no GPU")
@pytest.mark.parametrize("name", ["linear_softplus", "no_memory", "odd_widths", "all_padding"])
def test_the_step_is_right_at_the_edges(name: str, is_right: Callable[..., bool]) -> None:
    """Masked lanes, far gates, padding: every element within its allowance."""
    call = cases.with_guard_rows(cases.edge_calls(2)[name], 1)
    call.outputs["out"].fill_(float("nan"))
    plain.decode({**call.inputs, "state": call.outputs["state"]}, call.scalars["lower_bound"], call.outputs["out"])
    assert is_right(call)
