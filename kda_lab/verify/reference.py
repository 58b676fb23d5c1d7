"""What an arm is judged against: for each contents of a call's buffers, the oracles, floor and limits.

Computed once a (capture, device) and shared by every arm and mutant, since the oracles cost more
than most launches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason, VerificationError
from kda_lab.ops.protocol import Call
from kda_lab.verify import metrics

GUARD_ROWS = 64
"""Rows behind everything that any contents may fill: they hold NaN in every phase."""
ROOM_ROWS = 2048
"""Rows that changed contents may grow into; they hold NaN in the other phases."""

LENGTHS = ("shorter", "longer")
"""Names of the changed contents of an op that says nothing else: fewer live rows, then more."""

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Contents:
    """One filling of the input buffers and what must come out of it."""

    name: str
    """`original`, or one of the two names of `changes_of`: `shorter`, `longer`."""
    inputs: Tensors
    fp32: Tensors
    """Unrounded FP32 oracle, one tensor an output."""
    fp64: Tensors
    """FP64 oracle."""
    floor: float
    """rel-L2 of the op's emulated arithmetic against FP64: what rounding alone costs on these inputs."""
    floor_row_max: float
    """The same for the worst row."""
    limit_error: float
    limit_row_max: float
    allowance: Tensors = field(default_factory=dict)
    """How far each element may lie from the FP64 oracle; empty where the op's oracle has no `allowance`."""
    updated: tuple[str, ...] = ()
    """Outputs with a limit of their own, since they are updated in place: `error` and `row_error` leave them out."""
    limit_updated: float = math.nan
    floor_updated: float = math.nan
    """As `floor`, of what is updated in place."""

    def error(self, outputs: Tensors) -> float:
        """Worst rel-L2 of the outputs against the FP32 oracle."""
        return worst_rel_l2(outputs, _without(self.fp32, self.updated))

    def row_error(self, outputs: Tensors) -> float:
        """Worst row of the outputs against the FP32 oracle."""
        return metrics.worst([metrics.row_max(outputs[n], r) for n, r in _without(self.fp32, self.updated).items()])

    def updated_error(self, outputs: Tensors) -> float:
        """Worst rel-L2 of what is updated in place against the FP32 oracle; NaN where nothing is."""
        return worst_rel_l2(outputs, {n: self.fp32[n] for n in self.updated})

    def element_error(self, outputs: Tensors) -> float:
        """Worst ratio of an element's error against the FP64 oracle to its allowance; NaN where there is none."""
        return metrics.worst([metrics.element_max(outputs[n], self.fp64[n], a) for n, a in self.allowance.items()])


@dataclass(frozen=True)
class Reference:
    """Everything that judging a capture needs and no arm may touch."""

    capture: str
    sha256: str
    kind: str
    """`real` or `synthetic`: chooses the limits."""
    call: Call
    """The guarded call on its device; arms get copies of its tensors, never these."""
    roomy: Call
    """The call with room to grow but without guard rows: what changed contents were made for."""
    original: Contents
    changed: tuple[Contents, Contents]
    """Two other fillings of the same buffers, in the order in which they are put there."""
    emulated: Tensors
    """The op's emulated arithmetic on the original contents, in the outputs' dtypes."""
    pinned: Tensors
    """Production output; empty when the capture has none."""
    pinned_fp32: float | None
    """Error of the pinned output against the FP32 oracle."""
    limit_pinned: float

    @property
    def pinned_is_sound(self) -> bool:
        """Whether the pinned output itself passes the capture's limit."""
        return self.pinned_fp32 is not None and metrics.within(self.pinned_fp32, self.original.limit_error)


def changes_of(op: Any) -> tuple[str, str]:
    """Names of the op's two changed contents, as `cases.changed(call, name, seed, source)` knows them.

    Raises:
        VerificationError: `cases.CHANGES` does not hold two distinct names.
    """
    names = tuple(str(name) for name in getattr(op.cases, "CHANGES", LENGTHS))
    if len(names) != 2 or len(set(names)) != 2 or not all(n.isidentifier() for n in names):
        allowed = "two distinct names, such as ('shorter', 'longer')"
        raise VerificationError("verify", [Reason("cases.CHANGES", repr(names), allowed, "Mend the op.")])
    return names[0], names[1]


def judges_elements(op: Any) -> bool:
    """Whether the op says how far each element may lie from the exact one: `oracle.allowance(call, exact)`."""
    return hasattr(op.oracle, "allowance")


def updates_in_place(op: Any) -> bool:
    """Whether the op's calls have outputs that are `separately_judged`."""
    return 0 < len(op.spec.updated) < len(op.spec.outputs)


def _without(tensors: Tensors, names: tuple[str, ...]) -> Tensors:
    return {n: t for n, t in tensors.items() if n not in names}


def may_be_infinite(op: Any) -> bool:
    """Whether -inf is a right answer of the op, as its oracle says with `MINUS_INFINITY = True`: scores of dead keys."""
    return getattr(op.oracle, "MINUS_INFINITY", False) is True


def worst_rel_l2(outputs: Tensors, references: Tensors) -> float:
    """Worst rel-L2 over the outputs; NaN when there are none."""
    return metrics.worst([metrics.rel_l2(outputs[n], r) for n, r in references.items()])


