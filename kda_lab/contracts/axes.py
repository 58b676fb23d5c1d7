"""Axes of a contract: reading their extents from shapes, and judging them by shape rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kda_lab.contracts.facts import TensorFacts
from kda_lab.contracts.model import AxisRange, Declaration, Dimension, ShapeRule, TensorGate, split_dimension
from kda_lab.errors import Reason


@dataclass(frozen=True)
class Axis:
    """An axis as one tensor shows it."""

    extent: int
    field: str
    """Where it was read: `q.shape[0]`."""


def resolve_axes(
    gates: Mapping[str, TensorGate], tensors: Mapping[str, TensorFacts]
) -> tuple[dict[str, Axis], list[Reason]]:
    """Extents of all axes, and a reason for every dimension that disagrees.

    The first tensor in the contract's order that shows an axis is the measure for the others.
    Tensors that are absent or of another rank show nothing.
    """
    axes: dict[str, Axis] = {}
    reasons: list[Reason] = []
    for tensor, gate in gates.items():
        facts = tensors.get(tensor)
        if facts is None or len(facts.shape) != len(gate.shape):
            continue
        for index, (dimension, given) in enumerate(zip(gate.shape, facts.shape, strict=True)):
            reason = _place(axes, f"{tensor}.shape[{index}]", dimension, given)
            if reason is not None:
                reasons.append(reason)
    return axes, reasons


def _place(axes: dict[str, Axis], field: str, dimension: Dimension, given: int) -> Reason | None:
    """Record a new axis, or compare a dimension with what is known."""
    if isinstance(dimension, int):
        return None if given == dimension else Reason(field, repr(given), repr(dimension))
    name, offset = split_dimension(dimension)
    known = axes.setdefault(name, Axis(given - offset, field))
    if known.extent + offset == given:
        return None
    allowed = f"{known.extent + offset}, which is {dimension} with {name}={known.extent} from {known.field}"
    return Reason(field, repr(given), allowed)


def rule_reasons(
    contract: Declaration,
    rules: Sequence[ShapeRule],
    shapes: str,
    axes: Mapping[str, Axis],
    silent_when_unknown: bool,
) -> list[Reason]:
    """Reasons of the nearest rule; none when any rule holds.

    Args:
        contract: for its name in the remedy.
        rules: alternatives; the nearest one is the first with the fewest broken axes.
        shapes: the word for the set, `callable` or `dispatched`.
        axes: resolved extents.
        silent_when_unknown: an axis without an extent is passed over, because the tensor that
            should show it has a reason already; otherwise it is a reason of its own.
    """
    remedy = f"{shapes.capitalize()}: {describe_rules(rules)}."
    if shapes == "dispatched":
        remedy += f" Force it with kernel={contract.kernel!r} for the wider callable set."
    if not rules:
        return [Reason("shapes", f"{ {name: axis.extent for name, axis in axes.items()} }", "none", remedy)]
    broken = [_broken_axes(rule, axes, remedy, silent_when_unknown) for rule in rules]
    return min(broken, key=len)


def describe_rules(rules: Sequence[ShapeRule]) -> str:
    """`HQ=24 HKV=2 B=1..128; HQ=12 HKV=1 B=1..128`, or `no shapes`."""
    sets = (" ".join(f"{name}={_words(value)}" for name, value in rule.axes.items()) for rule in rules)
    return "; ".join(text or "any shapes" for text in sets) or "no shapes"


def _broken_axes(rule: ShapeRule, axes: Mapping[str, Axis], remedy: str, silent_when_unknown: bool) -> list[Reason]:
    reasons = []
    for name, value in rule.axes.items():
        axis = axes.get(name)
        if axis is None:
            if not silent_when_unknown:
                reasons.append(Reason(name, "unknown", _words(value), f"No tensor of the call shows the axis {name}."))
        elif not _holds(value, axis.extent):
            reasons.append(Reason(f"{axis.field} ({name})", repr(axis.extent), _words(value), remedy))
    return reasons


def _holds(value: int | tuple[int, ...] | AxisRange, extent: int) -> bool:
    if isinstance(value, AxisRange):
        return value.minimum <= extent <= value.maximum
    return extent == value if isinstance(value, int) else extent in value


def _words(value: int | tuple[int, ...] | AxisRange) -> str:
    if isinstance(value, AxisRange):
        return f"{value.minimum}..{value.maximum}"
    return str(value) if isinstance(value, int) else "|".join(map(str, value))
