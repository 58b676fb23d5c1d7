"""Tolerances of `nvfp4.gemm`: one table, with the source of every limit; README.md has the measurements.

The table is for BF16 outputs, where rounding the exact result costs 1.66e-3. FP32 outputs and rows that are exact
have no such floor, and are judged far more closely: the floor of a call says which of the three it is.
"""

from __future__ import annotations

from kda_lab.ops.gate import EXACT, Gate, Limits, check_floors, check_kind

ROOM = "nvfp4.gemm"
BF16_FLOOR = 1e-4
"""A floor above it comes from BF16 outputs; FP32 outputs have one near 3e-8."""
FP32_ERROR = 1e-5
"""Limit for FP32 outputs. FP32 accumulation in any order stays below 2e-6."""
FLOOR_FACTOR = 1.1
"""Room above the emulated floor where few outputs make it vary: FP32 accumulation moves it by under 1 %."""

_FLOOR = f"but at least {FLOOR_FACTOR} times the emulated floor; {FP32_ERROR:g} for FP32 outputs, 0 for exact rows"
_ALLOWED = "1 ulp of a BF16 output, and 1e-5 |alpha| sum |terms|; 0 for exact rows"
_ELEMENT = "measured (README of this op): right kernels reach 0.5 of it for BF16; FP32 sums rounded towards zero 0.13"
_BF16 = "rounding an exact result to BF16 costs 1.66e-3 (README of this op); FP32 outputs: measured, below 2e-6"

TOLERANCES: tuple[Gate, ...] = (
    Gate("error_fp32", f"rel-L2 over the output against FP32, {_FLOOR}", 2e-3, 2e-3, _BF16),
    Gate("error_pinned", f"rel-L2 against the pinned output, {_FLOOR}", 2e-3, 2e-3, _BF16),
    Gate("row_max", f"rel-L2 of the worst token against FP32, {_FLOOR}", 2e-3, 2e-3, _BF16),
    Gate("element_max", f"error of the worst element over its allowance: {_ALLOWED}", 1.0, 1.0, _ELEMENT),
    Gate("output_written", "elements that no launch wrote", 0.0, 0.0, EXACT),
    Gate("output_finite", "elements that are NaN or infinite", 0.0, 0.0, EXACT),
    Gate("guards", "elements written outside the output", 0.0, 0.0, EXACT),
    Gate("inputs_unchanged", "inputs whose bits changed", 0.0, 0.0, EXACT),
    Gate("repeat_bits", "outputs whose bits differ between launches", 0.0, 0.0, EXACT),
    Gate("changed_x", f"as error_fp32 and row_max on new activations, {_FLOOR}", 2e-3, 2e-3, _BF16),
    Gate("changed_alpha", f"as error_fp32 and row_max on a new alpha too, {_FLOOR}", 2e-3, 2e-3, _BF16),
    Gate("state_zero", "elements of state that are not zero between calls", 0.0, 0.0, EXACT),
)


def limits(kind: str, floor: float, row_floor: float | None = None) -> Limits:
    """Limits for a capture of this kind.

    A floor of exactly 0 means that every result is representable in the output: values must then be equal. (All
    products and sums of the row kind `exact` are, so that an order of summation is no excuse.)

    Args:
        kind: `real` or `synthetic`; both are judged alike, since rounding costs the same on either.
        floor: rel-L2 of `oracle.emulate` against `oracle.oracle_fp64` on the capture, over the output.
        row_floor: the same over its worst token; None where only `floor` is known, which counts as the row's too.

    Raises:
        ParameterError: unknown kind, or a floor that is negative or not finite.
    """
    check_kind(ROOM, kind)
    row_floor = floor if row_floor is None else row_floor
    check_floors(ROOM, floor, row_floor)
    if floor == 0.0:
        return Limits(0.0, 0.0)
    if floor <= BF16_FLOOR:
        return Limits(FP32_ERROR, FP32_ERROR)
    table = {gate.gate: getattr(gate, kind) for gate in TOLERANCES}
    return Limits(
        error=max(table["error_fp32"], FLOOR_FACTOR * floor),
        row_max=max(table["row_max"], FLOOR_FACTOR * row_floor),
    )
