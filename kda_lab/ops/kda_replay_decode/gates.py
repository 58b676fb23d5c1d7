"""Tolerances of `kda.replay_decode`: one table, with the source of every limit.

`out` is rounded to BF16 once, which costs 1.7e-3 (rel-L2), and so is a record that is appended. A checkpoint is FP32, and
everything else keeps its bits: `element_max` judges each of these by an allowance of its own, so that the limit of what
is updated in place only has to let one rounding pass.
"""

from __future__ import annotations

from kda_lab.ops.gate import EXACT, Gate, Rising, exact_gates

ROOM = "kda.replay_decode"
FLOOR_FACTOR = 1.25
"""Room above the emulated floor for sums in another order."""
ERROR = 5e-3

_SOURCE = "three times what rounding to BF16 costs; the mutants of this op lie above it or above the allowance"
_FLOOR = f"but at least {FLOOR_FACTOR} times the emulated floor"
_ALLOWED = (
    "half a BF16 ulp and 1e-5 of the row's RMS for out and records; 1e-5 of its RMS for a flushed state; "
    "0 for what is not written and for padding"
)

TOLERANCES: tuple[Gate, ...] = (
    Gate("error_fp32", f"rel-L2 of out against FP32, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("error_pinned", f"rel-L2 against the pinned outputs, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("row_max", f"rel-L2 of the worst row of out against FP32, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("element_max", f"error of the worst element over its allowance: {_ALLOWED}", 1.0, 1.0, _SOURCE),
    Gate("error_updated", f"rel-L2 of each pool against FP32, {_FLOOR}", ERROR, ERROR, _SOURCE),
    *exact_gates(
        written="elements that hold poison", inputs="inputs whose bits changed: the write positions among them"
    ),
    Gate("changed_tokens", f"as the errors above on other tokens and records, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("changed_positions", f"the same on other slots and degrees of filling, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("state_zero", "elements of the kernel's own state that are not zero between calls", 0.0, 0.0, EXACT),
)

_RULE = Rising(ROOM, ERROR, FLOOR_FACTOR)
limits = _RULE.limits
updated_limit = _RULE.updated_limit
