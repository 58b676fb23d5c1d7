"""Synthetic captures: an op's own rows, drawn from a seed, kept and labelled as synthetic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kda_lab.captures.format import Source
from kda_lab.captures.writing import CaptureDraft, write_set
from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.registry import load_op


def synthetic_set(
    op: str,
    path: str | Path,
    *,
    seed: int,
    labels: Sequence[str],
    replace: bool = False,
) -> Path:
    """Write a set of synthetic captures of an op; nothing is pinned, since nothing real produced an output.

    Args:
        op: name of the op; its `cases` module gives `rows()` and `synthesise(row, seed, device)`.
        path: folder of the set.
        seed: every row is drawn from it and its label; the manifest names it.
        labels: labels of the rows wanted, in this order; large rows make large files.
        replace: allow an existing set to be replaced.
    Returns:
        `path`, to be opened with `CaptureSet.open`.
    Raises:
        ParameterError: the op, or one of the labels, is unknown.
    """
    return write_rows(op, path, _chosen(list(load_op(op).cases.rows()), labels), seed=seed, replace=replace)


def write_rows(op: str, path: str | Path, rows: Sequence[Row], *, seed: int, replace: bool = False) -> Path:
    """As `synthetic_set`, of rows that need not be among those of the op's `cases.rows()`."""
    cases = load_op(op).cases
    drafts = [_draft(row, cases.synthesise(row, seed, "cpu"), seed) for row in rows]
    note = f"Synthetic: drawn by the op's cases from seed {seed}. No model and no text was involved."
    return write_set(path, op, drafts, note=note, replace=replace)


def _chosen(rows: list[Row], labels: Sequence[str]) -> list[Row]:
    known = {row.label: row for row in rows}
    if unknown := [label for label in labels if label not in known]:
        raise ParameterError("captures", f"labels is {unknown!r}; allowed: {', '.join(known)}. Choose among them.")
    return [known[label] for label in labels]


def _draft(row: Row, call: Call, seed: int) -> CaptureDraft:
    return CaptureDraft(
        name=row.label,
        kind="synthetic",
        call=call,
        source=Source(),
        licence="CC0-1.0: random numbers",
        recorded=f"Drawn by the op's `synthesise` from seed {seed} for row {row.label}.",
        folded="nothing",
        seed=seed,
    )
