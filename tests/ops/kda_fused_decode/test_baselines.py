"""Baselines: what must be beaten is right first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kda_lab.ops.kda_fused_decode import baselines, cases
from kda_lab.ops.protocol import Call

CALLS = [cases.with_guard_rows(cases.synthesise(row, 0), 1) for row in cases.capture_rows()[:3]]


def restored(call: Call) -> Call:
    call.restore()
    call.outputs["out"].fill_(float("nan"))
    return call


def test_the_first_arm_is_the_speed_baseline() -> None:
    """Order and names of the arms, which reports and notebooks rely on."""
    assert [arm.name for arm in baselines.ARMS] == ["plain_chain", "torch_gathered"]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.label)
@pytest.mark.parametrize("arm", baselines.ARMS, ids=lambda arm: arm.name)
def test_baselines_are_right_on_a_cpu(arm: Any, call: Call, is_right: Callable[..., bool]) -> None:
    """Strided memory, both gates, both dtypes, padding: every element within its allowance."""
    if arm.unavailable(torch.device("cpu")):
        pytest.skip(arm.unavailable(torch.device("cpu")))
    arm.bind([restored(call)])[0]()
    assert is_right(call)


@pytest.mark.gpu
@pytest.mark.parametrize("arm", baselines.ARMS, ids=lambda arm: arm.name)
def test_baselines_are_right_on_the_gpu(arm: Any, is_right: Callable[..., bool]) -> None:
    """At full width, two calls of one bind, which share the rows between the launches."""
    device = torch.device("cuda", 0)
    calls = [cases.synthesise(cases.row("gpu", {"HV": 12, "B": 9}), seed, device) for seed in (4, 5)]
    for call, launch in zip(calls, arm.bind([restored(c) for c in calls]), strict=True):
        launch()
        assert is_right(call)
