"""What the gate tables of all ops are made of: one rule with its limits, the limits of one capture, their refusals."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kda_lab.errors import ParameterError, Reason

KINDS = ("real", "synthetic")
EXACT = "bits must agree: 0 elements may differ"


@dataclass(frozen=True)
class Gate:
    """One rule with its limit for real and for synthetic captures."""

    gate: str
    """Name of the check that applies it."""
    metric: str
    real: float
    synthetic: float
    source: str


@dataclass(frozen=True)
class Limits:
    """Limits of one capture, both rel-L2 against the unrounded FP32 oracle."""

    error: float
    """Over each whole output."""
    row_max: float
    """Over the worst row, as the op's `oracle` counts rows."""


def check_kind(room: str, kind: str) -> None:
    """Refuse a kind of capture that no gate has a limit for.

    Args:
        room: the op, for the error text.

    Raises:
        ParameterError: neither `real` nor `synthetic`.
    """
    if kind not in KINDS:
        raise ParameterError(room, [Reason("kind", repr(kind), "'real', 'synthetic'")])


def check_floors(room: str, floor: float, row_floor: float) -> None:
    """Refuse rounding floors that no oracle gives.

    Raises:
        ParameterError: one of them is negative or not finite.
    """
    for name, value in (("floor", floor), ("row_floor", row_floor)):
        if not (math.isfinite(value) and value >= 0):
            raise ParameterError(room, [Reason(name, repr(value), "a finite number of at least 0", "Mend the oracle.")])
