"""NVFP4 GEMM for any shape: E2M1 codes and E4M3 block scales, one Triton launch, FP32 accumulation.

Two kernels, chosen on the host by the device's capability:

* `_upcast_kernel` decodes both operands to FP16 and uses the ordinary tensor cores. A code times its scale has at
  most six significant bits; kept times 2^-7 it lies within FP16's range and is exact, so only the order of the FP32
  sum differs from the definition. Even and odd k, the low and the high nibbles, are two products of one tile: k may
  run in any order that both operands share, so nothing is interleaved.
* `_block_scaled_kernel` hands the packed bytes to `tl.dot_scaled`, which SM120 and SM121 execute natively. It was
  compiled, never run on such a device. Triton before 3.8 cannot compile it for SM121, which then takes the first.

Every program owns one output tile and the whole of K: deterministic bits, no scratch, no state.

Imports torch and triton only. Contract and layouts: source thread sglang PR 36865; code written here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

BLOCK = 16
MAX_M = 1 << 16
MAX_N = 1 << 20
MAX_K = 1 << 17
OUT_DTYPES = (torch.bfloat16, torch.float32)
SCALE_DTYPES = (torch.uint8, torch.float8_e4m3fn)
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""x_fp4, weight, x_sf, weight_sf, alpha: the op's tensors in order."""


@dataclass(frozen=True)
class Schedule:
    """The tile of one program: `block_m` x `block_n` outputs, `block_k` codes of K a step."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    weights_first: bool = False
    """The weights are the left operand: few tokens then need no padding to a tensor core's 16 or 64 rows."""


# (most M, most N, schedule); the first entry that fits is used. The first and the last are the best of six each on one
# H200 (docs/facts.md), the middle one was chosen by shared memory and occupancy.
SCHEDULES = (
    (16, MAX_N, Schedule(16, 64, 256, num_warps=4, num_stages=3, weights_first=True)),
    (64, MAX_N, Schedule(64, 64, 128, num_warps=4, num_stages=3, weights_first=True)),
    (MAX_M, MAX_N, Schedule(128, 256, 64, num_warps=8, num_stages=3)),
)
# SM120 and SM121 have 99 KB of shared memory a block. Compiled, never measured.
SCHEDULES_BLOCK_SCALED = (
    (16, MAX_N, Schedule(16, 64, 256, num_warps=4, num_stages=3)),
    (64, MAX_N, Schedule(64, 64, 128, num_warps=4, num_stages=3)),
    (MAX_M, MAX_N, Schedule(128, 128, 128, num_warps=8, num_stages=2)),
)
TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])
BLOCK_SCALED = ((12, 0), (12, 1)) if TRITON >= (3, 8) else ((12, 0),)
UPCAST = tuple(c for c in ((9, 0), (10, 0), (10, 3), (12, 1)) if c not in BLOCK_SCALED)


def schedule_for(m: int, n: int, *, native: bool = False) -> Schedule:
    """The schedule of a launch of M x N outputs; host-visible facts only."""
    table = SCHEDULES_BLOCK_SCALED if native else SCHEDULES
    return next(schedule for most_m, most_n, schedule in table if m <= most_m and n <= most_n)


