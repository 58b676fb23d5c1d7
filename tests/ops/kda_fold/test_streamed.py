"""The fold's candidate: right on capture rows, all layers as each alone, and no bit moved where nothing was accepted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.protocol import Call
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread
from kda_lab.verify.observation import Settings

FILE = Path(__file__).parents[3] / "notebooks" / "candidates" / "kda.fold" / "streamed.py"
FOLD = candidate_arm(FILE)
OP = load_op("kda.fold")
ROWS = OP.cases.capture_rows()


def folded(call: Call) -> torch.Tensor:
    """The pool after one launch."""
    call.restore()
    FOLD.bind([call])[0]()
    return call.outputs["state"]


@pytest.mark.parametrize("arm", [FOLD, *OP.baselines.ARMS], ids=lambda arm: arm.name)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_every_arm_passes_the_referee(arm: object, row: object) -> None:
    """Repeated bits, other counts and slots, untouched slots: candidate and baselines."""
    call = OP.cases.synthesise(row, 0)
    capture = SimpleNamespace(name="fold", kind="synthetic", call=call, pinned={}, sha256="0" * 64)
    with one_thread(torch.device("cpu")):
        done = replay(OP, arm, capture, "cpu", Settings(role="candidate" if arm is FOLD else "baseline"))
    assert done.failed == ()


def per_layer(call: Call, entry: object) -> torch.Tensor:
    """The pool after a launch for each layer."""
    pool, i = call.inputs["state"].clone(), call.inputs
    for y in range(pool.shape[0]):
        ring = (i[n][y : y + 1] for n in ("ring_k", "ring_v", "ring_g", "ring_beta"))
        entry(*ring, pool[y : y + 1], i["state_indices"], i["accepted"])
    return pool


def test_all_layers_have_the_bits_of_each_alone() -> None:
    """One launch and a launch a layer leave the same pool."""
    call = OP.cases.synthesise(ROWS[0], 0)
    assert torch.equal(folded(call), per_layer(call, FOLD.module.fold))


def test_nothing_accepted_keeps_every_bit() -> None:
    """With all counts at zero the pool is the same memory of the same bits."""
    call = OP.cases.synthesise(ROWS[1], 0)
    call.inputs["accepted"].zero_()
    assert torch.equal(folded(call).view(torch.int32), call.inputs["state"].view(torch.int32))


def test_a_count_above_the_ring_is_the_whole_ring() -> None:
    """More than T tokens count as T."""
    call = OP.cases.synthesise(ROWS[2], 0)
    for name in ("ring_k", "ring_v", "ring_g", "ring_beta"):
        call.inputs[name].nan_to_num_(0.5)
    call.inputs["accepted"].fill_(3)
    right = folded(call).clone()
    call.inputs["accepted"].fill_(9)
    assert torch.equal(folded(call), right)


def test_the_kernel_refuses_by_itself() -> None:
    """Shapes, strides and dtypes that it cannot take are named."""
    tensors = list(OP.cases.synthesise(ROWS[2], 0).inputs.values())
    with pytest.raises(ValueError, match=r"kda_fold_streamed: accepted is \(1,\); allowed: \(2,\)"):
        FOLD.module.fold(*tensors[:-1], tensors[-1][:1])
    with pytest.raises(ValueError, match="state must be contiguous within a slot"):
        FOLD.module.fold(*tensors[:4], tensors[4].mT.contiguous().mT, *tensors[5:])
    with pytest.raises(ValueError, match="state must be float32"):
        FOLD.module.fold(*tensors[:4], tensors[4].bfloat16(), *tensors[5:])


@pytest.mark.gpu
def test_offsets_pass_32_bits_on_the_gpu() -> None:
    """Layers beyond 2^31 elements have the bits of a launch for each alone."""
    row = OP.cases.rows((96,), (1,), (4,), (8,))[0]
    call = OP.cases.make_sets(row, 1, 0, "cuda")[0]
    pool = torch.zeros(4, 400, *call.inputs["state"].shape[2:], device="cuda")
    pool[:, -1:] = call.inputs["state"]
    call.inputs["state_indices"].fill_(399)
    far = call.with_inputs(state=pool).with_outputs(state=pool.clone())
    assert pool.numel() > 2**31
    assert torch.equal(folded(far), per_layer(far, FOLD.module.fold))
