"""Axes of a contract: reading their extents from shapes, and judging them by shape rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kda_lab.contracts.dimensions import AxisDimension, parse_dimension
from kda_lab.contracts.facts import TensorFacts
from kda_lab.contracts.gates import TensorGate
from kda_lab.contracts.model import Declaration
from kda_lab.contracts.shapes import ShapeRule, holds, in_words
from kda_lab.errors import Reason


@dataclass(frozen=True)
class Axis:
    """An axis as one tensor shows it."""

    extent: int
    field: str
    """Where it was read: `q.shape[0]`."""
    dimension: str = ""
    """As what it was read there: `K/2`."""

    def named(self, axis: str) -> str:
        """Field of a reason against the axis's extent: `q.shape[0] (B)`, or `x.shape[1] (K, from K/2)`."""
        through = "" if self.dimension in ("", axis) else f", from {self.dimension}"
        return f"{self.field} ({axis}{through})"


def resolve_axes(
    gates: Mapping[str, TensorGate], tensors: Mapping[str, TensorFacts]
) -> tuple[dict[str, Axis], list[Reason]]:
    """Extents of all axes, and a reason for every dimension that disagrees.

    The first tensor in the contract's order that shows an axis is the measure for the others; dimensions
    that are rounded up are compared last, once every axis is known. Tensors that are absent or of another
    rank show nothing.
    """
    axes: dict[str, Axis] = {}
    reasons: list[Reason] = []
    rounded: list[tuple[str, AxisDimension, int]] = []
    for tensor, gate in gates.items():
        facts = tensors.get(tensor)
        if facts is None or len(facts.shape) != len(gate.shape):
            continue
        for index, (dimension, given) in enumerate(zip(gate.shape, facts.shape, strict=True)):
            field = f"{tensor}.shape[{index}]"
            if isinstance(dimension, int):
                reasons += [] if given == dimension else [Reason(field, repr(given), repr(dimension))]
                continue
            parts = parse_dimension(dimension)
            if parts.shows_axis:
                known = axes.setdefault(parts.axis, Axis(parts.axis_extent(given), field, dimension))
                reasons += _mismatch(known, field, parts, given)
            else:
                rounded.append((field, parts, given))
    for field, parts, given in rounded:
        if parts.axis in axes:
            reasons += _mismatch(axes[parts.axis], field, parts, given)
    return axes, reasons


def _mismatch(known: Axis, field: str, parts: AxisDimension, given: int) -> list[Reason]:
    """A reason when a dimension disagrees with the known extent of its axis."""
    extent = parts.extent(known.extent)
    if extent == given:
        return []
    source = f"{parts.axis}={known.extent} from {known.field}"
    if extent is None:
        return [Reason(field, repr(given), f"none, since {source} is no multiple of {parts.divisor} ({parts.text})")]
    return [Reason(field, repr(given), f"{extent}, which is {parts.text} with {source}")]


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
    sets = (" ".join(f"{name}={in_words(value)}" for name, value in rule.axes.items()) for rule in rules)
    return "; ".join(text or "any shapes" for text in sets) or "no shapes"


def _broken_axes(rule: ShapeRule, axes: Mapping[str, Axis], remedy: str, silent_when_unknown: bool) -> list[Reason]:
    reasons = []
    for name, value in rule.axes.items():
        axis = axes.get(name)
        if axis is None:
            if not silent_when_unknown:
                reasons.append(
                    Reason(name, "unknown", in_words(value), f"No tensor of the call shows the axis {name}.")
                )
        elif not holds(value, axis.extent):
            reasons.append(Reason(axis.named(name), repr(axis.extent), in_words(value), remedy))
    return reasons
