"""Shape rules: which extents each axis may have, and whether one rule lies within another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator
from typing_extensions import Self

from kda_lab.contracts.fields import Data


class AxisRange(Data):
    """Inclusive range of an axis, or the multiples of a number within one."""

    minimum: int
    maximum: int
    multiple_of: int = Field(default=1, ge=1)
    """Only multiples of this count, whatever the minimum is; 1: every extent."""

    @model_validator(mode="after")
    def _holds_something(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is above maximum {self.maximum}")
        if self.first > self.last:
            raise ValueError(f"no multiple of {self.multiple_of} lies from {self.minimum} to {self.maximum}")
        return self

    @property
    def first(self) -> int:
        """Smallest extent that the range holds."""
        return -(-self.minimum // self.multiple_of) * self.multiple_of

    @property
    def last(self) -> int:
        """Largest extent that the range holds."""
        return self.maximum // self.multiple_of * self.multiple_of

    def __contains__(self, extent: int) -> bool:
        return self.minimum <= extent <= self.maximum and extent % self.multiple_of == 0

    @property
    def count(self) -> int:
        """How many extents the range holds."""
        return (self.last - self.first) // self.multiple_of + 1

    def __str__(self) -> str:
        step = "" if self.multiple_of == 1 else f" (multiples of {self.multiple_of})"
        return f"{self.minimum}..{self.maximum}{step}"


Extents = int | tuple[int, ...] | AxisRange
"""One extent, a list of them, or a range."""


class ShapeRule(Data):
    """One set of shapes: every named axis within its value, values or range. Unnamed axes are free."""

    axes: dict[str, int | tuple[int, ...] | AxisRange]
    basis: str = ""
    """Why this set: `measured rows …`, `source thread`, …"""


def holds(value: Extents, extent: int) -> bool:
    """Whether an axis may have this extent."""
    if isinstance(value, AxisRange):
        return extent in value
    return extent == value if isinstance(value, int) else extent in value


def rule_holds(rule: ShapeRule, axes: Mapping[str, Any]) -> bool:
    """Whether every axis that the rule names is there and within it."""
    return all(name in axes and holds(value, axes[name]) for name, value in rule.axes.items())


def in_words(value: Extents) -> str:
    """`24`, `12|24`, `1..16` or `64..17408 (multiples of 64)`."""
    if isinstance(value, (int, AxisRange)):
        return str(value)
    return "|".join(map(str, value))


def always_multiple(value: Extents, divisor: int) -> bool:
    """Whether every extent that a value holds is a multiple of `divisor`."""
    if isinstance(value, AxisRange):
        return value.multiple_of % divisor == 0 or (value.first == value.last and value.first % divisor == 0)
    return all(extent % divisor == 0 for extent in ((value,) if isinstance(value, int) else value))


def require_within(dispatched: Iterable[ShapeRule], callable_rules: Sequence[ShapeRule]) -> None:
    """Demand that every dispatched rule lies within one callable rule.

    Raises:
        ValueError: one does not; the text shows its axes.
    """
    for rule in dispatched:
        if not any(_rule_within(rule, wide) for wide in callable_rules):
            axes = rule.model_dump(exclude_defaults=True)["axes"]
            raise ValueError(f"a dispatched rule is {axes}; allowed: one that lies within one callable rule")


def _rule_within(rule: ShapeRule, wide: ShapeRule) -> bool:
    return all(name in rule.axes and _value_within(rule.axes[name], value) for name, value in wide.axes.items())


def _value_within(value: Extents, wide: Extents) -> bool:
    if isinstance(value, int):
        return holds(wide, value)
    if not isinstance(value, AxisRange):
        return all(holds(wide, extent) for extent in value)
    if isinstance(wide, AxisRange):
        bounds = value.first in wide and value.last in wide
        return bounds and (value.first == value.last or value.multiple_of % wide.multiple_of == 0)
    listed = {wide} if isinstance(wide, int) else set(wide)
    # The number first: a contract may name a range of any size.
    return value.count <= len(listed) and listed.issuperset(range(value.first, value.last + 1, value.multiple_of))
