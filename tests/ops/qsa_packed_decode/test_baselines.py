"""Baselines: what must be beaten is right first, and says why it cannot run where it cannot."""

from __future__ import annotations

import pytest
import torch

from kda_lab import runtime
from kda_lab.errors import ParameterError
from kda_lab.ops.registry import load_op
from kda_lab.verify.metrics import rel_l2

OP = load_op("qsa.packed_decode")
NAMES = ["per_head", "torch_sdpa", "flashinfer_ragged_fa2", "flashinfer_ragged_fa3", "flashinfer_paged_tc"]
NAMES += ["upstream_schedule"]


def test_the_first_arm_is_the_speed_baseline() -> None:
    """Order and names of the arms, which reports and notebooks rely on."""
    assert [arm.name for arm in OP.baselines.ARMS] == NAMES


@pytest.mark.parametrize("name", ["per_head", "torch_sdpa", "upstream_schedule"])
@pytest.mark.parametrize("edge", ["zero_rows", "length_one", "draft_width"])
def test_baselines_that_run_on_a_cpu_are_right(name: str, edge: str) -> None:
    """Against the FP32 oracle, empty rows included; every element written."""
    call = OP.cases.edge_calls(4)[edge]
    call.outputs["out"].fill_(float("nan"))
    arm = next(a for a in OP.baselines.ARMS if a.name == name)
    arm.bind([call])[0]()
    assert rel_l2(call.outputs["out"], OP.oracle.oracle_fp32(call)["out"]) < 3e-3


@pytest.mark.parametrize("arm", OP.baselines.ARMS[2:5], ids=lambda a: a.name)
def test_flashinfer_is_unavailable_on_a_cpu_with_a_reason(arm) -> None:
    """Unavailable, because …: never a crash."""
    assert arm.unavailable(torch.device("cpu")).startswith("unavailable, because FlashInfer needs a CUDA device")


def test_the_scale_is_the_given_one_or_one_over_root_width() -> None:
    """1/16 for width 256 when none is given."""
    call = OP.cases.edge_calls(4)["length_one"]
    assert OP.baselines.scale_of(call) == 1 / 16
    given = {**call.scalars, "softmax_scale": 0.25}
    assert OP.baselines.scale_of(type(call)(call.op, call.inputs, given, call.outputs)) == 0.25


@pytest.mark.gpu
@pytest.mark.parametrize("arm", OP.baselines.ARMS, ids=lambda a: a.name)
def test_baselines_are_right_on_the_gpu(arm) -> None:
    """Every baseline that this machine offers agrees with the FP32 oracle within BF16 noise."""
    device = torch.device("cuda", 0)
    if arm.unavailable(device):
        pytest.skip(arm.unavailable(device))
    call = OP.cases.synthesise(OP.cases.rows(("tp1",), (4,), ("medium",))[0], 4, device)
    arm.bind([call])[0]()
    assert rel_l2(call.outputs["out"], OP.oracle.oracle_fp32(call)["out"]) < 5e-3


def test_the_thread_schedule_refuses_a_batch_beyond_its_workspace() -> None:
    """129 rows do not fit the counters, so the call is refused before anything is launched."""
    call = OP.cases.call_of((1,) * 129, (12, 1), 1)
    with pytest.raises(ParameterError, match=r"B of upstream_schedule is 129; allowed: 1 to 128\."):
        OP.baselines.ARMS[5].bind([call])


def test_the_thread_schedule_needs_a_gpu_or_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either it says so, like every arm that cannot run."""
    monkeypatch.setattr(runtime, "interpreter_on", lambda: False)
    assert "neither a GPU nor the interpreter" in OP.baselines.ARMS[5].unavailable(torch.device("cpu"))
    assert OP.baselines.ARMS[5].unavailable(torch.device("cuda")) == ""
