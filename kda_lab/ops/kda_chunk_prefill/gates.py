"""Tolerances of `kda.chunk_prefill`: one table, with the source of every limit; README.md has the measurements.

A chunked kernel multiplies BF16 operands: decayed keys and queries, the inverse, the new values and a copy of the state.
That costs 2.8e-3 to 3.5e-3 (rel-L2) of the output and of the states that change, and 5e-3 to 1.6e-2 of the worst row,
whose parts nearly cancel. So the limits cannot be those of the token-by-token ops.
"""

from __future__ import annotations

from kda_lab.ops.gate import EXACT, Gate, Rising, exact_gates

ROOM = "kda.chunk_prefill"
FLOOR_FACTOR = 1.25
"""Room above the emulated floor: other blocks, another order of sums, an approximate exponential."""
ROW_FLOOR_FACTOR = 3.0
"""The same for the worst row, where two roundings of the same value differ by as much as either is wrong."""
ERROR = 5e-3
ROW_ERROR = 3e-2
STATE_ERROR = 5e-3

_SOURCE = "fla-core's tests allow a relative RMS error of 5e-3 for the chunked form"
_ROW = "measured: twice the worst row of the emulation on the captures (README of this op)"
_FLOOR = f"but at least {FLOOR_FACTOR} times the emulated floor"
_ALLOWED = "a tenth of the size of its row (output) or head (state); 0 for padding and unnamed slots"

TOLERANCES: tuple[Gate, ...] = (
    Gate("error_fp32", f"rel-L2 of the output against FP32, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("error_pinned", f"rel-L2 against the pinned output, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate(
        "row_max",
        f"rel-L2 of the worst (token, head), but at least {ROW_FLOOR_FACTOR} times its emulated floor",
        ROW_ERROR,
        ROW_ERROR,
        _ROW,
    ),
    Gate("element_max", f"error of the worst element over its allowance: {_ALLOWED}", 1.0, 1.0, _ROW),
    Gate("error_updated", f"rel-L2 of the state pool against FP32, {_FLOOR}", STATE_ERROR, STATE_ERROR, _SOURCE),
    *exact_gates(guards="elements written outside the outputs: gaps between slots among them"),
    Gate("changed_operands", f"all errors above on new operands and states, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("changed_sequences", f"the same with the tokens cut elsewhere, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("state_zero", "elements of scratch that are not zero between calls", 0.0, 0.0, EXACT),
)

_RULE = Rising(ROOM, ERROR, FLOOR_FACTOR, ROW_ERROR, ROW_FLOOR_FACTOR, STATE_ERROR)
limits = _RULE.limits
updated_limit = _RULE.updated_limit
