"""Evil arms: raise while bound, while launched or when asked for state, or do not bind at all."""

from __future__ import annotations

import pytest
from toy_op import BoundArm, judge, without, write


def raising_at_launch(call):
    def launch() -> None:
        raise RuntimeError("illegal address\nsecond line")

    return launch


def raising_at_bind(call):
    raise KeyError("no plan")


def raising_later(call):
    turns: list[int] = []

    def launch() -> None:
        turns.append(1)
        if len(turns) > 1:
            raise ValueError("second launch")
        write(call)

    return launch


CASES = {
    "launch": (raising_at_launch, "first: RuntimeError: illegal address"),
    "bind": (raising_at_bind, "bind: KeyError: 'no plan'"),
    "second launch": (raising_later, "repeat_1: ValueError: second launch"),
    "no launcher": (lambda call: None, "bind: returned 1 launchers for one call; allowed: one callable."),
}


@pytest.mark.parametrize("bind, words", CASES.values(), ids=CASES)
def test_caught_by_launch(bind, words: str) -> None:
    """A failure of the arm is a finding of the check `launch`, with stage and words, and not an exception."""
    done = judge(BoundArm("raising", bind))
    assert done.failed[0] == "launch"
    assert done.checks[0].detail == words


@pytest.mark.parametrize("bind", [case[0] for case in CASES.values()], ids=CASES)
def test_other_checks_fail_closed(bind) -> None:
    """Without the check `launch` the arm still fails: what was not reached is not passed."""
    done = judge(BoundArm("raising", bind), without("launch"))
    assert not done.passed
    assert any("was not reached" in check.detail for check in done.checks)


class WithoutState(BoundArm):
    """Declares state, and fails when asked for it."""

    def state_tensors(self):
        raise AttributeError("no counter")


def test_state_that_cannot_be_read_fails() -> None:
    """State that cannot be read is not zero state."""
    arm = WithoutState("stateless", lambda call: lambda: write(call))
    assert set(judge(arm).failed) == {"launch", "state_zero"}


def test_what_is_not_an_answer_ends_the_run() -> None:
    """An arm that leaves the process ends the run without a verdict."""

    def leaving(call):
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        judge(BoundArm("leaving", leaving))
