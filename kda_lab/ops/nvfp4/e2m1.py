"""E2M1: four-bit floats with the values 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign; no infinity, no NaN.

A code's low three bits count up through the values, bit 3 is the sign. Two codes share a byte along K: the low
nibble holds the even k. Everything here works on any device and never reads a value back to the host.
"""

from __future__ import annotations

import torch

from kda_lab.errors import ParameterError, Reason

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Value of each magnitude code."""
MAXIMUM = 6.0
SIGN = 8
"""The sign bit of a code."""
NAN_CODE = 7
"""What the hardware conversion makes of a NaN: +6."""


def encode(x: torch.Tensor) -> torch.Tensor:
    """Round to the nearest E2M1 value, ties to the even code, saturating at ±6.

    The sign survives rounding to zero (-0.1 gives code 8); a NaN gives code 7, as the hardware conversion does.

    Args:
        x: any shape, floating point; widened to FP32, which is exact for BF16 and FP16.

    Returns:
        uint8 codes 0 to 15, the shape of x.

    Raises:
        ParameterError: x is not floating point, or FP64, which FP32 would round first.
    """
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        allowed = "torch.float32, torch.bfloat16, torch.float16"
        raise ParameterError("nvfp4", [Reason("x.dtype", repr(x.dtype), allowed, "Cast x first.")])
    x = x.float()
    magnitude = x.abs()
    # Midpoints between neighbours; a tie goes to the even code, so the bound is open below an even code.
    codes = (magnitude > 0.25).to(torch.uint8)
    codes += magnitude >= 0.75
    codes += magnitude > 1.25
    codes += magnitude >= 1.75
    codes += magnitude > 2.5
    codes += magnitude >= 3.5
    codes += magnitude > 5.0
    codes |= torch.signbit(x).to(torch.uint8) * SIGN
    return codes.masked_fill_(x.isnan(), NAN_CODE)


def decode(codes: torch.Tensor) -> torch.Tensor:
    """Values of E2M1 codes; exact.

    Args:
        codes: any shape, uint8; only the low four bits are read.

    Returns:
        FP32, the shape of codes; code 8 is -0.0.

    Raises:
        ParameterError: codes are not uint8.
    """
    require_bytes("codes", codes)
    table = torch.tensor([*VALUES, *(-value for value in VALUES)], dtype=torch.float32, device=codes.device)
    return table.index_select(0, (codes & 0xF).flatten().int()).view(codes.shape)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Put two codes into a byte along the last axis: even k low, odd k high.

    Args:
        codes: [..., K] uint8, K even; only the low four bits are read.

    Returns:
        [..., K/2] uint8, contiguous.

    Raises:
        ParameterError: codes are not uint8, or K is odd.
    """
    require_bytes("codes", codes)
    if codes.dim() == 0 or codes.shape[-1] % 2:
        given = repr(tuple(codes.shape))
        raise ParameterError("nvfp4", [Reason("codes.shape", given, "[..., K] with an even K", "Pad K with code 0.")])
    return (codes[..., 0::2] & 0xF) | (codes[..., 1::2] << 4)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Take two codes out of each byte: the inverse of `pack`.

    Args:
        packed: [..., K/2] uint8.

    Returns:
        [..., K] uint8, contiguous.

    Raises:
        ParameterError: packed is not uint8.
    """
    require_bytes("packed", packed)
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def require_bytes(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that is not uint8.

    Raises:
        ParameterError: the dtype is another one.
    """
    if tensor.dtype != torch.uint8:
        raise ParameterError(
            "nvfp4",
            [Reason(f"{name}.dtype", repr(tensor.dtype), "torch.uint8", "Use .view(torch.uint8) for raw bytes.")],
        )
