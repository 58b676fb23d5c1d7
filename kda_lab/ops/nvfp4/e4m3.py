"""E4M3FN: the byte of a block scale. Largest 448 (0x7E), smallest normal 2^-6 (0x08), smallest above zero 2^-9 (0x01).

0x7F and 0xFF are NaN; there is no infinity. NVFP4 scales are never negative, so bytes above 0x7E are damage.
"""

from __future__ import annotations

import torch

from kda_lab.errors import ParameterError, Reason

MAXIMUM = 448.0
MAXIMUM_BYTE = 0x7E
NAN_BYTE = 0x7F


def encode(x: torch.Tensor) -> torch.Tensor:
    """Round to the nearest E4M3FN value, ties to even, saturating at ±448 (infinity too); a NaN gives 0x7F.

    Args:
        x: any shape, FP32.

    Returns:
        uint8, the shape of x.

    Raises:
        ParameterError: x is not FP32 (a narrower one would have been rounded before).
    """
    if x.dtype != torch.float32:
        raise ParameterError("nvfp4", [Reason("x.dtype", repr(x.dtype), "torch.float32", "Compute scales in FP32.")])
    # torch's cast turns what lies above 464 into NaN, so it must not see it.
    rounded = x.clamp(-MAXIMUM, MAXIMUM).to(torch.float8_e4m3fn).view(torch.uint8)
    return rounded.masked_fill_(x.isnan(), NAN_BYTE)


def decode(scales: torch.Tensor) -> torch.Tensor:
    """Values of E4M3FN bytes; exact.

    Args:
        scales: any shape, uint8 or float8_e4m3fn.

    Returns:
        FP32, the shape of scales; 0x7F and 0xFF are NaN.

    Raises:
        ParameterError: scales have another dtype.
    """
    return as_bytes("scales", scales).view(torch.float8_e4m3fn).float()


def as_bytes(name: str, scales: torch.Tensor) -> torch.Tensor:
    """The bytes of a scale tensor: uint8 as it is, float8_e4m3fn viewed as uint8; no copy.

    Raises:
        ParameterError: scales have another dtype.
    """
    if scales.dtype not in (torch.uint8, torch.float8_e4m3fn):
        allowed = "torch.uint8, torch.float8_e4m3fn"
        raise ParameterError(
            "nvfp4", [Reason(f"{name}.dtype", repr(scales.dtype), allowed, "Encode FP32 scales with e4m3.encode.")]
        )
    return scales.view(torch.uint8)


def is_scale(scales: torch.Tensor) -> torch.Tensor:
    """Which bytes a block scale may have: 0x00 to 0x7E, so neither NaN nor below zero.

    Returns:
        bool, the shape of scales.

    Raises:
        ParameterError: scales are neither uint8 nor float8_e4m3fn.
    """
    return as_bytes("scales", scales) <= MAXIMUM_BYTE
