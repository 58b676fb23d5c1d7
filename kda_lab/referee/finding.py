"""What one check found in a claim: how grave it is, one sentence, and arithmetic that a person can redo by hand."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kda_lab.referee.claim import Fact, Source

Severity = Literal["invalid", "not comparable", "cold cache", "superseded", "inconclusive", "warning", "note", "passed"]
"""From gravest to none. The first five decide the verdict, in this order."""
DECIDING: tuple[Severity, ...] = ("invalid", "not comparable", "cold cache", "superseded", "inconclusive")


class Finding(Fact):
    """One thing that a check found."""

    check: str
    """Name of the check: `occupancy`."""
    severity: Severity
    short: str
    """A few words, for the verdict's parentheses: `cold JIT suspected`."""
    sentence: str
    """What was found, and what to do about it."""
    arithmetic: tuple[str, ...] = ()
    """One line a step: `843.14 tok/s / 1024 tok * 28.002 s = 23.06 in flight`."""
    numbers: dict[str, float] = Field(default_factory=dict)
    """The results of the arithmetic, unrounded; names end in their unit."""
    sources: tuple[Source, ...] = ()


def signed(change_percent: float, digits: int = 2) -> str:
    """A change with its sign: `+2.19 %`."""
    return f"{change_percent:+.{digits}f} %"


def figure(value: float, digits: int = 6) -> str:
    """A number in at most six significant digits, without an exponent where it is of everyday size."""
    if value != value or abs(value) in (0.0, float("inf")):
        return str(value)
    return f"{value:,.{digits}g}".replace(",", "") if 1e-4 <= abs(value) < 10**digits else f"{value:.{digits}g}"
