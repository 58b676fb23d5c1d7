"""State stress: many launches, equal bits, zero state."""

from __future__ import annotations

import itertools

import pytest
import torch
from toy_op import BoundArm, reference, write

from kda_lab.errors import VerificationError
from kda_lab.ops.protocol import FunctionArm
from kda_lab.verify import stress


def test_a_right_arm_passes() -> None:
    """Every launch after the first is compared."""
    done = stress(FunctionArm("right", write), reference(), launches=25)
    assert (done.passed, done.launches, done.differing, done.nonzero_state) == (True, 25, 0, {})


def test_one_odd_launch_is_counted() -> None:
    """A launch that differs in one bit is counted, wherever it comes."""
    turns = itertools.count()

    def bind(call):
        def launch() -> None:
            write(call)
            if next(turns) == 17:
                call.outputs["out"].view(torch.int16)[0, 0, 0] += 1

        return launch

    done = stress(BoundArm("odd", bind), reference(), launches=25)
    assert (done.passed, done.differing) == (False, 1)


def test_a_skipped_launch_is_counted() -> None:
    """Outputs are poisoned before each launch, so a launch that does nothing shows."""
    turns = itertools.count()
    arm = BoundArm("lazy", lambda call: lambda: write(call) if next(turns) != 3 else None)
    assert stress(arm, reference(), launches=5).differing == 1


def test_state_left_behind_fails() -> None:
    """A counter that drifts is named with its number of non-zero elements."""
    state = {"counter": torch.zeros(3), "flags": torch.zeros(2)}

    def bind(call):
        def launch() -> None:
            write(call)
            state["counter"][1:] += 1

        return launch

    done = stress(BoundArm("drifting", bind, state=state), reference(), launches=3)
    assert (done.passed, done.nonzero_state) == (False, {"counter": 2})


def test_a_failure_is_recorded() -> None:
    """An arm that raises under stress fails with stage and words, and no launch counts."""
    turns = itertools.count()

    def bind(call):
        def launch() -> None:
            if next(turns) == 4:
                raise RuntimeError("counter overflow")
            write(call)

        return launch

    done = stress(BoundArm("raising", bind), reference(), launches=10)
    assert (done.passed, done.launches, done.failure) == (False, 0, "launch: RuntimeError: counter overflow")


def test_a_failure_of_the_first_launch_is_recorded_too() -> None:
    """The launch that the others are compared with is the arm's code as well."""

    def bind(call):
        def launch() -> None:
            raise RuntimeError("no")

        return launch

    assert stress(BoundArm("raising", bind), reference(), launches=2).failure == "launch: RuntimeError: no"


def test_no_launch_is_refused() -> None:
    """Zero launches would pass for nothing."""
    with pytest.raises(VerificationError, match=r"launches is 0; allowed: 1 or more."):
        stress(FunctionArm("right", write), reference(), launches=0)
