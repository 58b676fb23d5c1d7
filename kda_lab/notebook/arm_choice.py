"""Which arms a run takes where a notebook leaves its list empty: every candidate of the op, every arm of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.registry import load_op


def given_or_all(
    op: str, kernels: Sequence[str], baselines: Sequence[str], candidates: Path
) -> tuple[list[str], list[str]]:
    """The names as given; for an empty list all there are, candidates sorted and the op's arms in its order.

    Args:
        op: dotted name of the op.
        kernels, baselines: as `ops.arms.chosen_arms` takes them.
        candidates: folder of candidate sources, one folder an op.

    Raises:
        ParameterError: the op is unknown, or has no candidate or no arm to stand for an empty list.
    """
    kernels = list(kernels) or sorted(path.stem for path in (candidates / op).glob("*.py"))
    baselines = list(baselines) or [arm.name for arm in load_op(op).baselines.ARMS]
    if not kernels or not baselines:
        given = f"{len(kernels)} kernels and {len(baselines)} baselines"
        remedy = f"Candidates stand in {candidates / op}."
        raise ParameterError("notebook", [Reason("arms", repr(given), "at least one of each", remedy)])
    return kernels, baselines
