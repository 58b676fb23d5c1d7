"""Deliberately wrong NVFP4 products, one mistake each: what the gates must reject before they count.

Every mutant computes in FP32 on any device and would be right without its mistake. `applies` reads tensors on the
host and asks whether the mistake meets anything: another scale byte, a code with a sign, a row behind the first 128.
Not here: rounding ties of activations away from zero. This op gets its codes, so nothing in it quantises; the
quantiser's own tests hold the ties. At the store both ways of breaking a tie are equally far from the exact value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kda_lab.ops.nvfp4 import layouts
from kda_lab.ops.nvfp4_gemm import emulated, mistakes
from kda_lab.ops.nvfp4_gemm.emulated import Gemm, ReadScales
from kda_lab.ops.nvfp4_gemm.mistakes import by_offset
from kda_lab.ops.nvfp4_gemm.oracle import BLOCK, geometry
from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.wrong import baked, plain

FEW_OUTPUTS = 128
"""Below as many BF16 outputs, one wrong rounding is within the scatter of right ones."""
FEW_FOR_TWO_ROUNDINGS = 1024
"""The same for a second rounding, which turns 1.66e-3 into 2.3e-3 only."""
SECOND_ROUNDING = (1.002, 1.96)
"""Mantissas of alpha for which a second rounding costs as much: it does less near a power of two."""
SEEN_MANTISSA = 1.4
"""1 % of a number with this mantissa is 1.8 ulp of BF16: after its rounding, still more than one."""


def _is_alive(call: Call) -> bool:
    """Whether the right result is other than zero, save by cancellation."""
    nonzero_codes = bool((call.inputs["weight"] & 0x77).any())
    return nonzero_codes and bool(call.inputs["alpha"] != 0) and bool(Gemm().x_values(call).any())


def _decodes_otherwise(table: Callable[[], torch.Tensor]) -> Callable[[Call], bool]:
    """Whether a wrong table of scales gives another value for any scale byte of the weight."""

    def applies(call: Call) -> bool:
        differs = (table() != emulated.scale_values()).to(call.device)
        return _is_alive(call) and bool(differs[Gemm().weight_scales(call).long()].any())

    return applies


def _holds(*codes: int) -> Callable[[Call], bool]:
    """Whether the weight holds one of these codes."""

    def applies(call: Call) -> bool:
        found = torch.bincount(call.inputs["weight"].t().reshape(-1), minlength=256).view(16, 16) > 0
        held = found.any(0) | found.any(1)
        return _is_alive(call) and bool(held[list(codes)].any())

    return applies


def _reads_other_bytes(name: str, read: ReadScales) -> Callable[[Call], bool]:
    """Whether a wrong layout finds another byte for any scale."""

    def applies(call: Call) -> bool:
        M, N, K = geometry(call)
        container, rows = (call.inputs[name], M) if name == "x_sf" else (call.inputs[name].t(), N)
        right = layouts.unswizzle_128x4(container, rows, K // BLOCK)
        return _is_alive(call) and bool((read(container, rows, K // BLOCK) != right).any())

    return applies


def _alpha(test: Callable[[float], bool]) -> Callable[[Call], bool]:
    """Whether the sums are alive and alpha, read on the host, passes a test."""
    return lambda call: (
        test(float(call.inputs["alpha"])) and _is_alive(call.with_inputs(alpha=torch.ones_like(call.inputs["alpha"])))
    )


def _deeper_than(K: int) -> Callable[[Call], bool]:
    return lambda call: geometry(call)[2] > K and _is_alive(call)


def _leaks(container: str, row: Callable[[Call], int]) -> Callable[[Call], bool]:
    """Whether the padding row behind the last row holds a NaN scale."""

    def applies(call: Call) -> bool:
        scales = call.inputs[container] if container == "x_sf" else call.inputs[container].t()
        return bool(mistakes.padding_scales(scales, row(call), geometry(call)[2]).isnan())

    return applies


def _loses_bits(call: Call) -> bool:
    """Whether an FP16 accumulator changes any FP32 output."""
    if call.outputs["out"].dtype != torch.float32:
        return False
    wrong = Gemm(product=mistakes.half_accumulator)
    return bool((wrong.output(call) != Gemm().output(call)).any())


def _rounds(call: Call, at_least: int = FEW_OUTPUTS) -> bool:
    """Whether the output is BF16 and holds enough elements to tell one rounding from another."""
    out = call.outputs["out"]
    return out.dtype == torch.bfloat16 and out.numel() >= at_least and _is_alive(call)


def _rounds_twice(call: Call) -> bool:
    low, high = SECOND_ROUNDING
    mantissa = 2 * abs(torch.frexp(call.inputs["alpha"].cpu()).mantissa.item())
    return low <= mantissa <= high and _rounds(call, FEW_FOR_TWO_ROUNDINGS)


def _loses_alpha(call: Call) -> bool:
    """Whether outputs can show an alpha that was rounded to BF16: if not the call's own, the changed one."""
    out, ones = call.outputs["out"], torch.ones_like(call.inputs["alpha"])
    enough = out.dtype == torch.float32 or out.numel() >= FEW_OUTPUTS
    return enough and call.facts.get("kind") != "exact" and _is_alive(call.with_inputs(alpha=ones))


