"""How far an element may lie from its exact value: what one rounding to BF16 costs, and what FP32 sums cost."""

from __future__ import annotations

import torch

BF16_HALF_ULP = 2.0**-8
"""Most that rounding to BF16 changes a value, relative to it."""
FP32_SUMS = 1e-5
"""FP32 sums and exponentials, relative to an element and to the RMS of its row or state: ten times what FP32 shows."""


def rms(x: torch.Tensor, axes: int) -> torch.Tensor:
    """Root mean square over the last `axes` axes, which are kept with extent 1."""
    return x.square().mean(tuple(range(-axes, 0)), keepdim=True).sqrt()


def rounded_row(exact: torch.Tensor) -> torch.Tensor:
    """Of rows that are rounded to BF16 once: half an ulp of the element and FP32 sums of its row; 0 in a zero row."""
    return 1.01 * BF16_HALF_ULP * exact.abs() + FP32_SUMS * rms(exact, 1)


def summed(exact: torch.Tensor, axes: int) -> torch.Tensor:
    """Of FP32 values: FP32 sums, relative to the element and to the RMS over the last `axes` axes; 0 where all is zero.

    A state that many tokens have decayed holds elements of fifty times its RMS, which err by what they are themselves.
    """
    return FP32_SUMS * (rms(exact, axes) + exact.abs())
