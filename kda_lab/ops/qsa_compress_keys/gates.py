"""Tolerances of `qsa.compress_keys`: one table, with the source of every limit; README.md has the measurements.

Entries are rounded to BF16 once, which costs 1.66e-3 (rel-L2); the mean's rounding is part of the definition and costs
nothing. Slots and the ring are exact, which `element_max` demands of each element.
"""

from __future__ import annotations

from kda_lab.ops.gate import EXACT, Gate, Limits, rising_limits

ROOM = "qsa.compress_keys"
FLOOR_FACTOR = 1.1
"""Room above the emulated floor where few elements make it vary: FP32 sums in another order move it by under 1 %."""
ERROR = 2e-3

_BF16 = "rounding an exact result to BF16 costs 1.66e-3 (README of this op)"
_FLOOR = f"but at least {FLOOR_FACTOR} times the emulated floor"
_ALLOWED = "one BF16 ulp and 1e-5 of the row's size; 0 for slots and ring"

TOLERANCES: tuple[Gate, ...] = (
    Gate("error_fp32", f"rel-L2 over each output against FP32, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("error_pinned", f"rel-L2 against the pinned output, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("row_max", f"rel-L2 of the worst row against FP32, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("element_max", f"error of the worst element over its allowance: {_ALLOWED}", 1.0, 1.0, _BF16),
    Gate("output_written", "elements that no launch wrote", 0.0, 0.0, EXACT),
    Gate("output_finite", "elements that are NaN or infinite", 0.0, 0.0, EXACT),
    Gate("guards", "elements written outside the outputs", 0.0, 0.0, EXACT),
    Gate("inputs_unchanged", "inputs whose bits changed: the ring among them", 0.0, 0.0, EXACT),
    Gate("repeat_bits", "outputs whose bits differ between launches", 0.0, 0.0, EXACT),
    Gate("changed_keys", f"as error_fp32, row_max and element_max on new keys, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("changed_positions", f"the same on a later step of the requests, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("state_zero", "elements of state that are not zero between calls", 0.0, 0.0, EXACT),
)


def limits(kind: str, floor: float, row_floor: float | None = None) -> Limits:
    """Limits for a capture of this kind.

    Args:
        kind: `real` or `synthetic`; both are judged alike, since rounding costs the same on either.
        floor: rel-L2 of `oracle.emulate` against `oracle.oracle_fp64` on the capture, over the worst output.
        row_floor: the same over its worst row; None where only `floor` is known, which counts as the row's too.

    Raises:
        ParameterError: unknown kind, or a floor that is negative or not finite.
    """
    return rising_limits(ROOM, kind, floor, row_floor, error=ERROR, factor=FLOOR_FACTOR)
