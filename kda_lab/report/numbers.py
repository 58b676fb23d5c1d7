"""How numbers are written for people: three significant digits, a dash where nothing was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

DASH = "—"


def measured(value: object) -> TypeGuard[float]:
    """Whether `value` is a finite number, so not None, NaN, infinity, text or a truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def significant(value: float | None, digits: int = 3) -> str:
    """`value` with `digits` significant digits, without an exponent: 11.2, 2610, 0.410.

    None, NaN and infinity give a dash.
    """
    if value is None or not measured(value):
        return DASH
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    # 9.996 has exponent 0, yet rounds to 10.0: the exponent of the rounded value decides the decimals.
    rounded = round(value, digits - 1 - exponent)
    exponent = math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(0, digits - 1 - exponent)}f}"


def scientific(value: float | None) -> str:
    """`value` as 1.63e-3, for errors that span decades; a dash where nothing was measured."""
    if value is None or not measured(value):
        return DASH
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def times(ratio: float | None) -> str:
    """A ratio with its sign: 2.07×; a dash where nothing was measured."""
    text = significant(ratio)
    return text if text == DASH else f"{text}×"


def percent(share: float | None) -> str:
    """A share of 1 in percent, without the sign: 0.034 is 3.40."""
    return DASH if share is None or not measured(share) else significant(100 * share)


def span(values: Sequence[float], unit: str) -> str:
    """`1980 MHz`, or `1755–1980 MHz` when the values differ, in whole numbers; empty without values."""
    if not values:
        return ""
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    text = low if low == high else f"{low}–{high}"
    return f"{text} {unit}"
