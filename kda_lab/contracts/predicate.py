"""The predicate: whether a call lies inside a contract, and every reason why it does not.

A pure function of two values. It reads no device, no environment and no file, and returns all
reasons at once. Whatever it cannot evaluate counts as a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from kda_lab.contracts.axes import resolve_axes, rule_reasons
from kda_lab.contracts.facts import CallFacts, TensorFacts, call_facts, tensor_facts
from kda_lab.contracts.model import Contract, Declaration, Qualification, ScalarGate, ShapeRule, TensorGate
from kda_lab.errors import ParameterError, Reason

__all__ = ["CallFacts", "Decision", "TensorFacts", "axes_of", "call_facts", "check", "tensor_facts"]

Shapes = Literal["callable", "dispatched"]
OPT_IN = "Set KDA_LAB_ALLOW_COMPILED=1 to run it there all the same."
FP32_MAX = 3.4028234663852886e38
"""Largest finite FP32 value: kernels take their float scalars in FP32, where more is infinity."""
SHOWN_BITS = 256
SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Decision:
    """Whether a call may run, and every reason why not. True in a condition when it may."""

    reasons: tuple[Reason, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no reason against the call."""
        return not self.reasons

    def __bool__(self) -> bool:
        return self.ok


def check(
    contract: Declaration,
    facts: CallFacts,
    shapes: Shapes = "callable",
    allow_compiled: bool = False,
) -> Decision:
    """Decide whether a call lies inside a contract.

    Args:
        contract: a Contract; or a Declaration, which has no architectures yet, so that the
            capability is not judged.
        facts: of the call, from `call_facts`.
        shapes: `callable`, all shapes the kernel accepts, also on a CPU in the mended interpreter; or
            `dispatched`, the narrower set that was measured to be faster.
        allow_compiled: also accept an architecture that was compiled for but never run on.

    Raises:
        ParameterError: `dispatched` is asked of a Declaration, or `shapes` is another word.
    """
    rules = _rules(contract, shapes)
    # Only a forced kernel, judged by its callable shapes, may run interpreted: production never does by itself.
    interpreted = facts.interpreted and shapes == "callable"
    reasons = [*_tensor_reasons(contract, facts, interpreted), *_device_reasons(contract, facts)]
    axes, mismatches = resolve_axes(contract.tensors, facts.tensors)
    reasons += mismatches
    reasons += rule_reasons(contract, rules, shapes, axes, silent_when_unknown=bool(reasons))
    reasons += _scalar_reasons(contract, facts)
    if isinstance(contract, Contract) and not _all_off_cuda(facts):
        reasons += _capability_reasons(contract.architectures, facts.capability, allow_compiled)
    return Decision(tuple(reasons))


def axes_of(contract: Declaration, facts: CallFacts) -> dict[str, int]:
    """Axis extents of a call as the contract names them: `{"B": 4, "HQ": 24}`; unresolved axes are absent."""
    axes, _ = resolve_axes(contract.tensors, facts.tensors)
    return {name: axis.extent for name, axis in axes.items()}


