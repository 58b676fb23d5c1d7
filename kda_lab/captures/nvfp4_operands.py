"""The operands of a recorded NVFP4 product without packing and swizzle: codes, block scales, values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kda_lab.ops.nvfp4 import e2m1, e4m3
from kda_lab.ops.nvfp4.layouts import unswizzle_128x4
from kda_lab.ops.nvfp4.quantise import BLOCK, dequantise
from kda_lab.ops.protocol import Call

MAGNITUDES = e2m1.VALUES


@dataclass(frozen=True)
class Operand:
    """One operand, rows by K: M or N rows."""

    packed: torch.Tensor
    """[R, K/2] uint8, two codes a byte."""
    scales: torch.Tensor
    """[R, K/16] uint8, linear: E4M3 bytes."""

    @property
    def values(self) -> torch.Tensor:
        """[R, K] FP32: code · scale, without the global scale; exact."""
        return dequantise(self.packed, self.scales)

    def code_shares(self) -> list[float]:
        """Share of each magnitude of `MAGNITUDES` among the codes; they add up to 1."""
        counts = torch.bincount((e2m1.unpack(self.packed) & 7).flatten().long(), minlength=len(MAGNITUDES))
        return [float(count) / float(counts.sum()) for count in counts]

    def scale_quantiles(self, shares: tuple[float, ...]) -> list[float]:
        """Quantiles of the block scales, as values between 0 and 448."""
        scales = e4m3.decode(self.scales).double().flatten()
        return [float(q) for q in torch.quantile(scales, torch.tensor(shares, dtype=torch.float64))]


def activation(call: Call) -> Operand:
    """The left operand of a call of `nvfp4.gemm`, M rows."""
    return _operand(call.inputs["x_fp4"], call.inputs["x_sf"])


def weight(call: Call) -> Operand:
    """The right operand of a call of `nvfp4.gemm`, N rows."""
    return _operand(call.inputs["weight"].t(), call.inputs["weight_sf"].t())


def _operand(packed: torch.Tensor, scales: torch.Tensor) -> Operand:
    packed = packed.cpu().contiguous()
    rows, columns = packed.shape[0], 2 * packed.shape[1] // BLOCK
    return Operand(packed, unswizzle_128x4(scales.cpu().contiguous(), rows, columns))
