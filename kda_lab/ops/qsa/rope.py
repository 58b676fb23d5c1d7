"""Rotary position embedding in the neox layout: element i of the first half turns with element i of the second.

With an axis map of several position streams (mrope), the map chooses rows of the table; text has one stream.
"""

from __future__ import annotations

import torch

from kda_lab.errors import ParameterError, Reason

ROOM = "qsa"
BASE = 10_000_000.0


def cos_sin_table(count: int, rotary_dim: int, base: float = BASE, device: torch.device | str = "cpu") -> torch.Tensor:
    """Cosines, then sines, of every position below `count`.

    Args:
        count: positions, 0 to count - 1.
        rotary_dim: width that turns; even.
        base: of the geometric sequence of wavelengths.

    Returns:
        [count, rotary_dim] fp32: columns 0 to rotary_dim/2 - 1 hold cosines, the others sines.

    Raises:
        ParameterError: an odd or non-positive width.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise ParameterError(ROOM, [Reason("rotary_dim", repr(rotary_dim), "an even number of at least 2")])
    inverse = base ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angle = torch.arange(count, dtype=torch.float64)[:, None] * inverse
    return torch.cat([angle.cos(), angle.sin()], 1).to(torch.float32).to(device)


def rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Turn the first `rotary_dim` elements of each row; the others stay.

    Args:
        x: [..., D] fp32 or fp64 (others are widened to FP32).
        cos_sin: [..., rotary_dim], one row of `cos_sin_table` a row of x; broadcasts against x's leading axes.

    Returns:
        [..., D], unrounded, in FP64 where x is FP64, else in FP32.

    Raises:
        ParameterError: rotary_dim is odd or wider than D.
    """
    rotary_dim = cos_sin.shape[-1]
    if rotary_dim % 2 or rotary_dim > x.shape[-1]:
        allowed = f"an even number up to {x.shape[-1]}, the width of x"
        raise ParameterError(ROOM, [Reason("rotary_dim", repr(rotary_dim), allowed)])
    wide = x if x.dtype == torch.float64 else x.to(torch.float32)
    cos, sin = cos_sin.to(wide.dtype).chunk(2, dim=-1)
    half = rotary_dim // 2
    first, second, rest = wide[..., :half], wide[..., half:rotary_dim], wide[..., rotary_dim:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
