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


def rising_limits(
    room: str, kind: str, floor: float, row_floor: float | None, *, error: float, factor: float
) -> Limits:
    """Limits of an op that judges both kinds alike: `error`, or `factor` times the rounding floor where that is more.

    Args:
        room: the op, for the error text.
        kind: `real` or `synthetic`.
        floor: rel-L2 of `oracle.emulate` against `oracle.oracle_fp64` on the capture, over the worst output.
        row_floor: the same over its worst row; None where only `floor` is known, which counts as the row's too.
        error: the limit of either metric on its own.
        factor: room above the emulated floor.

    Raises:
        ParameterError: unknown kind, or a floor that is negative or not finite.
    """
    check_kind(room, kind)
    row_floor = floor if row_floor is None else row_floor
    check_floors(room, floor, row_floor)
    return Limits(error=max(error, factor * floor), row_max=max(error, factor * row_floor))


@dataclass(frozen=True)
class Rising:
    """The limits of an op that judges both kinds alike: a number, or a multiple of the rounding floor where that is more."""

    room: str
    """The op, for the error text."""
    error: float
    """Of whole outputs."""
    factor: float
    """Room above the emulated floor."""
    row_error: float | None = None
    """Of the worst row; None takes `error`."""
    row_factor: float | None = None
    """None takes `factor`."""
    updated_error: float | None = None
    """Of what is updated in place; None takes `error`."""

    def limits(self, kind: str, floor: float, row_floor: float | None = None) -> Limits:
        """Limits of the outputs for a capture of this kind.

        Args:
            kind: `real` or `synthetic`; both are judged alike, since rounding costs the same on either.
            floor: rel-L2 of `oracle.emulate` against `oracle.oracle_fp64` on the capture, over the worst output.
            row_floor: the same over its worst row; None where only `floor` is known, which counts as the row's too.

        Raises:
            ParameterError: unknown kind, or a floor that is negative or not finite.
        """
        whole = rising_limits(self.room, kind, floor, row_floor, error=self.error, factor=self.factor)
        if self.row_error is None and self.row_factor is None:
            return whole
        error = self.error if self.row_error is None else self.row_error
        factor = self.factor if self.row_factor is None else self.row_factor
        row_floor = floor if row_floor is None else row_floor
        return Limits(error=whole.error, row_max=max(error, factor * row_floor))

    def updated_limit(self, kind: str, floor: float) -> float:
        """Limit of what is updated in place, rel-L2: of FP32 pools its own; a BF16 pool's rounding floor lifts it.

        Args:
            kind: `real` or `synthetic`.
            floor: as for `limits`, over the worst of what is updated.

        Raises:
            ParameterError: unknown kind, or a floor that is negative or not finite.
        """
        error = self.error if self.updated_error is None else self.updated_error
        return rising_limits(self.room, kind, floor, None, error=error, factor=self.factor).error


def exact_gates(
    *,
    written: str = "elements that no launch wrote",
    guards: str = "elements written outside the outputs",
    inputs: str = "inputs whose bits changed",
    repeat: str = "outputs whose bits differ between launches",
) -> tuple[Gate, ...]:
    """The rows of a table that let no element pass, in the order of the checks; the words say what an op counts."""
    return (
        Gate("output_written", written, 0.0, 0.0, EXACT),
        Gate("output_finite", "elements that are NaN or infinite", 0.0, 0.0, EXACT),
        Gate("guards", guards, 0.0, 0.0, EXACT),
        Gate("inputs_unchanged", inputs, 0.0, 0.0, EXACT),
        Gate("repeat_bits", repeat, 0.0, 0.0, EXACT),
    )
