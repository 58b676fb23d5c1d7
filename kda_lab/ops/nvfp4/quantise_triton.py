"""The activation quantiser as one Triton kernel: packed codes and swizzled scales, padding written as zero.

Bit-identical to `quantise.quantise` in either order, on a GPU without FP4 instructions as in Triton's interpreter:
both roundings are done on the bits, and divisions are IEEE ones. A program takes a tile of rows by columns; programs
below row M exist too, since the scales' padding up to 128 rows must be zero.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kda_lab import interpreter, runtime
from kda_lab.errors import ParameterError, Reason, UnavailableError
from kda_lab.ops.nvfp4.containers import BLOCK, Activation
from kda_lab.ops.nvfp4.layouts import ATOM_COLUMNS, ATOM_ROWS, round_up
from kda_lab.ops.nvfp4.quantise import ORDERS, Order

BLOCK_M, BLOCK_K, NUM_WARPS = 16, 256, 4
_SIXTH = tl.constexpr(1.0 / 6.0)
_FLOAT_MAXIMUM = tl.constexpr(3.4028234663852886e38)


@triton.jit
def _e4m3_code(b_x):
    """E4M3 byte of FP32 values that are not negative: nearest, ties to even, saturating; NaN gives 0x7F."""
    b_bits = b_x.to(tl.int32, bitcast=True)
    b_exponent = b_bits >> 23
    # Normals keep 3 fraction bits; below 2^-6 (exponent field 121) the quantum stays 2^-9.
    b_shift = tl.minimum(tl.maximum(141 - b_exponent, 20), 25)
    b_fraction = (b_bits & 0x7FFFFF) | 0x800000
    b_kept = b_fraction >> b_shift
    b_lost = b_fraction & ((1 << b_shift) - 1)
    b_half = 1 << (b_shift - 1)
    b_up = (b_lost > b_half) | ((b_lost == b_half) & ((b_kept & 1) == 1))
    # The kept implicit one counts as exponent 1, so a carry moves on to the next exponent by itself.
    b_code = b_kept + b_up.to(tl.int32) + (tl.maximum(b_exponent, 121) - 121) * 8
    b_code = tl.minimum(b_code, 0x7E)
    return tl.where(b_x != b_x, 0x7F, b_code)


@triton.jit
def _e4m3_value(b_code):
    """FP32 value of E4M3 bytes 0x00 to 0x7F; exact."""
    b_normal = ((b_code << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    b_value = tl.where(b_code < 8, b_code.to(tl.float32) * 0.001953125, b_normal)
    return tl.where(b_code == 0x7F, float("nan"), b_value)


@triton.jit
def _e2m1_code(b_x):
    """E2M1 codes of FP32 values: nearest, ties to the even code, saturating; the sign stays at zero, NaN gives 7."""
    b_abs = tl.abs(b_x)
    b_code = (b_abs > 0.25).to(tl.int32) + (b_abs >= 0.75).to(tl.int32) + (b_abs > 1.25).to(tl.int32)
    b_code += (b_abs >= 1.75).to(tl.int32) + (b_abs > 2.5).to(tl.int32) + (b_abs >= 3.5).to(tl.int32)
    b_code += (b_abs > 5.0).to(tl.int32)
    b_code += tl.where(b_x.to(tl.int32, bitcast=True) < 0, 8, 0)
    return tl.where(b_x != b_x, 7, b_code)


@triton.jit
def _quantise_kernel(
    p_x,
    p_global_scale,
    p_packed,
    p_scales,
    M,
    K,
    FAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    BLOCK_S: tl.constexpr = BLOCK_K // 16
    o_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    first = tl.program_id(1) * BLOCK_K
    o_k = first + tl.arange(0, BLOCK_K)
    m_m = o_m < M
    row = o_m.to(tl.int64)
    b_x = tl.load(p_x + row[:, None] * K + o_k[None, :], mask=m_m[:, None] & (o_k < K)[None, :], other=0.0)
    b_blocks = tl.reshape(b_x.to(tl.float32), [BLOCK_M, BLOCK_S, 16])
    # A NaN does not count; a block of nothing else has the scale NaN.
    b_amax = tl.max(tl.where(b_blocks != b_blocks, -1.0, tl.abs(b_blocks)), axis=2)  # [BLOCK_M, BLOCK_S]
    b_amax = tl.where(b_amax < 0.0, float("nan"), b_amax)

    g = tl.load(p_global_scale)
    inverse = tl.div_rn(1.0, g)
    b_code = _e4m3_code(g * (b_amax * _SIXTH)) if FAST else _e4m3_code(b_amax * (g * _SIXTH))
    b_outscale = tl.div_rn(1.0, _e4m3_value(b_code) * inverse)
    b_outscale = tl.where(b_amax == 0.0, 0.0, b_outscale) if FAST else tl.minimum(b_outscale, _FLOAT_MAXIMUM)
    b_e2m1 = _e2m1_code(b_blocks * tl.expand_dims(b_outscale, 2))

    b_low, b_high = tl.split(tl.reshape(b_e2m1, [BLOCK_M, BLOCK_K // 2, 2]))
    o_byte = first // 2 + tl.arange(0, BLOCK_K // 2)
    p_bytes = p_packed + row[:, None] * (K // 2) + o_byte[None, :]
    tl.store(p_bytes, (b_low | (b_high << 4)).to(tl.uint8), mask=m_m[:, None] & (o_byte < K // 2)[None, :])

    o_s = first // 16 + tl.arange(0, BLOCK_S)
    groups = (K // 16 + 3) // 4
    o_row = (row // 128) * groups * 512 + (row % 32) * 16 + (row % 128) // 32 * 4
    o_column = (o_s // 4) * 512 + o_s % 4
    p_bytes = p_scales + o_row[:, None] + o_column[None, :]
    m_s = (row < (M + 127) // 128 * 128)[:, None] & (o_s < groups * 4)[None, :]
    tl.store(p_bytes, b_code.to(tl.uint8), mask=m_s)


def quantise(x: torch.Tensor, global_scale: torch.Tensor, order: Order = "strict") -> Activation:
    """Quantise activations to NVFP4 in one launch on the current stream; nothing is read back to the host.

    Args:
        x: [M, K] bf16 or fp16, contiguous, K % 16 == 0, on a GPU (or anywhere under Triton's interpreter).
        global_scale: [1] FP32 on x's device; its value is not checked.
        order: `strict` or `fast`, as in `quantise.quantise`.

    Returns:
        (x_fp4 [M, K/2] uint8, x_sf [ceil128(M), ceil4(K/16)] uint8 in the 128x4 swizzle, padding zero).

    Raises:
        ParameterError: x, global_scale or order lies outside the above; all reasons at once.
        UnavailableError: x is on the CPU and the interpreter is off.
    """
    _require(x, global_scale, order)
    if runtime.interpreter_on():
        interpreter.ensure_faithful()
    elif not x.is_cuda:
        raise UnavailableError(
            "nvfp4", f"x is on {x.device} and Triton's interpreter is off. Use nvfp4.quantise, or move x to a GPU."
        )
    rows, width = x.shape
    packed = torch.empty((rows, width // 2), dtype=torch.uint8, device=x.device)
    shape = round_up(rows, ATOM_ROWS), round_up(width // BLOCK, ATOM_COLUMNS)
    scales = torch.empty(shape, dtype=torch.uint8, device=x.device)
    if scales.numel():
        grid = (shape[0] // BLOCK_M, triton.cdiv(width, BLOCK_K))
        constants = {"FAST": order == "fast", "BLOCK_M": BLOCK_M, "BLOCK_K": BLOCK_K}
        _quantise_kernel[grid](x, global_scale, packed, scales, rows, width, **constants, num_warps=NUM_WARPS)
    return Activation(packed, scales)


def _require(x: torch.Tensor, global_scale: torch.Tensor, order: str) -> None:
    reasons = []
    if x.dtype not in (torch.bfloat16, torch.float16):
        reasons.append(Reason("x.dtype", repr(x.dtype), "torch.bfloat16, torch.float16", "Cast x first."))
    if x.dim() != 2 or x.shape[1] % BLOCK or not x.is_contiguous():
        given = f"{tuple(x.shape)}, strides {x.stride()}"
        remedy = "Flatten the rows, pad K with zeros to a multiple of 16, and call .contiguous()."
        reasons.append(Reason("x.shape", repr(given), "[M, K] contiguous with K % 16 == 0", remedy))
    if global_scale.dtype != torch.float32 or global_scale.numel() != 1 or global_scale.device != x.device:
        given = f"{tuple(global_scale.shape)} {global_scale.dtype} on {global_scale.device}"
        remedy = "Cast it with .float() and keep it beside x: other dtypes would be misread."
        reasons.append(Reason("global_scale", repr(given), f"one torch.float32 element on {x.device}", remedy))
    if order not in ORDERS:
        reasons.append(Reason("order", repr(order), ", ".join(map(repr, ORDERS))))
    if reasons:
        raise ParameterError("nvfp4", reasons)
