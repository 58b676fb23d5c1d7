"""Which shapes production takes: the timed rows, turned into shape rules.

A row counts only when it is `faster` beyond noise. For each combination of the other axes, consecutive
measured values of the range axis (the one that the declaration gives as a range, such as the batch)
whose rows are all faster form one inclusive range; a row that is not faster ends the range before it.
Nothing outside measured rows is ever added. A declaration with several range axes names the one to walk (the batch, at
each measured number of tokens), or has no one direction (rows, width and depth of a matrix product): there each measured
shape whose rows are all faster is served alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from kda_lab.contracts.dimensions import axis_of
from kda_lab.contracts.model import AxisRange, Declaration, ShapeRule
from kda_lab.contracts.shapes import rule_holds


class MeasuredRow(Protocol):
    """What this module needs of `timing.statistics.RowResult`."""

    @property
    def row(self) -> str: ...
    @property
    def axes(self) -> Mapping[str, Any]: ...
    @property
    def verdict(self) -> str: ...


Rows = Sequence[MeasuredRow]


def contract_axes(declaration: Declaration) -> tuple[str, ...]:
    """Axis names that occur in the tensors' shapes, in order: only these can be tested in a call."""
    names = (axis_of(d) for gate in declaration.tensors.values() for d in gate.shape if isinstance(d, str))
    return tuple(dict.fromkeys(names))


def range_axis(declaration: Declaration) -> str | None:
    """The axis that is declared so, or the only one that callable rules give as a range; None without or with several."""
    if declaration.range_axis is not None:
        return declaration.range_axis
    found = {n for rule in declaration.callable for n, v in rule.axes.items() if isinstance(v, AxisRange)}
    return found.pop() if len(found) == 1 else None


def dispatched_rules(declaration: Declaration, rows: Rows, served: Sequence[ShapeRule] = ()) -> tuple[ShapeRule, ...]:
    """Shape rules that the rows support; empty when no measured value has only faster rows.

    Args:
        declaration: names the axes and the range axis.
        rows: the candidate's rows, of every run and architecture; those without a verdict count as not faster.
        served: shapes that other kernels take; rows that lie in one are left out.
    """
    rows = [row for row in rows if not any(rule_holds(rule, row.axes) for rule in served)]
    axis = range_axis(declaration)
    fixed = [n for n in contract_axes(declaration) if n != axis]
    groups: dict[tuple[tuple[str, int], ...], list[MeasuredRow]] = defaultdict(list)
    for row in rows:
        if axis is None or axis in row.axes:
            groups[tuple((n, row.axes[n]) for n in fixed if n in row.axes)].append(row)
    rules: list[ShapeRule] = []
    for key, members in groups.items():
        rules += _ranges(dict(key), axis, members, served) if axis is not None else _point(dict(key), members)
    return tuple(rules)


def _point(fixed: Mapping[str, int], members: Rows) -> list[ShapeRule]:
    if not all(r.verdict == "faster" for r in members):
        return []
    return [ShapeRule(axes=dict(fixed), basis=f"measured rows {', '.join(r.row for r in members)}")]


def _ranges(fixed: Mapping[str, int], axis: str, members: Rows, served: Sequence[ShapeRule]) -> list[ShapeRule]:
    by_value: dict[int, list[MeasuredRow]] = defaultdict(list)
    for row in members:
        by_value[row.axes[axis]].append(row)
    classes = _sweep_classes(by_value, (*fixed, axis))
    if not classes:
        return []
    rules: list[ShapeRule] = []
    run: list[int] = []
    for value in sorted(by_value):
        rows = by_value[value]
        if run and any(rule_holds(rule, {**fixed, axis: n}) for rule in served for n in range(run[-1] + 1, value)):
            # What another kernel takes may lie between two measured values: no range goes over it.
            rules += _rule(fixed, axis, run, classes)
            run = []
        if not all(r.verdict == "faster" for r in rows):
            rules += _rule(fixed, axis, run, classes)
            run = []
        elif classes <= {_class(r, (*fixed, axis)) for r in rows}:
            run.append(value)
        # Faster in some classes only: such a value neither carries a range nor breaks it.
    return rules + _rule(fixed, axis, run, classes)


def _class(row: MeasuredRow, named: Iterable[str]) -> str:
    """What distinguishes rows of equal shape: the axes that no tensor shape shows, such as the length class."""
    return ", ".join(str(v) for n, v in sorted(row.axes.items()) if n not in named)


def _sweep_classes(by_value: Mapping[int, Rows], named: Sequence[str]) -> set[str]:
    """Classes measured at half of the values or more; the others are single rows, such as replays."""
    counts: dict[str, int] = defaultdict(int)
    for rows in by_value.values():
        for name in {_class(r, named) for r in rows}:
            counts[name] += 1
    return {name for name, count in counts.items() if 2 * count >= len(by_value)}


def _rule(fixed: Mapping[str, int], axis: str, run: Sequence[int], classes: set[str]) -> list[ShapeRule]:
    if not run:
        return []
    values = ", ".join(str(v) for v in run)
    basis = f"bracketed by measured rows at {axis} = {values}, all faster beyond noise"
    named = ", ".join(sorted(c for c in classes if c))
    return [
        ShapeRule(
            axes={**fixed, axis: AxisRange(minimum=run[0], maximum=run[-1])},
            basis=f"{basis} ({named})" if named else basis,
        )
    ]
