"""Mistakes that a kernel of any op can make; the mutants of the ops share them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kda_lab.ops.protocol import Call, FunctionArm, Launcher, Mutant


def all_zero(call: Call) -> None:
    """Write zeros into every output."""
    for tensor in call.outputs.values():
        tensor.zero_()


def untouched(call: Call) -> None:
    """Write nothing."""


@dataclass(frozen=True)
class StatefulArm:
    """An arm whose launcher remembers something from `bind` on."""

    name: str
    make: Callable[[Call], Launcher]
    source_sha256: str = ""
    reads_live_lengths: bool = True
    """Claimed by every mutant, so that the checks with changed contents judge it."""

    def unavailable(self, device: torch.device) -> str:
        """Empty: it runs anywhere."""
        return ""

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call, each with a memory of its own."""
        return [self.make(call) for call in calls]


def baked(name: str, inputs: Sequence[str], compute: Callable[[Call], None]) -> StatefulArm:
    """An arm that copies some inputs when it is bound, and never looks at them again.

    Args:
        name: of the arm.
        inputs: names of the tensors that it copies.
        compute: the right computation, which writes a call's outputs.
    """

    def make(call: Call) -> Launcher:
        copies = {tensor: call.inputs[tensor].clone() for tensor in inputs}
        return lambda: compute(call.with_inputs(**copies))

    return StatefulArm(name, make)


def plain(
    name: str,
    what: str,
    compute: Callable[[Call], None],
    applies: Callable[[Call], bool] | None = None,
    why_not: str = "",
) -> Mutant:
    """A mutant that is a function of the call; it applies everywhere unless told otherwise."""
    return Mutant(name, what, lambda: FunctionArm(name, compute), applies or (lambda call: True), why_not)


def stateful(
    name: str, what: str, make: Callable[[Call], Launcher], applies: Callable[[Call], bool], why_not: str
) -> Mutant:
    """A mutant whose launchers remember something from `bind` on; see `StatefulArm`."""
    return Mutant(name, what, lambda: StatefulArm(name, make), applies, why_not)
