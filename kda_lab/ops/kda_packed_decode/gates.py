"""Tolerances of `kda.packed_decode`: one table, with the source of every limit.

An output rounded to BF16 lies 1.66e-3 (rel-L2) from the exact one, and an FP32 state about 1e-7: the arithmetic is FP32
throughout. Limits stand just above, since mistakes may be small: a write strength rounded to BF16 moves the state by
1e-4. The scales of the inputs carry as much: on inputs of 0.1 and states of 0.01 an output of zeros would pass the
absolute limits of the source thread, on unit normal ones nothing does.
"""

from __future__ import annotations

from kda_lab.ops.gate import EXACT, Gate, Rising, exact_gates

ROOM = "kda.packed_decode"
FLOOR_FACTOR = 1.25
"""Room above the emulated floor: FP32 sums in another order, an approximate exponential."""
ERROR = 2.5e-3
"""Of outputs: 1.5 times what rounding to BF16 costs."""
STATE_ERROR = 1e-5
"""Of FP32 states: a hundred times what FP32 arithmetic costs, a tenth of what a rounded operand does."""

_BF16 = "rounding an exact result to BF16 costs 1.66e-3; the source thread allows 1e-2 of the largest element"
_STATE = "FP32 arithmetic costs 1e-7; the source thread allows 1e-4 of the largest element"
_FLOOR = f"but at least {FLOOR_FACTOR} times the emulated floor"
_ALLOWED = "one unit in the last place and FP32 noise of the row; 0 for padding and for slots that no request names"

TOLERANCES: tuple[Gate, ...] = (
    Gate("error_fp32", f"rel-L2 of the output against FP32, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("error_pinned", f"rel-L2 against the pinned output, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("row_max", f"rel-L2 of the worst output row against FP32, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("element_max", f"error of the worst element over its allowance: {_ALLOWED}", 1.0, 1.0, _STATE),
    Gate("error_updated", f"rel-L2 of the state pool against FP32, {_FLOOR}", STATE_ERROR, STATE_ERROR, _STATE),
    *exact_gates(guards="elements written outside the outputs: gaps between slots among them"),
    Gate("changed_operands", f"all errors above on new operands and states, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("changed_slots", f"the same with the requests in other slots, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("state_zero", "elements of scratch that are not zero between calls", 0.0, 0.0, EXACT),
)

_RULE = Rising(ROOM, ERROR, FLOOR_FACTOR, updated_error=STATE_ERROR)
limits = _RULE.limits
updated_limit = _RULE.updated_limit
