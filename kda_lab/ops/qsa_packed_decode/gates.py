"""Tolerances of `qsa.packed_decode`: one table, with the source of every limit; README.md has the measurements.

A kernel that rounds P to BF16 lies 2.1e-3 to 2.4e-3 (rel-L2) from FP64 on flat random inputs, so the
limit of 2e-3 is for real captures only. Where even a perfect kernel cannot reach it, because the inputs'
own rounding floor is near it, the limit rises to a stated multiple of that floor.
"""

from __future__ import annotations

from kda_lab.ops.gate import EXACT, Gate, Limits, check_floors, check_kind

ROOM = "qsa.packed_decode"
FLOOR_FACTOR = 1.25
"""Room above the emulated floor for another tile size, split count or exponential: these move it by under 3 %."""
ROW_FLOOR_FACTOR = 1.5
"""The same for the worst (row, head), whose error rests on 256 elements and so varies more: by under 20 %."""

_FLOOR = f"but at least {FLOOR_FACTOR} times the emulated floor of the capture"

TOLERANCES: tuple[Gate, ...] = (
    Gate("error_fp32", f"rel-L2 over the output against FP32, {_FLOOR}", 2e-3, 5e-3, "source thread (sglang PR 36845)"),
    Gate("error_pinned", f"rel-L2 against the pinned output, {_FLOOR}", 2e-3, 5e-3, "source thread (sglang PR 36845)"),
    Gate(
        "row_max",
        f"rel-L2 of the worst (row, head) against FP32, but at least {ROW_FLOOR_FACTOR} times its emulated floor",
        4e-3,
        1e-2,
        "measured: twice the limit of the whole output (README of this op)",
    ),
    Gate("output_written", "elements that no launch wrote", 0.0, 0.0, EXACT),
    Gate("output_finite", "elements that are NaN or infinite", 0.0, 0.0, EXACT),
    Gate("guards", "elements written outside the output", 0.0, 0.0, EXACT),
    Gate("inputs_unchanged", "inputs whose bits changed", 0.0, 0.0, EXACT),
    Gate("repeat_bits", "outputs whose bits differ between launches", 0.0, 0.0, EXACT),
    Gate("changed_lengths_shorter", f"as error_fp32 and row_max on new contents, {_FLOOR}", 5e-3, 5e-3, "as synthetic"),
    Gate("changed_lengths_longer", f"as error_fp32 and row_max on new contents, {_FLOOR}", 5e-3, 5e-3, "as synthetic"),
    Gate("state_zero", "elements of state that are not zero between calls", 0.0, 0.0, EXACT),
)


def limits(kind: str, floor: float, row_floor: float | None = None) -> Limits:
    """Limits for a capture of this kind.

    Args:
        kind: `real` or `synthetic`.
        floor: rel-L2 of `oracle.emulate` against `oracle.oracle_fp64` on the capture, over the output.
        row_floor: the same over its worst (row, head); None where only `floor` is known, which counts as if
            the worst row were twice as far away as the whole.

    Raises:
        ParameterError: unknown kind, or a floor that is negative or not finite.
    """
    check_kind(ROOM, kind)
    row_floor = 2 * floor if row_floor is None else row_floor
    check_floors(ROOM, floor, row_floor)
    table = {gate.gate: getattr(gate, kind) for gate in TOLERANCES}
    return Limits(
        error=max(table["error_fp32"], FLOOR_FACTOR * floor),
        row_max=max(table["row_max"], ROW_FLOOR_FACTOR * row_floor),
    )
