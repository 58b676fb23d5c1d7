"""Evil arm: right answers, but it leaves a counter that the next user of the memory trips over."""

from __future__ import annotations

import math

import pytest
import torch
from toy_op import BoundArm, failed, judge, without, write


def counting(step: float) -> BoundArm:
    state = {"counter": torch.zeros(4), "scratch_flags": torch.zeros(2, dtype=torch.int32)}

    def bind(call):
        def launch() -> None:
            write(call)
            state["counter"][2] += step

        return launch

    return BoundArm("counting", bind, state=state)


@pytest.mark.parametrize("step", [1.0, math.nan], ids=["one", "nan"])
def test_caught_by_state_zero(step: float) -> None:
    """A counter that is not zero after the call is caught by `state_zero` and by nothing else."""
    assert failed(counting(step)) == {"state_zero"}


def test_only_state_zero_sees_it() -> None:
    """Without that check the arm would pass."""
    assert judge(counting(1.0), without("state_zero")).passed


def test_the_detail_names_the_state() -> None:
    """The finding names the tensor and counts its elements."""
    check = next(c for c in judge(counting(1.0)).checks if c.name == "state_zero")
    assert check.detail == "counter: 1 elements not zero"
