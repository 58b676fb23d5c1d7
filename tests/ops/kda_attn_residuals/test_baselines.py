"""Baselines: what must be beaten is right first, in place too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kda_lab.ops.kda_attn_residuals import baselines, cases, oracle
from kda_lab.verify.metrics import rel_l2


def test_the_first_arm_is_the_speed_baseline() -> None:
    """Order and names of the arms, which reports and notebooks rely on."""
    assert [arm.name for arm in baselines.ARMS] == ["three_launch", "reference"]
    assert len(baselines.ARMS[0].source_sha256) == 64


@pytest.mark.parametrize("arm", baselines.ARMS, ids=lambda a: a.name)
@pytest.mark.parametrize("kind", sorted(cases.KINDS))
def test_baselines_are_right(arm: Any, kind: str) -> None:
    """Two calls of one bind that share their scratch: every element of all three results."""
    calls = [cases.synthesise(cases.rows((3,), (2,), (kind,), 256, 4)[0], seed) for seed in (0, 1)]
    launchers = arm.bind(calls)
    for call, launch in zip(calls, launchers, strict=True):
        exact = oracle.oracle_fp64(call)
        call.outputs["out"].fill_(float("nan"))
        launch()
        assert rel_l2(call.outputs["out"], exact["out"]) < 3e-3
        assert all(torch.equal(call.outputs[n], exact[n]) for n in ("bank", "prefix"))


def test_a_launcher_reads_what_is_there_when_it_runs() -> None:
    """Launched twice, a pending delta is added twice: nothing was remembered at the bind."""
    call = cases.synthesise(cases.rows((2,), (1,), ("add",), 256, 2)[0], 0)
    launch = baselines.ARMS[0].bind([call])[0]
    launch()
    once = oracle.oracle_fp32(call)
    twice = oracle.oracle_fp64(call.with_inputs(bank=once["bank"], prefix=once["prefix"]))
    launch()
    assert torch.equal(call.outputs["prefix"], twice["prefix"])
    assert rel_l2(call.outputs["out"], twice["out"]) < 3e-3


@pytest.mark.gpu
@pytest.mark.parametrize("arm", baselines.ARMS, ids=lambda a: a.name)
def test_baselines_are_right_on_the_gpu(arm: Any) -> None:
    """The model's width, a batch and a prefill."""
    for row in cases.rows((3, 1500), (0, 7), ("add_write",)):
        call = cases.synthesise(row, 1, "cuda")
        exact = oracle.oracle_fp32(call)
        arm.bind([call])[0]()
        assert rel_l2(call.outputs["out"], exact["out"]) < 3e-3
        assert all(torch.equal(call.outputs[n], exact[n]) for n in ("bank", "prefix"))
