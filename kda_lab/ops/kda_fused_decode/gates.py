"""Tolerances of `kda.fused_decode`: one table, with the source of every limit.

The output is rounded to BF16 once, which costs 1.7e-3 (rel-L2); forms that are three kernels round before the norm too,
2.4e-3, and are no mistake. Windows are copies: their bits count. The state is FP32 arithmetic on the convolution's BF16
results: an element that lies near a tie may round the other way, which moves a state by some 1e-5.
"""

from __future__ import annotations

from kda_lab.ops.gate import EXACT, Gate, Rising, exact_gates

ROOM = "kda.fused_decode"
FLOOR_FACTOR = 1.25
"""Room above the emulated floor: FP32 sums in another order, an approximate exponential."""
ERROR = 5e-3
STATE_ERROR = 5e-5

_BF16 = "rounding costs 1.7e-3, in three kernels 2.4e-3; the source thread allows 2e-2 of each element"
_STATE = "one rounding the other way costs 1e-5; the source thread allows 2e-3 of each element"
_FLOOR = f"but at least {FLOOR_FACTOR} times the emulated floor"
_ALLOWED = "two units in the last place, FP32 noise, near ties one other rounding; 0 for windows, padding, other slots"

TOLERANCES: tuple[Gate, ...] = (
    Gate("error_fp32", f"rel-L2 of the output against FP32, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("error_pinned", f"rel-L2 against the pinned output, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("row_max", f"rel-L2 of the worst output row against FP32, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("element_max", f"error of the worst element over its allowance: {_ALLOWED}", 1.0, 1.0, _STATE),
    Gate("error_updated", f"rel-L2 of the worse pool against FP32, {_FLOOR}", STATE_ERROR, STATE_ERROR, _STATE),
    *exact_gates(guards="elements written outside the outputs: gaps between slots among them"),
    Gate("changed_operands", f"all errors above on new operands, windows and states, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("changed_slots", f"the same with the requests in other slots, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("state_zero", "elements of scratch that are not zero between calls", 0.0, 0.0, EXACT),
)

_RULE = Rising(ROOM, ERROR, FLOOR_FACTOR, updated_error=STATE_ERROR)
limits = _RULE.limits
updated_limit = _RULE.updated_limit
