"""The CUDA C++ candidate with snapshots: right on capture rows; more stands beside the one with a ring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.kda.speculative import folded
from kda_lab.ops.protocol import Row
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import rel_l2

CANDIDATES = Path(__file__).parents[3] / "notebooks" / "candidates"
FILE = CANDIDATES / "kda.verify_snapshots" / "staged.py"
OP = load_op("kda.verify_snapshots")
ROWS = OP.cases.capture_rows()


def test_a_long_draft_has_fewer_rows_a_cta() -> None:
    """Eight tokens of 128 rows would leave two CTAs to an SM; four leave three."""
    module = candidate_arm(FILE).module
    assert [module.rows_for(384, tokens, 128) for tokens in (4, 8)] == [128, 64]


RING_OUTPUTS = ("ring_k", "ring_v", "ring_g", "ring_beta")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_it_passes_every_check_of_the_referee(row: Row) -> None:
    """Poison, guards, repeated bits, other tokens and slots."""
    call = OP.cases.synthesise(row, 0)
    capture = SimpleNamespace(name="snapshots", kind="synthetic", call=call, pinned={}, sha256="0" * 64)
    with one_thread(torch.device("cpu")):
        assert replay(OP, candidate_arm(FILE), capture, "cpu").failed == ()


def test_the_state_is_only_read() -> None:
    """The pools keep their bits, NaN in dead slots included."""
    call = OP.cases.synthesise(ROWS[0], 0)
    before = {n: call.inputs[n].clone() for n in ("state", "conv_state")}
    candidate_arm(FILE).module.verify_snapshots(*call.inputs.values(), **call.scalars)
    for name, tensor in before.items():
        assert torch.equal(call.inputs[name].nan_to_num(7.0), tensor.nan_to_num(7.0))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_fold_of_the_ring_is_the_snapshot(device: str) -> None:
    """For every number of accepted tokens, within FP32 sums."""
    call = OP.cases.synthesise(ROWS[0], 0, device)
    ring = candidate_arm(CANDIDATES / "kda.verify_ring" / "staged.py").module
    _, _, states = candidate_arm(FILE).module.verify_snapshots(*call.inputs.values(), **call.scalars)
    held = dict(zip(RING_OUTPUTS, ring.verify_ring(*call.inputs.values(), **call.scalars)[2:], strict=True))
    index = call.inputs["state_indices"]
    live = (index >= 0).nonzero()[:, 0]
    for n in range(1, states.shape[1] + 1):
        pool = folded(held, call.inputs["state"].double(), index, torch.full_like(index, n))
        assert rel_l2(states[live, n - 1], pool[index[live].long()]) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_capture_rows_are_right_on_the_gpu(row: Row, is_right: Callable[..., bool]) -> None:
    """Other widths, padding, one token, FP32 weights."""
    call = OP.cases.synthesise(row, 0, "cuda")
    found = candidate_arm(FILE).module.verify_snapshots(*call.inputs.values(), **call.scalars)
    assert is_right(call, dict(zip(call.outputs, found, strict=True)))
