"""Evil arm: computes its answer in prepare(), which is neither timed nor captured, and only copies it when launched."""

from __future__ import annotations

import torch
from toy_op import BoundArm, failed, judge, make_capture, make_op, rounded, without

from kda_lab.ops.protocol import Call
from kda_lab.verify import Settings, replay


class Prepared:
    """A launcher that has the answer before it is launched."""

    def __init__(self, call: Call) -> None:
        self.call, self.answer = call, rounded(call)

    def prepare(self) -> None:
        """Compute the answer again, in place."""
        for name, value in rounded(self.call).items():
            self.answer[name].copy_(value)

    def __call__(self) -> None:
        for name, value in self.answer.items():
            self.call.outputs[name].copy_(value)


class Forgetful(Prepared):
    """A launcher that prepared at the bind and does not do it again."""

    def prepare(self) -> None:
        """Do nothing."""


def test_a_candidate_with_prepare_is_refused_at_the_bind() -> None:
    """The check `launch` names the reason, and nothing was launched."""
    done = judge(BoundArm("hiding", Prepared))
    check = next(c for c in done.checks if c.name == "launch")
    assert check.detail == "bind: returned a launcher with prepare(); allowed: none, since its work is not timed."
    assert not any(c.evaluated for c in done.checks if c.name in ("error_fp32", "repeat_bits"))


def test_without_that_refusal_nothing_else_sees_it() -> None:
    """The answers are right: as a baseline, which may prepare, the same arm passes every check."""
    done = replay(make_op(), BoundArm("prepared", Prepared), make_capture(), "cpu", Settings(role="baseline"))
    assert done.passed, done.failed


def test_a_preparation_that_is_not_done_again_is_caught() -> None:
    """A baseline that keeps what it prepared at the bind is wrong on both changed contents, and there only."""
    done = replay(make_op(), BoundArm("forgetful", Forgetful), make_capture(), "cpu", Settings(role="baseline"))
    assert set(done.failed) == {"changed_lengths_shorter", "changed_lengths_longer"}


def test_a_failing_preparation_is_a_finding() -> None:
    """What prepare() raises ends the run with its phase and words."""

    class Failing(Prepared):
        def prepare(self) -> None:
            raise RuntimeError("no memory")

    done = replay(make_op(), BoundArm("failing", Failing), make_capture(), "cpu", Settings(role="peer"))
    assert next(c.detail for c in done.checks if c.name == "launch") == "prepare first: RuntimeError: no memory"


def test_the_launch_check_alone_refuses_it() -> None:
    """Leaving `launch` out leaves only checks without evidence, which do not pass either."""
    assert not judge(BoundArm("hiding", Prepared), without("launch")).passed
    assert "launch" in failed(BoundArm("hiding", Prepared))
    assert torch.equal(Prepared(make_capture().call).answer["count"], make_capture().call.inputs["cu"].diff())
