"""Captures of the ops of Kimi Delta Attention: small synthetic calls, since no small real model of its kind is to be had.

A hybrid model with this attention that is small enough to record from is not published as a package. So each op's cases
name a few small rows (`capture_rows`): both gates, shared query heads, K other than V, padding, tiny keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kda_lab.captures.synthetic import write_rows
from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.registry import load_op, op_names

FAMILY = "kda."
SEED = 0


def kda_ops() -> tuple[str, ...]:
    """Names of the family's ops, sorted."""
    return tuple(name for name in op_names() if name.startswith(FAMILY))


def write_kda_sets(
    root: str | Path, *, ops: Sequence[str] = (), seed: int = SEED, replace: bool = False
) -> tuple[Path, ...]:
    """Write the set of each op below `root`, in a folder of the op's name; nothing is pinned.

    Args:
        root: folder of the sets, `data/captures`.
        ops: names of ops of the family; empty: all.
        seed: every call is drawn from it and the label of its row.
        replace: allow existing sets to be replaced.

    Returns:
        Folders of the sets, in order.

    Raises:
        ParameterError: a name is none of the family's.
        CaptureError: a set is there and may not be replaced.
    """
    known = kda_ops()
    if unknown := [name for name in ops if name not in known]:
        raise ParameterError("captures", [Reason("ops", repr(unknown), ", ".join(map(repr, known)))])
    return tuple(
        write_rows(name, Path(root) / name, load_op(name).cases.capture_rows(), seed=seed, replace=replace)
        for name in ops or known
    )
