"""A product in FP32 with replaceable steps: right as it stands, and what the mutants vary one step at a time.

Codes and scale bytes are decoded through tables, so a wrong decoder is a wrong table; a wrong layout is another way
to read the scale container. Runs on any device; the weight is decoded a part of N at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kda_lab.ops.nvfp4 import e2m1, e4m3, layouts
from kda_lab.ops.nvfp4_gemm.oracle import BLOCK, geometry
from kda_lab.ops.precision import full_fp32
from kda_lab.ops.protocol import Call

PART_ELEMENTS = 1 << 26
"""Weights decoded at a time: 256 MB of FP32."""

ReadScales = Callable[[torch.Tensor, int, int], torch.Tensor]
"""(container [Rp, Cp], rows, columns) to scale bytes [rows, columns]."""
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(x [M, K], weight [n, K]), both fp32, to [M, n]."""


def code_values() -> torch.Tensor:
    """[16] fp32: value of each E2M1 code."""
    return e2m1.decode(torch.arange(16, dtype=torch.uint8))


def scale_values() -> torch.Tensor:
    """[256] fp32: value of each E4M3 byte."""
    return e4m3.decode(torch.arange(256, dtype=torch.int32).to(torch.uint8))


def interleaved(values: torch.Tensor) -> torch.Tensor:
    """[R, K/2, 2] decoded nibbles (low, high) to [R, K]: the low nibble holds the even k."""
    return values.flatten(1)


def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The product over all of K."""
    return x @ weight.t()


def use_alpha(alpha: torch.Tensor) -> torch.Tensor:
    """What multiplies the sum."""
    return alpha


def store(value: torch.Tensor, out: torch.Tensor) -> None:
    """One rounding to the output's dtype."""
    out.copy_(value)


@dataclass(frozen=True)
class Gemm:
    """The op with replaceable steps; the defaults are right. Calling it computes one call."""

    codes: Callable[[], torch.Tensor] = code_values
    scales: Callable[[], torch.Tensor] = scale_values
    """Of the weight."""
    x_scales: Callable[[], torch.Tensor] = scale_values
    order: Callable[[torch.Tensor], torch.Tensor] = interleaved
    """Which k each nibble of a weight byte holds."""
    x_layout: ReadScales = layouts.unswizzle_128x4
    weight_layout: ReadScales = layouts.unswizzle_128x4
    product: Product = multiply
    alpha: Callable[[torch.Tensor], torch.Tensor] = use_alpha
    adjust: Callable[[Call, torch.Tensor], torch.Tensor] = lambda call, value: value
    """A last change of the scaled sums [M, N] fp32."""
    store: Callable[[torch.Tensor, torch.Tensor], None] = store

    def x_values(self, call: Call) -> torch.Tensor:
        """[M, K] fp32 activations, without the global scale."""
        M, _, K = geometry(call)
        x_sf = self.x_layout(call.inputs["x_sf"], M, K // BLOCK)
        return dequantised(call.inputs["x_fp4"], x_sf, code_values(), self.x_scales(), interleaved)

    def weight_scales(self, call: Call) -> torch.Tensor:
        """[N, K/16] scale bytes of the weight."""
        _, N, K = geometry(call)
        return self.weight_layout(call.inputs["weight_sf"].t(), N, K // BLOCK)

    def weight_values(self, call: Call, part: slice, scales: torch.Tensor | None = None) -> torch.Tensor:
        """[n, K] fp32 weights of a part of N, without the global scale; `scales` from `weight_scales` saves time."""
        scales = self.weight_scales(call) if scales is None else scales
        return dequantised(call.inputs["weight"].t()[part], scales[part], self.codes(), self.scales(), self.order)

    def sums(self, call: Call) -> torch.Tensor:
        """[M, N] fp32, before alpha."""
        M, N, K = geometry(call)
        x, scales = self.x_values(call), self.weight_scales(call)
        out = torch.empty(M, N, dtype=torch.float32, device=call.device)
        step = max(BLOCK, PART_ELEMENTS // K)
        with full_fp32():
            for first in range(0, N, step):
                part = slice(first, min(first + step, N))
                out[:, part] = self.product(x, self.weight_values(call, part, scales))
        return out

    def output(self, call: Call) -> torch.Tensor:
        """[M, N] fp32, before the store."""
        return self.adjust(call, self.sums(call) * self.alpha(call.inputs["alpha"]))

    def __call__(self, call: Call) -> None:
        self.store(self.output(call), call.outputs["out"])


def dequantised(
    packed: torch.Tensor,
    scales: torch.Tensor,
    codes: torch.Tensor,
    bytes_: torch.Tensor,
    order: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """[R, K] fp32 values of [R, K/2] bytes and [R, K/16] scale bytes, through tables of 16 and 256 entries."""
    device = packed.device
    byte = torch.arange(256)
    pairs = torch.stack((codes[byte & 15], codes[byte >> 4]), 1).to(device)
    values = order(torch.nn.functional.embedding(packed.int(), pairs))
    factors = bytes_.to(device).index_select(0, scales.flatten().int()).view(scales.shape)
    return (values.unflatten(1, (-1, BLOCK)) * factors[:, :, None]).flatten(1)