def show(value: Any) -> str:
    """`repr` of a scalar, short, and never of anything that might be on a device."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > SHOWN_BITS:
        return f"an int of {value.bit_length()} bits"
    if value is None or type(value) in (bool, int, float, str, torch.dtype):
        text = repr(value)
        return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
    return f"a {type(value).__name__}"


def _rules(contract: Declaration, shapes: str) -> tuple[ShapeRule, ...]:
    if shapes == "callable":
        return contract.callable
    if shapes == "dispatched" and isinstance(contract, Contract):
        return contract.dispatched
    allowed = (
        "'callable', 'dispatched'" if isinstance(contract, Contract) else "'callable' (a declaration has no other)"
    )
    raise ParameterError("contracts", [Reason("shapes", repr(shapes), allowed)])


def _tensor_reasons(contract: Declaration, facts: CallFacts, interpreted: bool) -> Iterator[Reason]:
    for name, gate in contract.tensors.items():
        if name in facts.foreign:
            yield Reason(name, facts.foreign[name], "a strided torch.Tensor")
        elif name in facts.tensors:
            yield from _one_tensor(name, gate, facts.tensors[name], interpreted)
        elif not gate.optional:
            yield Reason(name, "None", "a torch.Tensor")
    known = ", ".join(contract.tensors)
    for name in sorted({*facts.tensors, *facts.foreign} - set(contract.tensors)):
        yield Reason(name, "given", f"one of {known}", "The contract has no such tensor: leave it out.")


def _one_tensor(name: str, gate: TensorGate, facts: TensorFacts, interpreted: bool) -> Iterator[Reason]:
    if facts.dtype not in gate.dtypes:
        allowed = ", ".join(f"torch.{dtype}" for dtype in gate.dtypes)
        yield Reason(f"{name}.dtype", f"torch.{facts.dtype}", allowed, f"Cast {name}.")
    if len(facts.shape) != len(gate.shape):
        allowed = f"{len(gate.shape)} dimensions [{', '.join(map(str, gate.shape))}]"
        yield Reason(f"{name}.shape", repr(facts.shape), allowed, f"Reshape {name}.")
    if facts.device_type != gate.device and not interpreted:
        yield Reason(f"{name}.device", repr(facts.device), f"a {gate.device} device", f"Move {name}.")
    if gate.contiguous:
        yield from _layout_reasons(name, gate, facts)
    if facts.alignment % gate.alignment_bytes:
        given, allowed = f"{facts.alignment} bytes", f"a multiple of {gate.alignment_bytes} bytes"
        yield Reason(f"{name}.alignment", given, allowed, f"Clone {name}, or slice it at an aligned offset.")


def _layout_reasons(name: str, gate: TensorGate, facts: TensorFacts) -> Iterator[Reason]:
    free = gate.free_leading
    if not gate.transposed and not facts.contiguous_behind(free):
        which = f"the last {len(facts.shape) - free} dimensions of " if free else ""
        allowed, remedy = f"contiguous strides for {which}{facts.shape!r}", f"Call {name}.contiguous()."
        yield Reason(f"{name}.strides", repr(facts.strides), allowed, remedy)
    if gate.transposed and not facts.transposed:
        outer = "" if len(facts.shape) == 2 else "…, "
        rows = f"{facts.shape[-2]}" if len(facts.shape) > 1 else "rows"
        allowed = f"({outer}1, {rows}), the transposed view of a contiguous tensor"
        remedy = f"Store {name} row-major with its last two dimensions swapped, and pass its transpose."
        yield Reason(f"{name}.strides", repr(facts.strides), allowed, remedy)


def _device_reasons(contract: Declaration, facts: CallFacts) -> Iterator[Reason]:
    if not contract.same_device:
        return
    # Tensors on the wrong kind of device have a reason already and are no measure for the others.
    placed = [(n, facts.tensors[n]) for n, gate in contract.tensors.items() if n in facts.tensors]
    placed = [(n, tensor) for n, tensor in placed if tensor.device_type == contract.tensors[n].device]
    for name, tensor in placed[1:]:
        first, reference = placed[0]
        if tensor.device_index != reference.device_index:
            allowed = f"{reference.device!r}, the device of {first}"
            yield Reason(f"{name}.device", repr(tensor.device), allowed, "Put all tensors on one device.")


def _all_off_cuda(facts: CallFacts) -> bool:
    """Whether no tensor is on a CUDA device, so that each has its own reason and a capability says nothing."""
    return bool(facts.tensors) and all(tensor.device_type != "cuda" for tensor in facts.tensors.values())


def _scalar_reasons(contract: Declaration, facts: CallFacts) -> Iterator[Reason]:
    for name, gate in contract.scalars.items():
        value = facts.scalars.get(name)
        if value is None:
            if not gate.optional:
                yield Reason(name, "None", _allowed_scalars(gate), gate.remedy)
        elif not _kind_matches(gate, value) or not _within(gate, value):
            yield Reason(name, show(value), _allowed_scalars(gate), gate.remedy)
    for name in sorted(facts.scalars.keys() - contract.scalars.keys(), key=str):
        if facts.scalars[name] is not None:
            known = ", ".join(contract.scalars)
            remedy = "The contract has no such scalar: leave it out."
            yield Reason(str(name), show(facts.scalars[name]), f"one of {known}", remedy)


def _kind_matches(gate: ScalarGate, value: Any) -> bool:
    if gate.kind == "dtype":
        return isinstance(value, torch.dtype)
    if isinstance(value, bool):
        return gate.kind == "bool"
    if gate.kind == "float":
        # NaN fails the comparison as well; an int of any size compares exactly.
        return isinstance(value, (int, float)) and abs(value) <= FP32_MAX
    return gate.kind == "int" and isinstance(value, int)


def _within(gate: ScalarGate, value: Any) -> bool:
    if gate.minimum is not None and value < gate.minimum:
        return False
    if gate.maximum is not None and value > gate.maximum:
        return False
    given = str(value).removeprefix("torch.") if gate.kind == "dtype" else value
    return gate.allowed is None or given in gate.allowed


def _allowed_scalars(gate: ScalarGate) -> str:
    otherwise = " or None" if gate.optional else ""
    if gate.kind == "dtype":
        return ", ".join(f"torch.{name}" for name in gate.allowed or ()) + otherwise
    words = {"int": "an int", "float": "a finite FP32 value", "bool": "a bool"}[gate.kind]
    if gate.allowed is not None:
        return f"{words} in {', '.join(map(repr, gate.allowed))}{otherwise}"
    low = "" if gate.minimum is None else f" >= {gate.minimum:g}"
    high = "" if gate.maximum is None else f" <= {gate.maximum:g}"
    joint = " and" if low and high else ""
    return f"{words}{low}{joint}{high}{otherwise}"


def _capability_reasons(
    architectures: tuple[Qualification, ...], capability: tuple[int, int] | None, allow_compiled: bool
) -> Iterator[Reason]:
    known: Mapping[tuple[int, int], Qualification] = {a.capability: a for a in architectures}
    found = known.get(capability) if capability is not None else None
    statuses = ("qualified", "compiled") if allow_compiled else ("qualified",)
    if found is not None and found.status in statuses:
        return
    may = [f"{major}.{minor}" for (major, minor), a in known.items() if a.status in statuses]
    allowed = f"exactly {' or '.join(may)}" if may else "none yet"
    given = "None" if capability is None else f"{capability[0]}.{capability[1]}"
    yield Reason("device.capability", given, allowed, _capability_remedy(found))


def _capability_remedy(found: Qualification | None) -> str:
    if found is None:
        return "The kernel was neither run nor compiled for it; a near capability is not the same one."
    note = f" {found.note}" if found.note else ""
    if found.status == "refused":
        return f"The kernel must not run there.{note}"
    return f"The kernel compiles for it but never ran there.{note} {OPT_IN}"
