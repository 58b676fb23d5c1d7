"""Operands as `nvfp4.gemm` takes them: packed codes and swizzled scales, weights as transposed views."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.nvfp4 import e2m1, layouts

BLOCK = 16
"""Values of K that share one scale."""


class Weight(NamedTuple):
    """Weight operand: `weight` [K/2, N] uint8 with strides (1, K/2), `weight_sf` [ceil4(K/16), ceil128(N)] uint8."""

    weight: torch.Tensor
    weight_sf: torch.Tensor


class Activation(NamedTuple):
    """Activation operand: `x_fp4` [M, K/2] uint8, `x_sf` [ceil128(M), ceil4(K/16)] uint8, both contiguous."""

    x_fp4: torch.Tensor
    x_sf: torch.Tensor


def prepare_weight(packed: torch.Tensor, scales: torch.Tensor) -> Weight:
    """Turn a row-major quantised weight into the operand of the product.

    Args:
        packed: [N, K/2] uint8; the operand is a view of it where it is contiguous.
        scales: [N, K/16] uint8 or float8_e4m3fn, linear.

    Returns:
        (weight, weight_sf): the transposed view, and the transposed view of the swizzled scales.

    Raises:
        ParameterError: shapes do not fit each other, or a dtype is another one.
    """
    require_pair(packed, scales)
    return Weight(packed.contiguous().t(), layouts.swizzle_128x4(scales).t())


def prepare_activation(packed: torch.Tensor, scales: torch.Tensor) -> Activation:
    """Turn quantised activations into the operand of the product.

    Args:
        packed: [M, K/2] uint8.
        scales: [M, K/16] uint8 or float8_e4m3fn, linear.

    Returns:
        (x_fp4, x_sf): the packed codes, contiguous, and the swizzled scales with zero padding.

    Raises:
        ParameterError: shapes do not fit each other, or a dtype is another one.
    """
    require_pair(packed, scales)
    return Activation(packed.contiguous(), layouts.swizzle_128x4(scales))


def require_pair(packed: torch.Tensor, scales: torch.Tensor) -> None:
    """Refuse packed codes [R, K/2] and linear scales [R, K/16] that do not fit each other.

    Raises:
        ParameterError: shapes do not fit each other, or the codes are not uint8.
    """
    e2m1.require_bytes("packed", packed)
    given, bytes_a_block = tuple(packed.shape), BLOCK // 2
    if len(given) != 2 or given[1] % bytes_a_block:
        remedy = "Pad K with zeros to a multiple of 16."
        raise ParameterError("nvfp4", [Reason("packed.shape", repr(given), "[R, K/2] with K % 16 == 0", remedy)])
    expected = (given[0], given[1] // bytes_a_block)
    if tuple(scales.shape) != expected:
        remedy = "Give linear scales [R, K/16], not swizzled ones."
        raise ParameterError("nvfp4", [Reason("scales.shape", repr(tuple(scales.shape)), repr(expected), remedy)])
