"""Plain Triton kernels for NVFP4: a fused product without tuning, and a dequantiser that writes a BF16 weight.

Written here from the format's definition. Codes become FP16 by bit moves: the three magnitude bits are the lowest
exponent bits and the mantissa of an FP16 value times 2^-14, and an E4M3 byte is an FP16 value times 2^-8. A code
times a scale has at most six significant bits and lies between 2^-10 and 2688, so the FP16 operands are exact.
Axes: M tokens, N outputs, K inputs, S = K / 16 scale columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_N, BLOCK_BYTES = 64, 64
SMALL_M, LARGE_M = 16, 64
"""Token tile: 16 rows is the least a tensor core takes, whatever M is."""
INTERPRETED_N, INTERPRETED_BYTES = 512, 1024
"""The interpreter's cost is per operation, so its tiles are large."""


@triton.jit
def _decode_codes(b_nibble):
    """Low nibbles of uint16 to fp16 values, exactly."""
    bits = ((b_nibble & 7) << 9) | ((b_nibble & 8) << 12)
    return bits.to(tl.uint16).to(tl.float16, bitcast=True) * 16384.0


@triton.jit
def _load_scales(p_sf, o_row, m_row, first, S, BLOCK_S: tl.constexpr):
    """[rows, BLOCK_S] fp16 scales from column `first` on, out of a 128x4-swizzled container; 0 outside."""
    o_s = first + tl.arange(0, BLOCK_S)
    atom = (o_row // 128)[:, None] * ((S + 3) // 4) + (o_s // 4)[None, :]
    inside = ((o_row % 32) * 16 + (o_row % 128) // 32 * 4)[:, None] + (o_s % 4)[None, :]
    mask = m_row[:, None] & (o_s < S)[None, :]
    b_sf = tl.load(p_sf + atom.to(tl.int64) * 512 + inside, mask=mask, other=0).to(tl.uint16)
    return (b_sf << 7).to(tl.uint16).to(tl.float16, bitcast=True) * 256.0


@triton.jit
def _scaled(b_codes, b_sf, ROWS: tl.constexpr, BYTES: tl.constexpr):
    """Each scale times the eight codes of its block that one nibble holds."""
    b_wide = tl.broadcast_to(b_sf[:, :, None], (ROWS, BYTES // 8, 8))
    return b_codes * tl.reshape(b_wide, (ROWS, BYTES))


@triton.jit
def _plain_kernel(
    p_x,
    p_w,
    p_x_sf,
    p_w_sf,
    p_alpha,
    p_out,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
):
    o_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_b = tl.arange(0, BLOCK_BYTES)
    m_m, m_n = o_m < M, o_n < N
    half = K // 2
    b_acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for first in range(0, half, BLOCK_BYTES):
        m_b = first + o_b < half
        o_x = o_m[:, None].to(tl.int64) * half + first + o_b[None, :]
        o_w = o_n[:, None].to(tl.int64) * half + first + o_b[None, :]
        b_x = tl.load(p_x + o_x, mask=m_m[:, None] & m_b[None, :], other=0).to(tl.uint16)
        b_w = tl.load(p_w + o_w, mask=m_n[:, None] & m_b[None, :], other=0).to(tl.uint16)
        b_x_sf = _load_scales(p_x_sf, o_m, m_m, first // 8, K // 16, BLOCK_BYTES // 8)
        b_w_sf = _load_scales(p_w_sf, o_n, m_n, first // 8, K // 16, BLOCK_BYTES // 8)
        # A sum does not care in which order k runs: low nibbles are one product, high nibbles another.
        b_x_low = _scaled(_decode_codes(b_x & 15), b_x_sf, BLOCK_M, BLOCK_BYTES)
        b_w_low = _scaled(_decode_codes(b_w & 15), b_w_sf, BLOCK_N, BLOCK_BYTES)
        b_acc = tl.dot(b_x_low, tl.trans(b_w_low), b_acc)
        b_x_high = _scaled(_decode_codes(b_x >> 4), b_x_sf, BLOCK_M, BLOCK_BYTES)
        b_w_high = _scaled(_decode_codes(b_w >> 4), b_w_sf, BLOCK_N, BLOCK_BYTES)
        b_acc = tl.dot(b_x_high, tl.trans(b_w_high), b_acc)
    b_out = b_acc * tl.load(p_alpha)
    o_out = o_m[:, None].to(tl.int64) * N + o_n[None, :]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=m_m[:, None] & m_n[None, :])


@triton.jit
def _dequantise_kernel(p_w, p_w_sf, p_out, N, K, BLOCK_N: tl.constexpr, BLOCK_BYTES: tl.constexpr):
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    first = tl.program_id(1) * BLOCK_BYTES
    o_b = first + tl.arange(0, BLOCK_BYTES)
    m_n = o_n < N
    o_w = o_n[:, None].to(tl.int64) * (K // 2) + o_b[None, :]
    b_w = tl.load(p_w + o_w, mask=m_n[:, None] & (o_b < K // 2)[None, :], other=0).to(tl.uint16)
    b_sf = _load_scales(p_w_sf, o_n, m_n, first // 8, K // 16, BLOCK_BYTES // 8)
    b_low = _scaled(_decode_codes(b_w & 15), b_sf, BLOCK_N, BLOCK_BYTES)
    b_high = _scaled(_decode_codes(b_w >> 4), b_sf, BLOCK_N, BLOCK_BYTES)
    b_out = tl.interleave(b_low, b_high).to(tl.float32).to(tl.bfloat16)  # [BLOCK_N, 2 * BLOCK_BYTES]
    o_k = 2 * first + tl.arange(0, 2 * BLOCK_BYTES)
    o_out = o_n[:, None].to(tl.int64) * K + o_k[None, :]
    tl.store(p_out + o_out, b_out, mask=m_n[:, None] & (o_k < K)[None, :])


def gemm(
    x_fp4: torch.Tensor,
    weight: torch.Tensor,
    x_sf: torch.Tensor,
    weight_sf: torch.Tensor,
    alpha: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """The product in one kernel: decode in registers, two tensor-core products a tile, FP32 accumulation.

    Args:
        x_fp4, weight, x_sf, weight_sf, alpha: as `spec.py` lists them; any M and N, K % 16 == 0, uint8 scales.
        out: [M, N] bf16 or fp32, contiguous; written.
    """
    M, N = out.shape
    columns, width = _tile(out.device, N, x_fp4.shape[1])
    rows = SMALL_M if M <= SMALL_M else LARGE_M
    _plain_kernel[(triton.cdiv(N, columns), triton.cdiv(M, rows))](
        x_fp4,
        weight,
        x_sf.view(torch.uint8),
        weight_sf.view(torch.uint8),
        alpha,
        out,
        M,
        N,
        2 * x_fp4.shape[1],
        BLOCK_M=rows,
        BLOCK_N=columns,
        BLOCK_BYTES=width,
        num_warps=4,
    )


def dequantise(packed: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """Write the values of a quantised matrix as BF16, without its global scale; exact.

    Args:
        packed: [R, K/2] uint8, contiguous.
        scales: 128x4-swizzled container of [R, K/16] uint8 or float8_e4m3fn, contiguous.
        out: [R, K] bf16, contiguous; written.
    """
    R, K = out.shape
    rows, width = _tile(out.device, R, K // 2)
    _dequantise_kernel[(triton.cdiv(R, rows), triton.cdiv(K // 2, width))](
        packed, scales.view(torch.uint8), out, R, K, BLOCK_N=rows, BLOCK_BYTES=width, num_warps=4
    )


def _tile(device: torch.device, rows: int, width: int) -> tuple[int, int]:
    """Rows and bytes of a weight tile: fixed on a GPU, as large as is useful in the interpreter."""
    if device.type == "cuda":
        return BLOCK_N, BLOCK_BYTES
    tall, wide = (max(16, triton.next_power_of_2(extent)) for extent in (rows, width))
    return min(INTERPRETED_N, tall), min(INTERPRETED_BYTES, wide)
