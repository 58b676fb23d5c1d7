"""Block-FP8 weights to BF16: E4M3 codes with one FP32 scale for each block of 128 x 128."""

from __future__ import annotations

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.projection.sizes import ROOM

BLOCK = 128


def dequantise(name: str, weight: torch.Tensor, scales: torch.Tensor, *, partial_rows: bool = False) -> torch.Tensor:
    """A weight in BF16: each code times the scale of its block, one rounding.

    Args:
        name: of the weight, for the error text.
        weight: [N, K] float8_e4m3fn.
        scales: [ceil(N / 128), ceil(K / 128)] fp32.
        partial_rows: allow a last block of rows that is not full: the weight of b has one row a head, fewer than 128.

    Returns:
        [N, K] bf16, contiguous.

    Raises:
        ParameterError: another dtype, scales of another shape, or rows that do not fill their blocks.
    """
    wanted = tuple(-(-extent // BLOCK) for extent in weight.shape)
    reasons = []
    if weight.dtype != torch.float8_e4m3fn or scales.dtype != torch.float32:
        reasons.append(
            Reason(f"{name} dtypes", f"{weight.dtype}, {scales.dtype}", "float8_e4m3fn codes, float32 scales")
        )
    if weight.dim() != 2 or tuple(scales.shape) != wanted:
        reasons.append(
            Reason(f"{name} scales", repr(tuple(scales.shape)), f"{wanted}, one a block of {BLOCK} x {BLOCK}")
        )
    elif weight.shape[0] % BLOCK and not partial_rows:
        reasons.append(Reason(f"{name} rows", repr(weight.shape[0]), f"a multiple of {BLOCK}, or partial_rows"))
    if reasons:
        raise ParameterError(ROOM, reasons)
    spread = scales.repeat_interleave(BLOCK, 0)[: weight.shape[0]].repeat_interleave(BLOCK, 1)[:, : weight.shape[1]]
    return (weight.float() * spread).bfloat16()


def as_bf16(
    name: str, weight: torch.Tensor, scales: torch.Tensor | None, *, partial_rows: bool = False
) -> torch.Tensor:
    """The weight itself where it is BF16, else dequantised; a small weight is kept in BF16 beside large FP8 ones.

    Raises:
        ParameterError: neither, or as `dequantise`.
    """
    if weight.dtype == torch.bfloat16:
        return weight
    if scales is None:
        raise ParameterError(ROOM, [Reason(f"{name} scales", "None", f"scales, for a weight of {weight.dtype}")])
    return dequantise(name, weight, scales, partial_rows=partial_rows)
