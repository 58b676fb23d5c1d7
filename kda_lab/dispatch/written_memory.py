"""Memory that a call writes: each element at a place of its own, which no other tensor has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kda_lab.contracts.facts import CallFacts
from kda_lab.errors import Reason


def overlapping(facts: CallFacts, written: Iterable[str]) -> Iterator[Reason]:
    """A reason for each tensor whose own elements may share a place: all but one of their writes would be lost."""
    for name in written:
        tensor = facts.tensors.get(name)
        if tensor is not None and _overlaps(tensor.shape, tensor.strides):
            allowed = f"strides for {tensor.shape!r} with a place for each element, since {name} is written"
            yield Reason(f"{name}.strides", repr(tensor.strides), allowed, "An expanded tensor has no such strides.")


def shared(facts: CallFacts, written: Iterable[str]) -> Iterator[Reason]:
    """A reason for each written tensor that begins where another tensor of the call does: one buffer given twice.

    Views that begin apart and still meet are the caller's duty: where both have gaps, as slots of one page have, that
    does not follow from their first and last address, and for the others addresses would belong to every cache key.
    """
    writes = set(written)
    for name, first in facts.same_start.items():
        if name in writes or first in writes:
            lost, kept = (name, first) if name in writes else (first, name)
            yield Reason(lost, f"the memory of {kept}", f"memory of its own, since {lost} is written")


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements may share a place: an axis steps less far than all axes of smaller strides reach together."""
    if 0 in shape:
        return False
    reach = 1
    for stride, extent in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (extent - 1)
    return False
