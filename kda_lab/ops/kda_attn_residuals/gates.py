"""Tolerances of `kda.attn_residuals`: one table, with the source of every limit.

`out` is rounded to BF16 once, which costs 1.66e-3 (rel-L2); kernels that store the mix in BF16 between two launches
round twice, 2.35e-3. Bank and prefix are copies and one rounded sum, whose bits the definition fixes.
"""

from __future__ import annotations

from kda_lab.ops.gate import EXACT, Gate, Rising, check_floors, check_kind, exact_gates

ROOM = "kda.attn_residuals"
FLOOR_FACTOR = 1.25
"""Room above the emulated floor where few elements make it vary."""
ERROR = 3e-3

_BF16 = "two roundings to BF16 cost 2.35e-3; the source threads' own test allows 2e-2 an element"
_FLOOR = f"but at least {FLOOR_FACTOR} times the emulated floor"
_ALLOWED = "1.5 BF16 ulps and 1e-4 of the row's size; 0 for bank and prefix"
_BITS = "copies and one rounded sum: bits must agree"

TOLERANCES: tuple[Gate, ...] = (
    Gate("error_fp32", f"rel-L2 over `out` against FP32, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("error_pinned", f"rel-L2 against the pinned output, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("row_max", f"rel-L2 of the worst token against FP32, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("element_max", f"error of the worst element over its allowance: {_ALLOWED}", 1.0, 1.0, _BF16),
    Gate("error_updated", "rel-L2 over bank and prefix", 0.0, 0.0, _BITS),
    *exact_gates(),
    Gate("changed_rows", f"all of these on other rows, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("changed_weights", f"all of these with other weights, {_FLOOR}", ERROR, ERROR, _BF16),
    Gate("state_zero", "elements of state that are not zero between calls", 0.0, 0.0, EXACT),
)

limits = Rising(ROOM, ERROR, FLOOR_FACTOR).limits


def updated_limit(kind: str, floor: float) -> float:
    """Limit of bank and prefix: 0, whatever the kind, for nothing in them may be rounded otherwise.

    Args:
        floor: rel-L2 of the emulated bank and prefix against FP64: 0, or the oracle is broken.

    Raises:
        ParameterError: unknown kind, or a floor that is negative or not finite.
    """
    check_kind(ROOM, kind)
    check_floors(ROOM, floor, floor)
    return 0.0
