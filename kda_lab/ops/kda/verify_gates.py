"""Tolerances of the two verify ops: one table, with the source of every limit.

`out` is rounded to BF16 once, which costs 1.7e-3 (rel-L2). Everything else is exact or FP32, and far below these limits:
`element_max` judges it, by an allowance of 1e-5 of the RMS of a state and of 0 for what is copied or rounded.
"""

from __future__ import annotations

from kda_lab.ops.gate import EXACT, Gate, exact_gates

FLOOR_FACTOR = 1.25
"""Room above the emulated floor for sums in another order."""
ERROR = 5e-3

_SOURCE = "three times what rounding to BF16 costs; the mutants of this op lie above it or above the allowance"
_FLOOR = f"but at least {FLOOR_FACTOR} times the emulated floor"
_ALLOWED = "half a BF16 ulp and 1e-5 of the row's RMS for out; 1e-5 of its RMS for FP32; 0 for copies and padding"

TOLERANCES: tuple[Gate, ...] = (
    Gate("error_fp32", f"rel-L2 over each output against FP32, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("error_pinned", f"rel-L2 against the pinned output, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("row_max", f"rel-L2 of the worst row against FP32, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("element_max", f"error of the worst element over its allowance: {_ALLOWED}", 1.0, 1.0, _SOURCE),
    *exact_gates(inputs="inputs whose bits changed: the states among them"),
    Gate("changed_tokens", f"as error_fp32, row_max and element_max on other tokens, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("changed_slots", f"the same on other slots and padding, {_FLOOR}", ERROR, ERROR, _SOURCE),
    Gate("state_zero", "elements of state that are not zero between calls", 0.0, 0.0, EXACT),
)
