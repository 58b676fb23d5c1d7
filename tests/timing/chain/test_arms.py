"""A chain's arm knows its role, and a policy may not hide work in a preparation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from kda_lab.errors import TimingError
from kda_lab.ops.protocol import Call, Launcher
from kda_lab.timing.chain.arms import ChainArm

CPU = torch.device("cpu")


class Prepared:
    """A launcher that computes beforehand and only copies when launched."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.prepare()

    def prepare(self) -> None:
        self.answer = self.call.inputs["x"] * self.call.inputs["w"]

    def __call__(self) -> None:
        self.call.outputs["out"].copy_(self.answer)


@pytest.fixture
def preparing(scaling_arm: Any) -> Any:
    """An arm whose launchers prepare."""

    class Preparing(scaling_arm):  # type: ignore[misc]
        def bind(self, calls: Sequence[Call]) -> list[Launcher]:
            return [Prepared(call) for call in calls]

    return Preparing("preparing")


@pytest.mark.parametrize("role", ["reference", "control", "policy"])
def test_a_policy_may_not_prepare(chain_op: Any, plan: Any, preparing: Any, role: Any) -> None:
    """What a policy does beforehand would not be timed, so it is refused."""
    with pytest.raises(TimingError, match=r"launcher of preparing is an object with prepare\(\); allowed: a callable"):
        ChainArm(preparing, role).build(chain_op, plan, device=CPU, seed=1)


@pytest.mark.parametrize("role", ["baseline", "peer"])
def test_a_baseline_may_prepare(chain_op: Any, plan: Any, preparing: Any, role: Any) -> None:
    """Weights that a baseline dequantises beforehand are its own affair."""
    assert ChainArm(preparing, role).build(chain_op, plan, device=CPU, seed=1).count("state") == 6


def test_the_chain_without_products_is_always_there() -> None:
    """It has a name, no source, and no reason not to run."""
    alone = ChainArm(None, "state")
    assert (alone.name, alone.source_sha256, alone.unavailable(CPU)) == ("state only", "", "")


def test_an_arm_that_cannot_run_says_why(scaling_arm: Any) -> None:
    """The arm's own reason is handed on."""
    assert ChainArm(scaling_arm("a", why_not="unavailable, because"), "peer").unavailable(CPU) == "unavailable, because"
