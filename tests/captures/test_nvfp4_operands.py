"""Operands of a recorded product come back from packing and swizzle as they were put in."""

from __future__ import annotations

import pytest
import torch

from kda_lab.captures import nvfp4_operands
from kda_lab.ops.nvfp4 import e2m1
from kda_lab.ops.nvfp4.containers import prepare_activation, prepare_weight
from kda_lab.ops.protocol import Call


def product(codes: torch.Tensor, scales: torch.Tensor, side: str) -> Call:
    """A call whose operand on one side holds these codes [R, K] and scales [R, K/16]."""
    packed = e2m1.pack(codes)
    inputs = prepare_activation(packed, scales) if side == "x" else prepare_weight(packed, scales)
    return Call("nvfp4.gemm", dict(inputs._asdict()), {}, {})


@pytest.mark.parametrize("side", ["x", "weight"])
@pytest.mark.parametrize("rows", [1, 9, 129])
def test_an_operand_is_what_was_packed(side: str, rows: int) -> None:
    """Codes, scales and values, for rows above and below the 128 of an atom; padding is left out."""
    generator = torch.Generator().manual_seed(rows)
    codes = torch.randint(0, 16, (rows, 96), dtype=torch.uint8, generator=generator)
    scales = torch.randint(1, 127, (rows, 6), dtype=torch.uint8, generator=generator)
    call = product(codes, scales, side)
    operand = nvfp4_operands.activation(call) if side == "x" else nvfp4_operands.weight(call)
    assert torch.equal(e2m1.unpack(operand.packed), codes) and torch.equal(operand.scales, scales)
    values = e2m1.decode(codes) * scales.view(torch.float8_e4m3fn).float().repeat_interleave(16, 1)
    assert torch.equal(operand.values, values)


def test_shares_and_quantiles_are_of_magnitudes_and_values() -> None:
    """The sign does not count, and a scale is a value, not a byte."""
    codes = torch.tensor([[0, 8, 7, 15] * 4, [1] * 16], dtype=torch.uint8)
    scales = torch.tensor([[0x38], [0x40]], dtype=torch.uint8)
    operand = nvfp4_operands.activation(product(codes, scales, "x"))
    assert operand.code_shares() == [0.25, 0.5, 0, 0, 0, 0, 0, 0.25]
    assert operand.scale_quantiles((0.0, 0.5, 1.0)) == [1.0, 1.5, 2.0]
