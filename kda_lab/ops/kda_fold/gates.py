"""Tolerances of `kda.fold`: one table, with the source of every limit.

The state is FP32 throughout. FP32 sums in another order move it by 1e-7 to 4e-7 (rel-L2) over eight tokens; a write
strength rounded to BF16 moves it by 2e-3. `element_max` demands the bits of every slot that takes no token.
"""

from __future__ import annotations

from kda_lab.ops.gate import EXACT, Gate, Rising, exact_gates

ROOM = "kda.fold"
FLOOR_FACTOR = 1.25
"""Room above the emulated floor for sums in another order."""
ERROR = 1e-5

_SOURCE = "twenty times what FP32 sums cost; the nearest mutant lies a hundred times above"
_FLOOR = f"but at least {FLOOR_FACTOR} times the emulated floor"
_ALLOWED = "1e-5 of the state's RMS; 0 for slots that take no token"

TOLERANCES: tuple[Gate, ...] = (
    Gate("error_fp32", f"rel-L2 of the pool against FP32, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("error_pinned", f"rel-L2 against the pinned pool, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("row_max", f"rel-L2 of the worst row of a state against FP32, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("element_max", f"error of the worst element over its allowance: {_ALLOWED}", 1.0, 1.0, _SOURCE),
    *exact_gates(
        written="elements that hold poison",
        guards="elements written outside the pool",
        repeat="pools whose bits differ between launches",
    ),
    Gate(
        "changed_accepted", f"as error_fp32, row_max and element_max on other counts, {_FLOOR}", ERROR, ERROR, _SOURCE
    ),
    Gate("changed_slots", f"the same on other slots and padding, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("state_zero", "elements of the kernel's own state that are not zero between calls", 0.0, 0.0, EXACT),
)

_RULE = Rising(ROOM, ERROR, FLOOR_FACTOR)
limits = _RULE.limits
updated_limit = _RULE.updated_limit
