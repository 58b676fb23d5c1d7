"""What mutants ask of the requests of a call, and how those that need a live one are put together."""

from __future__ import annotations

from collections.abc import Callable

from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.wrong import baked, plain

ALL_PADDING = "every request is padding"


def is_live(call: Call) -> bool:
    """Whether any request is not padding."""
    return bool((call.inputs["state_indices"] >= 0).any())


def has_padding(call: Call) -> bool:
    """Whether any request is padding."""
    return bool((call.inputs["state_indices"] < 0).any())


def part(name: str, what: str, mistake: Callable[[Call], None]) -> Mutant:
    """A mutant of every call with a live request."""
    return plain(name, what, mistake, is_live, ALL_PADDING)


def baked_part(name: str, what: str, right: Callable[[Call], None], *tensors: str) -> Mutant:
    """The right computation on copies of some inputs, made when the call is bound; of every call with a live request."""
    return Mutant(name, what, lambda: baked(name, tensors, right), is_live, ALL_PADDING)
