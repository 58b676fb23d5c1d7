"""Which rows a sweep takes: each group, batch and class of the op's cases, or the rows that its source published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        ParameterError: a value that the op does not know, an op without published rows, `published` beside
            other groups, or no row at all.
    """
    cases = load_op(op).cases
    if PUBLISHED in groups:
        found = [row for row in _published(op, cases, groups) if _taken(row, BATCHES, batches)]
        found = [row for row in found if _taken(row, CLASSES, kinds)]
    else:
        found = list(cases.rows(groups, batches, kinds))
    if not found:
        given = f"groups {list(groups)}, batches {list(batches)}, kinds {list(kinds)}"
        raise ParameterError("notebook", [Reason("rows", repr(given), "at least one row", "Name one of each.")])
    return found


def _published(op: str, cases: Any, groups: Sequence[str]) -> Sequence[Row]:
    offered: Callable[[], Sequence[Row]] | None = getattr(cases, "published", None)
    if offered is None:
        remedy = f"The cases of {op} name no published rows."
        raise ParameterError("notebook", [Reason("groups", repr(list(groups)), "groups of the op", remedy)])
    if len(groups) != 1:
        raise ParameterError("notebook", [Reason("groups", repr(list(groups)), f"{PUBLISHED!r} alone, or others")])
    return offered()


def _taken(row: Row, names: Sequence[str], wanted: Sequence[object]) -> bool:
    """Whether the row's axis of one of these names has a wanted value; nothing wanted takes all."""
    return not wanted or any(row.parameters.get(name) in wanted for name in names)
