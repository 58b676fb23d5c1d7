"""Which rows a sweep takes: each group, batch and class of the op's cases, or the rows that its source published."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Row
from kda_lab.ops.registry import load_op
from kda_lab.report.grouping import BATCHES, CLASSES

PUBLISHED = "published"
"""The group that stands for the rows an op's source published."""


def chosen_rows(op: str, groups: Sequence[str], batches: Sequence[int], kinds: Sequence[str]) -> list[Row]:
    """Rows of an op, in their order.

    Args:
        op: its dotted name.
        groups: topologies or shapes as the op's `cases.rows` knows them; or `published` alone for `cases.published()`.
        batches, kinds: of each group; of published rows, those to take, all where a list is empty.

    Raises:
        ParameterError: a value that the op does not know or that is given twice, an op without published rows,
            `published` beside other groups, a batch or kind of which no published row is left, or no row at all.
    """
    _require_once({"groups": groups, "batches": batches, "kinds": kinds})
    cases = load_op(op).cases
    if PUBLISHED in groups:
        found = _narrowed(_published(op, cases, groups), batches, kinds)
    else:
        found = list(cases.rows(groups, batches, kinds))
    if not found:
        given = f"groups {list(groups)}, batches {list(batches)}, kinds {list(kinds)}"
        raise ParameterError("notebook", [Reason("rows", repr(given), "at least one row", "Name one of each.")])
    return found


def matching_rows(op: str, axes: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Rows of an op's `cases.rows()`, in their order, that have one of the given values on each given axis.

    Args:
        op: its dotted name.
        axes: axis to the values to take, such as `{"HV": [12], "B": [1, 2]}`; an axis left out binds nothing.

    Raises:
        ParameterError: a value given twice, an axis or value that no row has, or no row with all of it.
    """
    _require_once({name: list(values) for name, values in axes.items()})
    offered = list(load_op(op).cases.rows())
    reasons = []
    for name, values in axes.items():
        known = list(dict.fromkeys(repr(row.parameters[name]) for row in offered if name in row.parameters))
        if absent := [repr(value) for value in values if repr(value) not in known]:
            reasons.append(Reason(f"axes[{name!r}]", ", ".join(absent), ", ".join(known) or "no axis of this name"))
    found = [row for row in offered if all(_has(row, name, values) for name, values in axes.items())]
    if not found and not reasons:
        reasons.append(Reason("axes", repr(dict(axes)), f"values that one of the {len(offered)} rows has together"))
    if reasons:
        raise ParameterError("notebook", reasons)
    return found


def _has(row: Row, name: str, values: Sequence[Any]) -> bool:
    # By repr, so that True is not taken for 1.
    return name in row.parameters and repr(row.parameters[name]) in map(repr, values)


def _require_once(lists: Mapping[str, Sequence[object]]) -> None:
    doubled = {field: sorted({repr(v) for v in values if list(values).count(v) > 1}) for field, values in lists.items()}
    reasons = [
        Reason(field, repr(list(lists[field])), "each value once", f"Given twice: {', '.join(values)}.")
        for field, values in doubled.items()
        if values
    ]
    if reasons:
        raise ParameterError("notebook", reasons)


def _published(op: str, cases: Any, groups: Sequence[str]) -> Sequence[Row]:
    offered: Callable[[], Sequence[Row]] | None = getattr(cases, "published", None)
    if offered is None:
        remedy = f"The cases of {op} name no published rows."
        raise ParameterError("notebook", [Reason("groups", repr(list(groups)), "groups of the op", remedy)])
    if len(groups) != 1:
        raise ParameterError("notebook", [Reason("groups", repr(list(groups)), f"{PUBLISHED!r} alone, or others")])
    return offered()


def _narrowed(offered: Sequence[Row], batches: Sequence[int], kinds: Sequence[str]) -> list[Row]:
    """The offered rows of these batches and kinds; every one that is named must be the value of a row that is taken."""
    axes = (("batches", BATCHES, batches), ("kinds", CLASSES, kinds))
    _require_values(axes, offered, "Name batches and kinds of published rows, or leave the list empty for all.")
    found = list(offered)
    for _, names, wanted in axes:
        found = [row for row in found if not wanted or _value(row, names) in wanted]
    _require_values(axes, found, "The published rows have it, but none together with the other list.")
    return found


def _require_values(
    axes: Sequence[tuple[str, Sequence[str], Sequence[object]]], rows: Sequence[Row], remedy: str
) -> None:
    reasons = []
    for field, names, wanted in axes:
        # By repr, so that True is not taken for a batch of one.
        values = list(dict.fromkeys(repr(_value(row, names)) for row in rows))
        if absent := [value for value in wanted if repr(value) not in values]:
            reasons.append(Reason(field, repr(absent), ", ".join(values) or "none", remedy))
    if reasons:
        raise ParameterError("notebook", reasons)


def _value(row: Row, names: Sequence[str]) -> object:
    """The row's value on the first axis of these names that it has; None without one."""
    return next((row.parameters[name] for name in names if name in row.parameters), None)