def _has_typical(call: Call) -> bool:
    """Whether the output has an element of which 1 % is more than 1.5 ulp."""
    if not _is_alive(call):
        return False
    value = Gemm().output(call)
    element = value[mistakes.typical_element(value)].abs().cpu()
    return bool(element > 0) and 2 * float(torch.frexp(element).mantissa) >= SEEN_MANTISSA


def _row_is_subnormal(name: str) -> Callable[[Call], bool]:
    """Whether an operand has a row with nonzero codes and with subnormal scales alone."""

    def applies(call: Call) -> bool:
        M, N, K = geometry(call)
        container, codes, rows = (
            (call.inputs[name], call.inputs["x_fp4"], M)
            if name == "x_sf"
            else (call.inputs[name].t(), call.inputs["weight"].t(), N)
        )
        magnitude = layouts.unswizzle_128x4(container, rows, K // BLOCK).view(torch.uint8) & 0x7F
        subnormal = ((magnitude < 8) & (magnitude > 0)).any(1) & (magnitude < 8).all(1)
        return _is_alive(call) and bool((subnormal & (codes & 0x77).any(1)).any())

    return applies


def _leaks_columns(call: Call) -> bool:
    """Whether a padding column of either container holds a NaN scale."""
    M, N, K = geometry(call)
    x = mistakes.padding_column_scales(call.inputs["x_sf"], M, K)
    return bool(x.isnan().any() | mistakes.padding_column_scales(call.inputs["weight_sf"].t(), N, K).isnan().any())


def _baked(name: str, what: str, *inputs: str) -> Mutant:
    return Mutant(name, what, lambda: baked(name, inputs, Gemm()))


def _misread(name: str, what: str, tensor: str, read: ReadScales) -> Mutant:
    gemm = Gemm(x_layout=read) if tensor == "x_sf" else Gemm(weight_layout=read)
    return plain(name, what, gemm, _reads_other_bytes(tensor, read), f"every byte of {tensor} is the same either way")


_LINEAR = by_offset(mistakes.linear)
_ALIVE = (_is_alive, "the right output is zero")
_TYPICAL = (_has_typical, "the right output is zero, or so small that 1 % of no element shows")
_NO_SUBNORMAL = "no {} row has subnormal scales alone, and beside larger ones they add less than an output shows"
_FEW = "the output is FP32, zero, or has under {} elements, too few to tell one rounding from another"

MUTANTS: tuple[Mutant, ...] = (
    plain("all_zero", "Writes zeros.", mistakes.all_zero, *_ALIVE),
    plain("untouched", "Writes nothing.", mistakes.untouched),
    plain("last_column", "The last output column is not written.", mistakes.last_column_unwritten),
    plain(
        "nibble_swap",
        "The high nibble of a weight byte is taken for the even k.",
        Gemm(order=mistakes.nibbles_swapped),
        *_ALIVE,
    ),
    plain(
        "planar_nibbles",
        "Low nibbles of the weight are taken for the first half of K, high ones for the second.",
        Gemm(order=mistakes.planar),
        *_ALIVE,
    ),
    plain(
        "sign_lost",
        "Bit 3 of the weight's codes is ignored.",
        Gemm(codes=mistakes.codes_with(torch.abs)),
        _holds(*range(9, 16)),
        "no weight is negative, or the right output is zero",
    ),
    plain(
        "half_flushed",
        "The code of 0.5 is taken for zero.",
        Gemm(codes=mistakes.codes_with(mistakes.half_as_zero)),
        _holds(1, 9),
        "no weight code is 0.5, or the right output is zero",
    ),
    plain(
        "scale_e5m2",
        "Scale bytes of the weight are decoded as E5M2.",
        Gemm(scales=mistakes.scales_as_e5m2),
        _decodes_otherwise(mistakes.scales_as_e5m2),
        "every scale byte means the same in E5M2, or the right output is zero",
    ),
    plain(
        "scale_bias",
        "Scale bytes of the weight are decoded with an exponent bias of 8.",
        Gemm(scales=mistakes.scales_bias_8),
        _decodes_otherwise(mistakes.scales_bias_8),
        "every scale is zero or subnormal, or the right output is zero",
    ),
    plain(
        "scale_subnormal_flushed",
        "Subnormal scale bytes of the weight are taken for zero.",
        Gemm(scales=mistakes.scales_flushed),
        _row_is_subnormal("weight_sf"),
        _NO_SUBNORMAL.format("weight"),
    ),
    plain(
        "x_scale_subnormal_flushed",
        "The same for activations.",
        Gemm(x_scales=mistakes.scales_flushed),
        _row_is_subnormal("x_sf"),
        _NO_SUBNORMAL.format("activation"),
    ),
    _misread("scales_linear", "Swizzled weight scales are read as linear.", "weight_sf", _LINEAR),
    _misread("x_scales_linear", "Swizzled activation scales are read as linear.", "x_sf", _LINEAR),
    _misread("scales_8x4", "Weight scales are read in the 8x4 layout.", "weight_sf", by_offset(mistakes.small_atoms)),
    _misread(
        "scale_columns",
        "The four columns of a scale atom are read from the other end.",
        "weight_sf",
        by_offset(mistakes.columns_reversed),
    ),
    _misread(
        "scale_rows", "Rows of a scale atom are ordered by m // 4.", "weight_sf", by_offset(mistakes.rows_by_four)
    ),
    _misread("x_scale_rows", "The same for activations.", "x_sf", by_offset(mistakes.rows_by_four)),
    _misread(
        "x_scale_atoms",
        "Tokens from 128 on read the scales of the first 128.",
        "x_sf",
        by_offset(mistakes.first_atom_only),
    ),
    plain(
        "alpha_missing",
        "The sums are not scaled.",
        Gemm(alpha=torch.ones_like),
        _alpha(lambda a: a != 1),
        "alpha is 1, or all sums are zero",
    ),
    plain(
        "alpha_twice",
        "The sums are scaled by the square of alpha.",
        Gemm(alpha=torch.square),
        _alpha(lambda a: a not in (0, 1)),
        "alpha is its own square, or all sums are zero",
    ),
    plain(
        "alpha_rounded",
        "alpha is rounded to BF16 first.",
        Gemm(alpha=lambda alpha: alpha.bfloat16().float()),
        _loses_alpha,
        "alpha stays a power of two in rows of the kind exact; or the output is zero or has under 128 elements",
    ),
    plain(
        "last_tile_dropped",
        f"The last {mistakes.TILE_K} values of K, or what is left of them, are not added.",
        Gemm(product=mistakes.last_tile_dropped),
        *_ALIVE,
    ),
    plain(
        "split_lost",
        f"K is cut in {mistakes.SPLITS}, and the last partial sum is not added.",
        Gemm(product=mistakes.split_lost),
        *_ALIVE,
    ),
    plain(
        "fixup_lost",
        "One tile of 16 columns misses the second half of K (a lost fix-up of a stream-K schedule).",
        Gemm(adjust=mistakes.fixup_lost),
        _deeper_than(16),
        "K is one block, or the right output is zero",
    ),
    plain(
        "half_accumulator",
        "The running sum is kept in FP16.",
        Gemm(product=mistakes.half_accumulator),
        _loses_bits,
        "BF16 outputs hide it, or every partial sum is representable in FP16",
    ),
    plain(
        "globals_merged",
        "The second half of N was quantised with another weight_scale_2 than the merged one.",
        Gemm(adjust=mistakes.merged_globals),
        *_ALIVE,
    ),
    plain(
        "padding_row_read",
        "The scale of the first padding row of x_sf is multiplied by zero instead of left alone.",
        Gemm(adjust=mistakes.reads_padding_row),
        _leaks("x_sf", lambda call: geometry(call)[0]),
        "there is no padding row, or it holds no NaN",
    ),
    plain(
        "weight_padding_read",
        "The same for the first padding row of weight_sf.",
        Gemm(adjust=mistakes.reads_weight_padding),
        _leaks("weight_sf", lambda call: geometry(call)[1]),
        "there is no padding row, or it holds no NaN",
    ),
    plain(
        "padding_column_read",
        "Scales of padding columns are multiplied by zero instead of left alone.",
        Gemm(adjust=mistakes.reads_padding_columns),
        _leaks_columns,
        "K / 16 is a multiple of four, so that there is no padding column, or none holds NaN",
    ),
    plain("column_off", "One column is too large by 1 %.", Gemm(adjust=mistakes.column_off), *_TYPICAL),
    plain("element_off", "One element is too large by half.", Gemm(adjust=mistakes.element_times(1.5)), *_TYPICAL),
    plain("element_zero", "One element is zero.", Gemm(adjust=mistakes.element_times(0.0)), *_TYPICAL),
    plain(
        "store_truncates",
        "The store rounds towards zero.",
        Gemm(store=mistakes.truncate),
        _rounds,
        _FEW.format(FEW_OUTPUTS),
    ),
    plain(
        "rounded_twice",
        "The sums are rounded to BF16 before they are scaled by alpha.",
        mistakes.round_before_alpha,
        _rounds_twice,
        f"alpha is so near to a power of two that the second does little; or {_FEW.format(FEW_FOR_TWO_ROUNDINGS)}",
    ),
    _baked("x_baked", "Activations are copied when the call is bound.", "x_fp4", "x_sf"),
    _baked("alpha_baked", "alpha is read when the call is bound.", "alpha"),
)
