"""The grammar of a tensor's dimension: a number, or an axis through a constant, a divisor or a rounding.

    256          a fixed extent
    B            the axis itself
    B+1, B-1     the axis plus or minus a constant
    K/16         the axis divided, exactly
    ceil128(M)   the axis, rounded up to a multiple
    ceil4(K/16)  the axis divided, then rounded up

The first four show the extent of their axis. A rounded one does not, since many extents share it: it
only checks an axis that another dimension shows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

_NAME = r"([A-Za-z][A-Za-z0-9_]*?)"
# [0-9], since \d also takes the digits of other scripts.
_PLAIN = re.compile(rf"{_NAME}(?:([+-])([0-9]{{1,9}}))?")
_DIVIDED = re.compile(rf"{_NAME}/([1-9][0-9]{{0,8}})")
_ROUNDED = re.compile(rf"ceil([2-9]|[1-9][0-9]{{1,8}})\({_NAME}(?:/([1-9][0-9]{{0,8}}))?\)")
MAX_NUMBER = 65536
"""Largest constant, divisor and multiple: no layout needs more, and products of them stay small."""
ALLOWED = f"an axis name like B, B+1, B/2, ceil128(B) or ceil4(B/16), with numbers up to {MAX_NUMBER}"


@dataclass(frozen=True)
class AxisDimension:
    """One dimension that depends on an axis: `(extent / divisor + offset)`, rounded up to `multiple`."""

    text: str
    """As written: `ceil4(K/16)`."""
    axis: str
    offset: int = 0
    divisor: int = 1
    multiple: int = 1

    @property
    def shows_axis(self) -> bool:
        """Whether the axis's extent follows from this dimension: false where it is rounded up."""
        return self.multiple == 1

    def axis_extent(self, given: int) -> int:
        """The axis's extent when this dimension is `given`; only for one that shows its axis."""
        return (given - self.offset) * self.divisor

    def extent(self, axis_extent: int) -> int | None:
        """This dimension's extent for an axis's extent; None where an exact division leaves a rest.

        Inside a rounding the division rounds up as well: a container must hold a partial group.
        """
        if self.shows_axis and axis_extent % self.divisor:
            return None
        whole = -(-axis_extent // self.divisor) + self.offset
        return -(-whole // self.multiple) * self.multiple


@functools.lru_cache(maxsize=1024)
def parse_dimension(text: str) -> AxisDimension:
    """The parts of a dimension as a contract writes it.

    Raises:
        ValueError: the text is outside the grammar.
    """
    parts = _parts(text)
    if parts is None or max(abs(parts.offset), parts.divisor, parts.multiple) > MAX_NUMBER:
        raise ValueError(f"a dimension is {text[:80]!r}; allowed: a number, or {ALLOWED}")
    return parts


def _parts(text: str) -> AxisDimension | None:
    if match := _PLAIN.fullmatch(text):
        name, sign, constant = match.groups()
        return AxisDimension(text, name, offset=int(f"{sign or '+'}{constant or 0}"))
    if match := _DIVIDED.fullmatch(text):
        return AxisDimension(text, match[1], divisor=int(match[2]))
    if match := _ROUNDED.fullmatch(text):
        return AxisDimension(text, match[2], divisor=int(match[3] or 1), multiple=int(match[1]))
    return None


def axis_of(dimension: str) -> str:
    """Name of the axis of a dimension: `ceil4(K/16)` to `K`.

    Raises:
        ValueError: the text is outside the grammar.
    """
    return parse_dimension(dimension).axis


def extent_of(dimension: int | str, axes: Mapping[str, int]) -> int:
    """Extent of a dimension for known axes: `ceil128(M)` with M=8 is 128.

    Raises:
        KeyError: the axis is not among `axes`.
        ValueError: the text is outside the grammar, or the axis is no multiple of the divisor.
    """
    if isinstance(dimension, int):
        return dimension
    parts = parse_dimension(dimension)
    extent = parts.extent(axes[parts.axis])
    if extent is None:
        raise ValueError(f"{parts.axis} is {axes[parts.axis]}; allowed: a multiple of {parts.divisor}, for {dimension}")
    return extent


def _checked(dimension: int | str) -> int | str:
    if isinstance(dimension, str):
        parse_dimension(dimension)
    elif dimension < 0:
        raise ValueError(f"an extent is {dimension}; allowed: 0 or more")
    return dimension


Dimension = Annotated[int | str, AfterValidator(_checked)]
"""A fixed extent, or an axis in the grammar of this module."""