def make_reference(op: Any, capture: Any, device: torch.device, seed: int = 1) -> Reference:
    """Compute oracles, floors and limits of a capture and of its two changed contents.

    Args:
        op: modules `.oracle`, `.cases`, `.gates` as `ops.protocol` describes an op's folder.
        capture: `.name .kind .call .pinned .sha256`.
        device: where the call is replayed.
        seed: of the changed contents.

    Raises:
        VerificationError: an oracle is not finite, disagrees with the outputs' names or shapes, or judges nothing.
    """
    roomy = op.cases.with_guard_rows(capture.call.to(device), ROOM_ROWS)
    call = op.cases.with_guard_rows(roomy, GUARD_ROWS)
    original, emulated = _contents(op, "original", call, capture.kind)
    first, second = (_changed(op, name, roomy, original, (capture.kind, seed)) for name in changes_of(op))
    pinned = {n: t.to(device) for n, t in capture.pinned.items()}
    pinned_fp32 = original.error(pinned) if pinned else None
    reference = Reference(
        capture=capture.name,
        sha256=capture.sha256,
        kind=capture.kind,
        call=call,
        roomy=roomy,
        original=original,
        changed=(first, second),
        emulated=emulated,
        pinned=pinned,
        pinned_fp32=pinned_fp32,
        limit_pinned=original.limit_error,
    )
    if not reference.pinned_is_sound:
        return reference
    # Two sound roundings of the same value differ by more than either differs from the oracle.
    floor = max(original.floor, worst_rel_l2(emulated, pinned))
    limit = op.gates.limits(capture.kind, floor, original.floor_row_max).error
    return replace(reference, limit_pinned=limit)


def _changed(op: Any, name: str, roomy: Call, original: Contents, how: tuple[str, int]) -> Contents:
    kind, seed = how
    # Real rows in another order keep a real capture's magnitudes, but not its structure: synthetic limits.
    source = roomy if kind == "real" else None
    try:
        inputs = op.cases.changed(roomy, name, seed, source)
    except ParameterError:
        # A call at its widest cannot grow: `longer` then goes back from the shorter contents to the original ones.
        if name != "longer":
            raise
        return replace(original, name=name)
    shuffled = getattr(op.cases, "shuffled", None)
    if shuffled is not None and name == changes_of(op)[1]:
        # What neither change replaces (a weight) comes from the op's shuffle, or an arm could keep it by its address.
        inputs = {**shuffled(roomy, seed), **inputs}
    return _contents(op, name, op.cases.with_guard_rows(roomy.with_inputs(**inputs), GUARD_ROWS), "synthetic")[0]


def _contents(op: Any, name: str, call: Call, kind: str) -> tuple[Contents, Tensors]:
    fp32, fp64, emulated = op.oracle.oracle_fp32(call), op.oracle.oracle_fp64(call), op.oracle.emulate(call)
    for oracle, tensors in (("oracle_fp32", fp32), ("oracle_fp64", fp64), ("emulate", emulated)):
        _sound(f"{oracle} on {name} contents of {call.label or 'the call'}", tensors, call.outputs, may_be_infinite(op))
    updated = call.separately_judged
    floor = worst_rel_l2(emulated, _without(fp64, updated))
    floor_row_max = metrics.worst([metrics.row_max(emulated[n], r) for n, r in _without(fp64, updated).items()])
    limits = op.gates.limits(kind, floor, floor_row_max)
    floor_updated = limit_updated = math.nan
    if updated:
        floor_updated = worst_rel_l2(emulated, {n: fp64[n] for n in updated})
        limit_updated = op.gates.updated_limit(kind, floor_updated)
    allowance = _allowance(op, name, call, fp64)
    errors = (floor, floor_row_max, limits.error, limits.row_max)
    in_place = (updated, limit_updated, floor_updated)
    return Contents(name, dict(call.inputs), fp32, fp64, *errors, allowance, *in_place), emulated


def _allowance(op: Any, name: str, call: Call, fp64: Tensors) -> Tensors:
    if not judges_elements(op):
        return {}
    found: Tensors = op.oracle.allowance(call, fp64)
    what = f"allowance on {name} contents of {call.label or 'the call'}"
    _sound(what, found, call.outputs)
    negative = sum(int(torch.count_nonzero(t < 0)) for t in found.values())
    if negative:
        raise VerificationError("verify", f"{what} holds {negative} values below 0; allowed: 0 or more. Mend the op.")
    return found


def _sound(what: str, tensors: Tensors, outputs: Tensors, infinities: bool = False) -> None:
    """A reference that is not complete, non-empty and finite (-inf aside, where the op has it) judges nothing."""
    found = {n: tuple(t.shape) for n, t in tensors.items()}
    wanted = {n: tuple(t.shape) for n, t in outputs.items()}
    if found != wanted or not any(t.numel() for t in tensors.values()):
        raise VerificationError(
            "verify", f"{what} has outputs {found!r}; allowed: {wanted!r}, not all empty. Mend the op."
        )
    broken = sum(
        int(torch.count_nonzero(~torch.isfinite(t) & ~(infinities & (t == -math.inf)))) for t in tensors.values()
    )
    if broken:
        raise VerificationError("verify", f"{what} holds {broken} values that are not finite; allowed: 0. Mend the op.")
