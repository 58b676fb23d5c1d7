"""Sorting of result rows into panels, lines and batches, for any op.

An op's axes are free. Three facts are read of a row: the batch (`B`, or the rows `M` of a matrix product, or the
tokens `T` of an op without requests), the topology and the class. A label that names its batch tells the others, by
its first word and by the words after that: `tp1-B4-saturated`, `hv12-B8-T4`, `T1024-valid8-mix`. Of another label the
topology is the first word and the class the axis `lengths` or `kind`; without words the other axes are the topology.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.registry import load_op, op_names
from kda_lab.report.numbers import measured
from kda_lab.timing.statistics import RowResult

BATCH_WORDS = {"B": "batch B", "M": "rows M", "T": "tokens T"}
"""What figures call an axis of batches."""
BATCHES, CLASSES = tuple(BATCH_WORDS), ("lengths", "kind")
"""Names that an axis of batches or of classes may have; the first that a row has counts."""
TITLE_LENGTH = 30
"""Characters of axes in the title of a panel: two panels stand side by side."""


def topology(row: RowResult) -> str:
    """`tp1` of `tp1-B4-saturated`, `valid8` of `T1024-valid8-mix`; else the axes that are neither batch nor class."""
    if words := _words(row):
        return words[0]
    if "-" in row.row:
        return row.row.split("-", 1)[0]
    return ", ".join(f"{k}={v}" for k, v in row.axes.items() if k not in (*BATCHES, *CLASSES)) or "all rows"


def _words(row: RowResult) -> list[str]:
    """Words of the label without that of its batch, which seldom comes first; none where it names no batch."""
    words, number = row.row.split("-"), batch(row)
    named = f"{batch_axis([row])}{number:.0f}" if number is not None else ""
    place = next((i for i in (*range(1, len(words)), 0) if words[i] == named), None)
    return [] if place is None else [w for i, w in enumerate(words) if i != place and w]


def topology_title(rows: Sequence[RowResult], more: str = "") -> str:
    """`tp1 (HQ=24, HKV=2)`: the topology with those axes on which all its rows agree, as far as there is room.

    Args:
        more: of the title, behind the topology: `hv12, T4 (H=12, …)`.
    """
    first = rows[0]
    same = [
        f"{k}={v}"
        for k, v in first.axes.items()
        if k not in (*BATCHES, *CLASSES) and v != topology(first) and all(r.axes.get(k) == v for r in rows)
    ]
    name, axes = topology(first), ", ".join(_within(same, TITLE_LENGTH - len(more)))
    told = f"{name}, {more}" if more else name
    return told if axes in ("", "…", name) else f"{told} ({axes})"


def _within(parts: Sequence[str], length: int) -> list[str]:
    """As many of the parts, joined by commas, as `length` characters hold; an ellipsis stands for the others."""
    kept: list[str] = []
    for part in parts:
        if len(", ".join([*kept, part])) > length:
            return [*kept, "…"]
        kept.append(part)
    return kept


def row_class(row: RowResult) -> str:
    """What tells rows of one topology and batch apart: `saturated` of `tp1-B4-saturated`, `T4` of `hv12-B8-T4`."""
    return "-".join(_words(row)[1:]) or _named_class(row)


def _named_class(row: RowResult) -> str:
    """The row's axis of class; `listed` when it lists the lengths one by one."""
    value = next((row.axes[name] for name in CLASSES if name in row.axes), "")
    return value if isinstance(value, str) else "listed"


def size(row: RowResult) -> str:
    """The size that the op's source gives the row's class, as `cases.SIZES` has it: `large`; empty where it names none."""
    sizes = getattr(load_op(row.op).cases, "SIZES", {}) if row.op in op_names() else {}
    return next((str(name) for name, classes in sizes.items() if _named_class(row) in classes), "")


def batch_label(rows: Iterable[RowResult]) -> str:
    """The batch in words, for an axis of a figure: `tokens T`."""
    return BATCH_WORDS[batch_axis(rows)]


def batch_axis(rows: Iterable[RowResult]) -> str:
    """The axis that counts as batch: the first of `BATCHES` that a row has; `B` where none has any."""
    return next((name for row in rows for name in BATCHES if name in row.axes), BATCHES[0])


def batch(row: RowResult) -> float | None:
    """The row's batch; None when its axes name none."""
    value = row.axes.get(batch_axis([row]))
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def grouped(rows: Iterable[RowResult], key: Any) -> dict[Any, list[RowResult]]:
    """Rows by `key(row)`, groups and rows in the order of their first appearance."""
    groups: dict[Any, list[RowResult]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def with_headings(labels: Iterable[str], rows: Sequence[RowResult]) -> tuple[list[str | None], list[str]]:
    """The labels under their topologies: a None stands where a heading goes; none for a single label.

    Args:
        labels: of rows, each once.
        rows: at least one of each label.
    """
    by_label = {r.row: r for r in rows}
    wanted = [by_label[label] for label in labels]
    if len(wanted) == 1:
        return [wanted[0].row], [""]
    found: list[str | None] = []
    headings: list[str] = []
    for members in grouped(wanted, topology).values():
        found += [None, *(r.row for r in members)]
        headings += [topology_title(members), *[""] * len(members)]
    return found, headings


def arms(rows: Iterable[RowResult], roles: Sequence[str] = ()) -> list[str]:
    """Names of the arms in order of appearance, of these roles only when some are named."""
    return list(dict.fromkeys(r.arm for r in rows if not roles or r.role in roles))


def rows_of(rows: Sequence[RowResult], arm: str, field: str = "candidate") -> list[RowResult]:
    """The rows of one arm.

    Raises:
        ParameterError: no row has this arm, so there is nothing to draw.
    """
    found = [r for r in rows if r.arm == arm and r.role != "control"]
    if not found:
        allowed = ", ".join(arms(rows)) or "none, since there are no rows"
        raise ParameterError("report", [Reason(field, repr(arm), allowed, "Name an arm that was timed.")])
    return found


def judged(rows: Iterable[RowResult]) -> list[RowResult]:
    """The rows that count in a geomean: those with a verdict, so neither warm, nor invalid, nor refused."""
    return [r for r in rows if r.verdict and measured(r.ratio)]