@triton.jit
def _load_scales(p_scales, o_row, m_row, o_scale, scales):
    """Scale bytes [rows, columns] gathered from a 128x4 swizzled container; zero outside the live rows and columns.

    Padding is never loaded, so what lies there cannot leak.
    """
    atoms = (scales + 3) // 4
    o_atom_row = (o_row // 128).to(tl.int64) * atoms * 512 + o_row % 32 * 16 + o_row % 128 // 32 * 4
    o_swizzled = o_atom_row[:, None] + (o_scale // 4 * 512 + o_scale % 4)[None, :]
    return tl.load(p_scales + o_swizzled, mask=m_row[:, None] & (o_scale < scales)[None, :], other=0)


@triton.jit
def _scales_fp16(b_bytes):
    """E4M3 bytes as FP16 values times 2^7.

    Both formats store an exponent above a mantissa and count subnormals alike, so E4M3's bits, moved to FP16's place,
    are the value times 2^-8. The pattern of a NaN would be read as 480.
    """
    b_bits = b_bytes.to(tl.int16)
    b_moved = ((b_bits & 0x7F) << 7) | ((b_bits & 0x80) << 8)
    b_scales = b_moved.to(tl.float16, bitcast=True) * 32768.0
    return tl.where((b_bits & 0x7F) == 0x7F, float("nan"), b_scales)


@triton.jit
def _codes_fp16(b_low, b_scales, ROWS: tl.constexpr, SCALES: tl.constexpr):
    """Codes in the four low bits of int16 [ROWS, 8 * SCALES], times their scales, as FP16 values times 2^-7.

    Magnitude and sign, moved to FP16's place, are the value times 2^-14; code 1 is a subnormal there, which FP16
    arithmetic keeps.
    """
    b_moved = ((b_low & 0x7) << 9) | ((b_low & 0x8) << 12)
    b_values = tl.reshape(b_moved.to(tl.float16, bitcast=True), [ROWS, SCALES, 8])
    return tl.reshape(b_values * b_scales[:, :, None], [ROWS, SCALES * 8])


@triton.jit
def _upcast_kernel(
    p_x,
    p_w,
    p_xs,
    p_ws,
    p_alpha,
    p_out,
    M,
    N,
    row_bytes,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
):
    BYTES: tl.constexpr = BLOCK_K // 2
    SCALES: tl.constexpr = BLOCK_K // 16
    tiles_m = tl.cdiv(M, BLOCK_M)
    # Tokens run fastest: the programs that share a weight tile run side by side.
    i_m = tl.program_id(0) % tiles_m
    i_n = tl.program_id(0) // tiles_m
    o_m = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    o_n = i_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m_m = o_m < M
    m_n = o_n < N
    scales = row_bytes // 8
    p_x_rows = p_x + o_m.to(tl.int64)[:, None] * row_bytes
    p_w_rows = p_w + o_n.to(tl.int64)[:, None] * row_bytes

    if WEIGHTS_FIRST:
        b_acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    else:
        b_acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for i_k in range(0, tl.cdiv(row_bytes, BYTES)):
        o_byte = i_k * BYTES + tl.arange(0, BYTES)
        o_scale = i_k * SCALES + tl.arange(0, SCALES)
        m_byte = (o_byte < row_bytes)[None, :]
        b_x = tl.load(p_x_rows + o_byte[None, :], mask=m_m[:, None] & m_byte, other=0).to(tl.int16)
        b_w = tl.load(p_w_rows + o_byte[None, :], mask=m_n[:, None] & m_byte, other=0).to(tl.int16)
        b_xs = _scales_fp16(_load_scales(p_xs, o_m, m_m, o_scale, scales))
        b_ws = _scales_fp16(_load_scales(p_ws, o_n, m_n, o_scale, scales))
        b_x_even = _codes_fp16(b_x, b_xs, BLOCK_M, SCALES)
        b_x_odd = _codes_fp16(b_x >> 4, b_xs, BLOCK_M, SCALES)
        b_w_even = _codes_fp16(b_w, b_ws, BLOCK_N, SCALES)
        b_w_odd = _codes_fp16(b_w >> 4, b_ws, BLOCK_N, SCALES)
        if WEIGHTS_FIRST:
            b_tile = tl.dot(b_w_even, tl.trans(b_x_even))
            b_tile = tl.dot(b_w_odd, tl.trans(b_x_odd), acc=b_tile)
        else:
            b_tile = tl.dot(b_x_even, tl.trans(b_w_even))
            b_tile = tl.dot(b_x_odd, tl.trans(b_w_odd), acc=b_tile)
        # Both operands carry 2^-7; a power of two costs no bit. Summed outside the tensor cores: SM90's `wgmma` rounds
        # its running sum towards zero, which over K = 17408 adds up to a rel-L2 of 2e-5.
        b_acc += b_tile * 16384.0

    if WEIGHTS_FIRST:
        b_acc = tl.trans(b_acc)
    b_out = b_acc * tl.load(p_alpha)
    o_out = o_m.to(tl.int64)[:, None] * N + o_n[None, :]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=m_m[:, None] & m_n[None, :])


@triton.jit
def _block_scaled_kernel(
    p_x,
    p_w,
    p_xs,
    p_ws,
    p_alpha,
    p_out,
    M,
    N,
    row_bytes,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    BYTES: tl.constexpr = BLOCK_K // 2
    SCALES: tl.constexpr = BLOCK_K // 16
    tiles_m = tl.cdiv(M, BLOCK_M)
    i_m = tl.program_id(0) % tiles_m
    i_n = tl.program_id(0) // tiles_m
    o_m = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    o_n = i_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m_m = o_m < M
    m_n = o_n < N
    scales = row_bytes // 8
    p_x_rows = p_x + o_m.to(tl.int64)[:, None] * row_bytes
    p_w_rows = p_w + o_n.to(tl.int64)[:, None] * row_bytes

    b_acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for i_k in range(0, tl.cdiv(row_bytes, BYTES)):
        o_byte = i_k * BYTES + tl.arange(0, BYTES)
        o_scale = i_k * SCALES + tl.arange(0, SCALES)
        m_byte = (o_byte < row_bytes)[None, :]
        b_x = tl.load(p_x_rows + o_byte[None, :], mask=m_m[:, None] & m_byte, other=0)
        b_w = tl.load(p_w_rows + o_byte[None, :], mask=m_n[:, None] & m_byte, other=0)
        # An FP8 scale type is what tells `dot_scaled` that a scale covers 16 codes.
        b_xs = _load_scales(p_xs, o_m, m_m, o_scale, scales).to(tl.float8e4nv, bitcast=True)
        b_ws = _load_scales(p_ws, o_n, m_n, o_scale, scales).to(tl.float8e4nv, bitcast=True)
        b_acc = tl.dot_scaled(b_x, b_xs, "e2m1", tl.trans(b_w), b_ws, "e2m1", acc=b_acc)

    b_out = b_acc * tl.load(p_alpha)
    o_out = o_m.to(tl.int64)[:, None] * N + o_n[None, :]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=m_m[:, None] & m_n[None, :])


def _compile_unit(schedule: Schedule, out_type: str, native: bool) -> dict[str, object]:
    pointers = dict.fromkeys(("p_x", "p_w", "p_xs", "p_ws"), "*u8") | {"p_alpha": "*fp32", "p_out": out_type}
    constants: dict[str, int | bool] = {
        "BLOCK_M": schedule.block_m,
        "BLOCK_N": schedule.block_n,
        "BLOCK_K": schedule.block_k,
    }
    if not native:
        constants["WEIGHTS_FIRST"] = schedule.weights_first
    extents = dict.fromkeys(("M", "N", "row_bytes"), "i32")
    return {
        "function": "_block_scaled_kernel" if native else "_upcast_kernel",
        "signature": {**pointers, **extents, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": (*pointers, "N", "row_bytes"),
        "num_warps": schedule.num_warps,
        "num_stages": schedule.num_stages,
        "capabilities": BLOCK_SCALED if native else UPCAST,
    }


_SCALES = {"dtypes": ("uint8", "float8_e4m3fn")}
CONTRACT = {
    "op": "nvfp4.gemm",
    "kernel": "nvfp4_gemm_portable",
    "entry": "gemm",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "NVFP4 GEMM for every shape that no specialised kernel takes, contract of sglang PR 36865",
    "tensors": {
        "x_fp4": {"dtypes": ("uint8",), "shape": ("M", "K/2")},
        "weight": {"dtypes": ("uint8",), "shape": ("K/2", "N"), "transposed": True},
        "x_sf": {**_SCALES, "shape": ("ceil128(M)", "ceil4(K/16)")},
        "weight_sf": {**_SCALES, "shape": ("ceil4(K/16)", "ceil128(N)"), "transposed": True},
        "alpha": {"dtypes": ("float32",), "shape": (1,), "alignment_bytes": 4},
        "out": {"dtypes": ("bfloat16", "float32"), "shape": ("M", "N"), "alignment_bytes": 4, "optional": True},
    },
    "scalars": {"out_dtype": {"kind": "dtype", "allowed": ("bfloat16", "float32")}},
    "callable": (
        {
            "axes": {
                "M": {"minimum": 1, "maximum": MAX_M},
                "N": {"minimum": 1, "maximum": MAX_N},
                "K": {"minimum": BLOCK, "maximum": MAX_K, "multiple_of": BLOCK},
            },
            "basis": "masks for every tail; 64-bit offsets of rows",
        },
    ),
    "fallback": {"kind": "raise"},
    "state": {"scratch_bytes": 0, "concurrency": "any launches may overlap", "reset": "none to reset"},
    "kernels_per_call": 1,
    "compile_units": tuple(
        _compile_unit(schedule, out_type, native)
        for table, native in ((SCHEDULES, False), (SCHEDULES_BLOCK_SCALED, True))
        for _, _, schedule in table
        for out_type in ("*bf16", "*fp32")
    ),
}


@functools.cache
def _is_native(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in BLOCK_SCALED


def _interpreted_schedule(m: int, n: int, k: int) -> Schedule:
    """Large tiles for Triton's interpreter, whose cost is per operation; K is cut where least of a tile is padding."""
    block_k = min((1024, 512, 256, 128), key=lambda block: (triton.cdiv(k, block) * block, -block))
    block_m = min(128, max(16, triton.next_power_of_2(m)))
    block_n = min(2048, max(16, triton.next_power_of_2(n)))
    return Schedule(block_m, block_n, block_k, num_warps=4, num_stages=1)


def launch(operands: Operands, out: torch.Tensor, schedule: Schedule, *, native: bool = False) -> None:
    """Launch one kernel with a given schedule; nothing is checked.

    Args:
        operands: x_fp4, weight, x_sf, weight_sf, alpha as in `gemm`.
        out: [M, N] bf16 or fp32, contiguous; written.
        schedule: tile of a program; `weights_first` is read by the up-casting kernel only.
        native: the block-scaled kernel instead of the up-casting one.
    """
    x_fp4, weight, x_sf, weight_sf, alpha = operands
    (m, row_bytes), n = x_fp4.shape, weight.shape[1]
    grid = (triton.cdiv(m, schedule.block_m) * triton.cdiv(n, schedule.block_n),)
    # Triton's pointers are typed: scales arrive as bytes whatever their dtype.
    arguments = (x_fp4, weight, x_sf.view(torch.uint8), weight_sf.view(torch.uint8), alpha, out, m, n, row_bytes)
    tile = {"BLOCK_M": schedule.block_m, "BLOCK_N": schedule.block_n, "BLOCK_K": schedule.block_k}
    options = {"num_warps": schedule.num_warps, "num_stages": schedule.num_stages}
    if native:
        _block_scaled_kernel[grid](*arguments, **tile, **options)
    else:
        _upcast_kernel[grid](*arguments, **tile, WEIGHTS_FIRST=schedule.weights_first, **options)


def _ceil(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _shape_problems(operands: Operands) -> list[str]:
    """Extents, dtypes and layouts of the operands that the kernels cannot take, in words."""
    x_fp4, weight, x_sf, weight_sf, alpha = operands
    if any(t.dim() != 2 for t in operands[:4]):
        return ["x_fp4, weight, x_sf and weight_sf must have two dimensions"]
    (m, row_bytes), (weight_bytes, n) = x_fp4.shape, weight.shape
    k, columns = 2 * row_bytes, _ceil(row_bytes // 8, 4)
    found = []
    if weight_bytes != row_bytes:
        found.append(f"weight has {weight_bytes} rows; allowed: {row_bytes} = K/2 as in x_fp4")
    if k % BLOCK or not BLOCK <= k <= MAX_K:
        found.append(f"K is {k}; allowed: multiples of {BLOCK} up to {MAX_K}")
    for name, extent, most in (("M", m, MAX_M), ("N", n, MAX_N)):
        if not 1 <= extent <= most:
            found.append(f"{name} is {extent}; allowed: 1 to {most}")
    for name, scales, wanted in (
        ("x_sf", x_sf, (_ceil(m, 128), columns)),
        ("weight_sf", weight_sf, (columns, _ceil(n, 128))),
    ):
        if tuple(scales.shape) != wanted:
            found.append(f"{name} has shape {tuple(scales.shape)}; allowed: {wanted}")
        if scales.dtype not in SCALE_DTYPES:
            found.append(f"{name} is {scales.dtype}; allowed: torch.uint8, torch.float8_e4m3fn")
    if x_fp4.dtype != torch.uint8 or weight.dtype != torch.uint8:
        found.append("x_fp4 and weight must be torch.uint8")
    if alpha.dtype != torch.float32 or alpha.numel() != 1:
        found.append("alpha must be one torch.float32")
    if not all(t.is_contiguous() for t in (x_fp4, x_sf, weight.t(), weight_sf.t())):
        found.append("x_fp4 and x_sf must be contiguous, weight and weight_sf the transposed views of contiguous ones")
    return found


def _out_problems(operands: Operands, out_dtype: torch.dtype, out: torch.Tensor | None) -> list[str]:
    """What is wrong with the output's dtype or buffer, and whether all tensors share a device, in words."""
    wanted = (operands[0].shape[0], operands[1].shape[-1])
    found = []
    if out_dtype not in OUT_DTYPES:
        found.append(f"out_dtype is {out_dtype}; allowed: torch.bfloat16, torch.float32")
    if out is not None and (tuple(out.shape), out.dtype) != (wanted, out_dtype):
        found.append(f"out is {tuple(out.shape)} {out.dtype}; allowed: {wanted} {out_dtype}")
    if out is not None and not out.is_contiguous():
        found.append("out must be contiguous")
    if len({t.device for t in (*operands, *(() if out is None else (out,)))}) != 1:
        found.append("all tensors must be on one device")
    return found


def gemm(
    x_fp4: torch.Tensor,
    weight: torch.Tensor,
    x_sf: torch.Tensor,
    weight_sf: torch.Tensor,
    alpha: torch.Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Product of packed activations and weights: alpha * sum_k x[m, k] * w[n, k], each code times its block's scale.

    Args:
        x_fp4: [M, K/2] uint8, contiguous; the low nibble holds the even k. M >= 1, K a multiple of 16.
        weight: [K/2, N] uint8, the transposed view of contiguous [N, K/2].
        x_sf: [ceil128(M), ceil4(K/16)] uint8 or float8_e4m3fn, contiguous, bytes in the 128x4 swizzle; padding unread.
        weight_sf: [ceil4(K/16), ceil128(N)], the transposed view of such a container over N.
        alpha: one float32, read on the device.
        out_dtype: torch.bfloat16 or torch.float32.
        out: [M, N] out_dtype, contiguous; allocated when None.

    Returns:
        out.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    operands = (x_fp4, weight, x_sf, weight_sf, alpha)
    problems = _shape_problems(operands) or _out_problems(operands, out_dtype, out)
    if problems:
        raise ValueError("nvfp4_gemm_portable: " + "; ".join(problems) + ".")
    m, n = x_fp4.shape[0], weight.shape[1]
    if out is None:
        out = torch.empty((m, n), dtype=out_dtype, device=x_fp4.device)
    native = _is_native(x_fp4.device)
    on_gpu = x_fp4.is_cuda
    schedule = schedule_for(m, n, native=native) if on_gpu else _interpreted_schedule(m, n, 2 * x_fp4.shape[1])
    launch(operands, out, schedule, native=native)
    return out
