"""The candidate with snapshots, and the chain that it must beat: right on capture rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.protocol import Row
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread
from kda_lab.verify.observation import Settings

FILE = Path(__file__).parents[3] / "notebooks" / "candidates" / "kda.verify_snapshots" / "streamed.py"
OP = load_op("kda.verify_snapshots")
ROWS = OP.cases.capture_rows()


def judged(arm: object, row: Row, role: str = "candidate") -> tuple[str, ...]:
    """Checks that an arm fails on a row."""
    capture = SimpleNamespace(
        name="snapshots", kind="synthetic", call=OP.cases.synthesise(row, 0), pinned={}, sha256="0" * 64
    )
    with one_thread(torch.device("cpu")):
        return replay(OP, arm, capture, "cpu", Settings(role=role)).failed


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_it_passes_every_check_of_the_referee(row: Row, smaller: Callable[[Row], Row]) -> None:
    """Poison, guards, repeated bits, other tokens and slots."""
    assert judged(candidate_arm(FILE), smaller(row)) == ()


@pytest.mark.parametrize("arm", OP.baselines.ARMS, ids=lambda arm: arm.name)
def test_baselines_are_right(arm: object, smaller: Callable[[Row], Row]) -> None:
    """The chain and torch pass the same checks."""
    assert judged(arm, smaller(ROWS[1]), "baseline") == ()


def test_the_state_is_only_read(smaller: Callable[[Row], Row]) -> None:
    """The pools keep their bits, NaN in dead slots included."""
    call = OP.cases.synthesise(smaller(ROWS[0]), 0)
    before = {n: call.inputs[n].clone() for n in ("state", "conv_state")}
    candidate_arm(FILE).module.verify_snapshots(*call.inputs.values(), **call.scalars)
    for name, tensor in before.items():
        assert torch.equal(call.inputs[name].nan_to_num(7.0), tensor.nan_to_num(7.0))
