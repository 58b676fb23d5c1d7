"""Baselines: what must be beaten is right first, and says why it cannot run where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab import runtime
from kda_lab.ops.kda.gate import log_decay
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, step
from kda_lab.ops.kda_packed_decode import baselines, cases
from kda_lab.ops.protocol import Call

CALLS = [cases.with_guard_rows(cases.synthesise(row, 0), 1) for row in cases.capture_rows()[:3]]
FLA = baselines.ARMS[2]


def restored(call: Call) -> Call:
    call.restore()
    call.outputs["out"].fill_(float("nan"))
    return call


def test_the_first_arm_is_the_speed_baseline() -> None:
    """Order and names of the arms, which reports and notebooks rely on."""
    assert [arm.name for arm in baselines.ARMS] == ["plain_triton", "torch_gathered", "fla_fused_recurrent"]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.label)
@pytest.mark.parametrize("arm", baselines.ARMS[:2], ids=lambda arm: arm.name)
def test_baselines_that_run_on_a_cpu_are_right(arm: Any, call: Call, is_right: Callable[..., bool]) -> None:
    """Strided memory, both gates, both dtypes, padding: every element within its allowance."""
    if arm.unavailable(torch.device("cpu")):
        pytest.skip(arm.unavailable(torch.device("cpu")))
    arm.bind([restored(call)])[0]()
    assert is_right(call)


def test_fla_is_unavailable_on_a_cpu_with_a_reason() -> None:
    """Unavailable, because …: never a crash."""
    assert FLA.unavailable(torch.device("cpu")).startswith("unavailable, because fla-core needs a CUDA device")


def fake_step(**given: Any) -> None:
    """What the arm uses of fla-core's function, by the shared recurrence."""
    q, k, v = (given[name][:, 0].float() for name in ("q", "k", "v"))
    group = v.shape[1] // q.shape[1]
    q, k = (x.repeat_interleave(group, 1) for x in (normalise_q(q), normalise_k(k)))
    g = log_decay(given["g"][:, 0].float().flatten(1), given["A_log"], given["dt_bias"], given["lower_bound"])
    slots = given["ssm_state_indices"].long()
    beta = torch.sigmoid(given["beta"][:, 0].float())
    out, state = step(given["initial_state"][slots].float(), q, k, v, g, beta)
    given["initial_state"][slots] = state.to(given["initial_state"].dtype)
    given["out"][:, 0] = out.to(given["out"].dtype)
    names = ("inplace_final_state", "state_v_first", "use_qk_l2norm_in_kernel", "use_gate_in_kernel")
    assert all(given[name] for name in (*names, "use_beta_sigmoid_in_kernel"))
    assert all(given[name].is_contiguous() for name in ("q", "k", "v", "g", "beta"))


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.label)
def test_fla_gets_its_operands_and_prepares_again(
    call: Call, monkeypatch: pytest.MonkeyPatch, is_right: Callable[..., bool]
) -> None:
    """Live requests only, zero rows for padding; contents that change are seen after `prepare`."""
    found = SimpleNamespace(module=SimpleNamespace(fused_recurrent_kda_fwd=fake_step), reason="")
    monkeypatch.setattr(runtime, "import_optional", lambda name: found)
    call = restored(call.with_inputs(**{n: t.clone() for n, t in call.inputs.items()}))
    launch = FLA.bind([call])[0]
    launch()
    assert is_right(call)
    for name, new in cases.changed(call, "operands", 1).items():
        call.inputs[name].copy_(new)
    restored(call)
    launch.prepare()
    launch()
    assert is_right(call)


def test_fla_has_nothing_to_do_for_padding_alone(
    monkeypatch: pytest.MonkeyPatch, is_right: Callable[..., bool]
) -> None:
    """Zero rows, and its function is not called."""
    found = SimpleNamespace(module=SimpleNamespace(fused_recurrent_kda_fwd=None), reason="")
    monkeypatch.setattr(runtime, "import_optional", lambda name: found)
    call = restored(cases.edge_calls(0)["all_padding"])
    FLA.bind([call])[0]()
    assert is_right(call)


@pytest.mark.gpu
@pytest.mark.parametrize("arm", baselines.ARMS, ids=lambda arm: arm.name)
@pytest.mark.parametrize("axes", [{"HV": 12, "B": 9}, {"HV": 8, "H": 2, "B": 5, "padding": True}])
def test_baselines_are_right_on_the_gpu(arm: Any, axes: dict, is_right: Callable[..., bool]) -> None:
    """Every baseline that this machine offers, at full width."""
    device = torch.device("cuda", 0)
    if arm.unavailable(device):
        pytest.skip(arm.unavailable(device))
    call = restored(cases.synthesise(cases.row("gpu", axes), 4, device))
    arm.bind([call])[0]()
    assert is_right(call)
