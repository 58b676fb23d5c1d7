"""Wrong steps of an NVFP4 product, one function each: decoders, layouts, sums, last changes, stores.

Each stands in for one step of `emulated.Gemm`. Byte offsets of a layout take row m, column j and ceil(columns / 4).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kda_lab.ops.nvfp4 import e4m3, layouts
from kda_lab.ops.nvfp4_gemm import emulated
from kda_lab.ops.nvfp4_gemm.emulated import Gemm, ReadScales
from kda_lab.ops.nvfp4_gemm.oracle import BLOCK, geometry
from kda_lab.ops.precision import full_fp32
from kda_lab.ops.protocol import Call

TILE_K = 64
"""Depth of the tile that a wrong loop leaves out."""
TILE_N = 16
SPLITS = 4
MERGED_RATIO = 1.25
"""weight_scale_2 of the first partition over that of the second, in a fused layer that was merged by its maximum."""


def codes_with(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """A table of codes with one change."""
    return lambda: change(emulated.code_values())


def half_as_zero(values: torch.Tensor) -> torch.Tensor:
    """The only subnormal code, 0.5, flushed to zero."""
    return torch.where(values.abs() == 0.5, torch.zeros_like(values), values)


def scales_as_e5m2() -> torch.Tensor:
    """Scale bytes taken for E5M2."""
    return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e5m2).float()


def scales_bias_8() -> torch.Tensor:
    """Exponent bias 8 instead of 7; a subnormal byte keeps its right value, since its exponent is written out."""
    values = emulated.scale_values()
    return torch.where(torch.arange(256) & 0x7F >= 8, values / 2, values)


def scales_flushed() -> torch.Tensor:
    """Subnormal scale bytes flushed to zero."""
    values = emulated.scale_values()
    return torch.where(torch.arange(256) & 0x7F < 8, torch.zeros_like(values), values)


def nibbles_swapped(values: torch.Tensor) -> torch.Tensor:
    """The high nibble as the even k."""
    return values.flip(2).flatten(1)


def planar(values: torch.Tensor) -> torch.Tensor:
    """Low nibbles as the first half of K, high nibbles as the second."""
    return values.transpose(1, 2).flatten(1)


def by_offset(offset: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]) -> ReadScales:
    """A layout from its offset formula: (row [R, 1], column [1, C], ceil(C / 4)) to byte offsets."""

    def read(container: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        m = torch.arange(rows, device=container.device)[:, None]
        j = torch.arange(columns, device=container.device)[None, :]
        data = e4m3.as_bytes("container", container).reshape(-1)
        return data[offset(m, j, -(-columns // 4)) % data.numel()]

    return read


def linear(m: torch.Tensor, j: torch.Tensor, quads: int) -> torch.Tensor:
    """Row-major, as if nobody had swizzled."""
    return m * (4 * quads) + j


def small_atoms(m: torch.Tensor, j: torch.Tensor, quads: int) -> torch.Tensor:
    """The 8x4 layout for few rows."""
    return (m // 8 * quads + j // 4) * 32 + m % 8 * 4 + j % 4


def columns_reversed(m: torch.Tensor, j: torch.Tensor, quads: int) -> torch.Tensor:
    """The four columns of an atom from the other end."""
    return (m // 128 * quads + j // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + (3 - j % 4)


def rows_by_four(m: torch.Tensor, j: torch.Tensor, quads: int) -> torch.Tensor:
    """Row m at (m // 4, m % 4) of its atom instead of (m % 32, m // 32)."""
    return (m // 128 * quads + j // 4) * 512 + m % 128 // 4 * 16 + m % 4 * 4 + j % 4


def first_atom_only(m: torch.Tensor, j: torch.Tensor, quads: int) -> torch.Tensor:
    """Every 128 rows read the scales of the first 128."""
    return j // 4 * 512 + m % 32 * 16 + m % 128 // 32 * 4 + j % 4


def last_tile_dropped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The loop over K stops a tile early."""
    kept = max(0, (x.shape[1] - 1) // TILE_K * TILE_K)
    return x[:, :kept] @ weight[:, :kept].t()


def split_lost(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The last of the partial sums over K never arrives."""
    blocks = x.shape[1] // BLOCK
    kept = blocks * (SPLITS - 1) // SPLITS * BLOCK
    return x[:, :kept] @ weight[:, :kept].t()


def fixup_lost(call: Call, value: torch.Tensor) -> torch.Tensor:
    """One tile of 16 columns, in the middle of N, misses the second half of K; all others are whole."""
    N, gemm, wrong = value.shape[1], Gemm(), value.clone()
    tile = slice(*middle_tile(N))
    half = value.new_zeros(2 * call.inputs["x_fp4"].shape[1])
    half[half.numel() // 2 :] = 1.0
    with full_fp32():
        wrong[:, tile] -= gemm.x_values(call) * half @ gemm.weight_values(call, tile).t() * call.inputs["alpha"]
    return wrong


def middle_tile(columns: int) -> tuple[int, int]:
    """First and last + 1 of the 16 columns in the middle."""
    first = columns // 2 // TILE_N * TILE_N
    return first, min(first + TILE_N, columns)


def half_accumulator(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The running sum is rounded to FP16 after each tile; a power of two keeps it in range."""
    bound = float(x.abs().amax() * weight.abs().amax()) * x.shape[1]
    unit = 2.0 ** -max(0, round(torch.tensor(max(bound, 1.0)).log2().item()) - 15)
    total = torch.zeros(x.shape[0], weight.shape[0], device=x.device)
    for first in range(0, x.shape[1], TILE_K):
        tile = slice(first, first + TILE_K)
        total = (total + x[:, tile] @ weight[:, tile].t() * unit).half().float()
    return total / unit


def merged_globals(call: Call, value: torch.Tensor) -> torch.Tensor:
    """The second half of N was quantised with a smaller weight_scale_2, and nobody rescaled it."""
    wrong = value.clone()
    wrong[:, value.shape[1] // 2 :] *= MERGED_RATIO
    return wrong


def reads_padding_row(call: Call, value: torch.Tensor) -> torch.Tensor:
    """Row M of the tile meets zero codes, but its scale is read all the same: 0 · NaN is NaN."""
    M, _, K = geometry(call)
    return value + 0 * padding_scales(call.inputs["x_sf"], M, K)


def reads_weight_padding(call: Call, value: torch.Tensor) -> torch.Tensor:
    """As for activations, with row N of the weight's scales."""
    _, N, K = geometry(call)
    return value + 0 * padding_scales(call.inputs["weight_sf"].t(), N, K)


def padding_scales(container: torch.Tensor, row: int, K: int) -> torch.Tensor:
    """Sum of the scales in one padding row of a container: NaN when one of them is, 0 where there is no such row."""
    if row >= container.shape[0]:
        return torch.zeros((), device=container.device)
    return e4m3.decode(layouts.unswizzle_128x4(container, row + 1, K // BLOCK))[row].sum()


def reads_padding_columns(call: Call, value: torch.Tensor) -> torch.Tensor:
    """The last tile of K is wider than K: zero codes meet the scales of both containers behind column K / 16."""
    M, N, K = geometry(call)
    x = padding_column_scales(call.inputs["x_sf"], M, K)
    return value + 0 * (x[:, None] + padding_column_scales(call.inputs["weight_sf"].t(), N, K)[None, :])


def padding_column_scales(container: torch.Tensor, rows: int, K: int) -> torch.Tensor:
    """[rows] sums of the scales in the padding columns of a container."""
    columns = container.shape[1]
    return e4m3.decode(layouts.unswizzle_128x4(container, rows, columns))[:, K // BLOCK :].sum(1)


def typical_element(value: torch.Tensor) -> tuple[int, int]:
    """Row and column of the element with the largest mantissa among those of a magnitude above the median.

    It is no outlier, so that a row hides it, and the ulp of a narrow dtype is the smallest share of it.
    """
    magnitude = value.abs()
    mantissa = torch.frexp(magnitude).mantissa
    index = int(torch.where(magnitude >= magnitude.median(), mantissa, torch.zeros_like(mantissa)).argmax())
    return divmod(index, value.shape[1])


def column_off(call: Call, value: torch.Tensor) -> torch.Tensor:
    """One column, that of a typical element, is too large by 1 %."""
    wrong = value.clone()
    wrong[:, typical_element(value)[1]] *= 1.01
    return wrong


def element_times(factor: float) -> Callable[[Call, torch.Tensor], torch.Tensor]:
    """A typical element is too large or small by a factor."""

    def adjust(call: Call, value: torch.Tensor) -> torch.Tensor:
        wrong = value.clone()
        wrong[typical_element(value)] *= factor
        return wrong

    return adjust


def truncate(value: torch.Tensor, out: torch.Tensor) -> None:
    """Store the upper half of the FP32 bits: rounding towards zero."""
    bits = value.contiguous().view(torch.int32) & -0x10000
    out.copy_(bits.view(torch.float32))


def round_before_alpha(call: Call) -> None:
    """As a BF16 product followed by a scaling: two roundings."""
    call.outputs["out"].copy_(Gemm().sums(call).bfloat16().float() * call.inputs["alpha"])


def last_column_unwritten(call: Call) -> None:
    """An off-by-one in the mask of the store."""
    call.outputs["out"][:, :-1] = Gemm().output(call)[:, :-1].to(call.outputs["out"].dtype)


def all_zero(call: Call) -> None:
    """Write zeros."""
    call.outputs["out"].zero_()


def untouched(call: Call) -> None:
    """Write nothing."""
