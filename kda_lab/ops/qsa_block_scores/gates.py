"""Tolerances of `qsa.block_scores`: one table, with the source of every limit; README.md has the measurements.

Products of BF16 numbers are exact in FP32, so a right kernel errs by its FP32 sums alone. An index scorer is often
granted 1e-2 of the score and of the largest one (FP8 keys need it); this op's BF16 form does not, and a gate as wide
as that would let a missing head or a score rounded to BF16 pass.
"""

from __future__ import annotations

from kda_lab.ops.gate import EXACT, Gate, Limits, rising_limits

ROOM = "qsa.block_scores"
FLOOR_FACTOR = 10.0
"""Room above the emulated floor, which lies near 1e-7: other orders of summation."""
ERROR = 2e-5

_MEASURED = "measured: FP32 sums in any order stay below 1e-6; sums rounded towards zero below 5e-6 (README of this op)"
_DEAD = "; a score of -inf must be -inf"

TOLERANCES: tuple[Gate, ...] = (
    Gate("error_fp32", f"rel-L2 over the live scores against FP32{_DEAD}", ERROR, ERROR, _MEASURED),
    Gate("error_pinned", f"rel-L2 against the pinned output{_DEAD}", ERROR, ERROR, _MEASURED),
    Gate("row_max", f"rel-L2 of the worst row against FP32{_DEAD}", ERROR, ERROR, _MEASURED),
    Gate("element_max", "error of the worst score over 2e-5 of the magnitudes of its terms", 1.0, 1.0, _MEASURED),
    Gate("output_written", "elements that no launch wrote", 0.0, 0.0, EXACT),
    Gate("output_finite", "elements that are NaN, infinite where the oracle is finite, or +inf", 0.0, 0.0, EXACT),
    Gate("guards", "elements written outside the output", 0.0, 0.0, EXACT),
    Gate("inputs_unchanged", "inputs whose bits changed", 0.0, 0.0, EXACT),
    Gate("repeat_bits", "outputs whose bits differ between launches", 0.0, 0.0, EXACT),
    Gate("changed_lengths_shorter", "as error_fp32, row_max and element_max on new contents", ERROR, ERROR, _MEASURED),
    Gate("changed_lengths_longer", "as error_fp32, row_max and element_max on new contents", ERROR, ERROR, _MEASURED),
    Gate("state_zero", "elements of state that are not zero between calls", 0.0, 0.0, EXACT),
)


def limits(kind: str, floor: float, row_floor: float | None = None) -> Limits:
    """Limits for a capture of this kind.

    Args:
        kind: `real` or `synthetic`; both are judged alike.
        floor: rel-L2 of `oracle.emulate` against `oracle.oracle_fp64` on the capture.
        row_floor: the same over its worst row; None where only `floor` is known, which counts as the row's too.

    Raises:
        ParameterError: unknown kind, or a floor that is negative or not finite.
    """
    return rising_limits(ROOM, kind, floor, row_floor, error=ERROR, factor=FLOOR_FACTOR)
