"""RMS norm of a row, scaled by a weight that is stored less one, as the index heads have it."""

from __future__ import annotations

import torch

EPS = 1e-6


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS, unit_offset: bool = True) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · (weight + 1) along the last axis, unrounded.

    Args:
        x: [..., D], any floating-point dtype.
        weight: [D], any floating-point dtype.
        eps: dimensionless, above 0 where a row may be all zero.
        unit_offset: False for a weight that is stored as it is.

    Returns:
        [..., D] in FP64 where x is FP64, else in FP32.
    """
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    wide = x.to(dtype)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide * scale * (weight.to(dtype) + float(unit_offset))
