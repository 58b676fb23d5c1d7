"""What runs when no kernel takes a call: the members of an op's fallback chain, and each one's answer.

A chain is `OpSpec.fallback`: names in order. A name is a function registered with the dispatcher, or an
exported kernel of the op. The first member without a reason against the call runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kda_lab.contracts.facts import CallFacts
from kda_lab.contracts.model import Contract, Declaration
from kda_lab.contracts.predicate import check
from kda_lab.errors import Reason
from kda_lab.ops.protocol import OpSpec

Kind = Literal["function", "kernel", "absent"]


@dataclass(frozen=True)
class FallbackFunction:
    """A function outside the exported kernels, such as a library's, that may serve an op."""

    name: str
    """As `OpSpec.fallback` writes it."""
    run: Callable[..., Any]
    """Takes the op's arguments: tensors by position, scalars and outputs by name. Imports its library when it runs."""
    unavailable: Callable[[CallFacts], tuple[Reason, ...]]
    """Every reason why it cannot serve a call of these facts: a pure function that imports and reads no device."""


@dataclass(frozen=True)
class FallbackVerdict:
    """One chain member's answer to one call."""

    name: str
    kind: Kind
    """`kernel`: an exported one, judged by its callable shapes. `absent`: neither exported nor registered."""
    reasons: tuple[Reason, ...]

    @property
    def accepted(self) -> bool:
        """Whether the member may take the call."""
        return not self.reasons


def chain_reasons(contract: Declaration, spec: OpSpec, where: str) -> list[Reason]:
    """Why what a kernel says of its fallback is not what the op does; empty when it is.

    The op's chain decides at a call; a contract only repeats it, for people. So a chain must be the op's very own, and
    a kernel that stands in that chain, behind which nothing of its own comes, declares `raise`.

    Args:
        contract: the kernel's.
        spec: of its op.
        where: opens the field of a reason: the kernel's name, or its file.
    """
    if contract.fallback.kind == "raise":
        return []
    field, given = f"{where}.fallback", f"chain {', '.join(contract.fallback.chain)}"
    if contract.kernel in spec.fallback:
        return [Reason(field, given, "kind 'raise', for a kernel that is itself in the chain of its op")]
    if contract.fallback.chain != spec.fallback:
        allowed = f"chain {', '.join(spec.fallback)}, as {spec.name} has it" if spec.fallback else "kind 'raise'"
        return [Reason(field, given, allowed, "The op's chain decides what runs; a contract repeats it.")]
    return []


def judge_chain(
    chain: Sequence[str],
    functions: Mapping[str, FallbackFunction],
    kernels: Mapping[str, Contract],
    facts: CallFacts,
    allow_compiled: bool,
) -> tuple[FallbackVerdict, ...]:
    """Ask the members in order, up to the first that takes the call.

    Args:
        chain: `OpSpec.fallback`.
        functions: registered functions by name.
        kernels: contracts of the op's exported kernels by name.
        facts: of the call.
        allow_compiled: a kernel may also run on an architecture it was only compiled for.
    """
    verdicts: list[FallbackVerdict] = []
    for name in chain:
        verdicts.append(_judge(name, functions.get(name), kernels.get(name), facts, allow_compiled))
        if verdicts[-1].accepted:
            break
    return tuple(verdicts)


def _judge(
    name: str, function: FallbackFunction | None, contract: Contract | None, facts: CallFacts, allow_compiled: bool
) -> FallbackVerdict:
    if function is not None:
        return FallbackVerdict(name, "function", tuple(function.unavailable(facts)))
    if contract is not None:
        # Callable shapes, but on a GPU only: nothing runs interpreted unless it is forced.
        decision = check(contract, replace(facts, interpreted=False), "callable", allow_compiled)
        return FallbackVerdict(name, "kernel", decision.reasons)
    reason = Reason(name, "absent", "an exported kernel or a registered function", "Export it with kda-lab export.")
    return FallbackVerdict(name, "absent", (reason,))
