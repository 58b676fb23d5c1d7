"""Running an arm's code: which failures become findings, and in which words."""

from __future__ import annotations

import pytest
import torch
from toy_op import BoundArm, make_call

from kda_lab.verify.launching import ARM_ERRORS, ArmFailure, arm_errors, bind_one, one_thread, run_arm

CPU = torch.device("cpu")


@pytest.mark.parametrize("error", ARM_ERRORS, ids=lambda e: e.__name__)
def test_every_listed_error_becomes_a_failure(error: type[Exception]) -> None:
    """Each error of the list is reported with stage, class and first line."""

    def action() -> None:
        raise error("what happened\nand where")

    with pytest.raises(ArmFailure, match=rf"^first: {error.__name__}: .*what happened") as caught:
        run_arm("first", action, CPU)
    assert "and where" not in str(caught.value) or error is KeyError


def test_triton_errors_become_failures() -> None:
    """Triton's error inherits none of the builtin ones, and is caught all the same."""
    triton_errors = pytest.importorskip("triton.errors", reason="Triton is not installed")
    assert triton_errors.TritonError in arm_errors()

    def action() -> None:
        raise triton_errors.TritonError("out of resources")

    with pytest.raises(ArmFailure, match="first: TritonError: out of resources"):
        run_arm("first", action, CPU)


def test_an_unlisted_error_passes_through() -> None:
    """A warning that was turned into an error is not the arm's answer."""

    def action() -> None:
        raise UserWarning("deprecated")

    with pytest.raises(UserWarning, match="deprecated"):
        run_arm("first", action, CPU)


def test_long_and_empty_messages() -> None:
    """A message is cut at 400 characters, and an empty one leaves the class."""

    def long() -> None:
        raise RuntimeError("x" * 5000)

    def empty() -> None:
        raise RuntimeError

    with pytest.raises(ArmFailure) as caught:
        run_arm("first", long, CPU)
    assert len(caught.value.text) == 400
    with pytest.raises(ArmFailure, match=r"^first: RuntimeError: $"):
        run_arm("first", empty, CPU)


def test_bind_one_hands_the_launcher_out() -> None:
    """One call gives one launcher."""
    launched: list[int] = []
    launcher = bind_one(BoundArm("arm", lambda call: lambda: launched.append(1)), make_call(), CPU)
    launcher()
    assert launched == [1]


@pytest.mark.parametrize("answer", [[], [print, print], ["text"]], ids=["none", "two", "text"])
def test_bind_must_answer_with_one_callable(answer: list) -> None:
    """Any other answer of `bind` is a failure of the arm."""

    class Odd(BoundArm):
        def bind(self, calls):
            return answer

    with pytest.raises(
        ArmFailure, match=rf"bind: returned {len(answer)} launchers for one call; allowed: one callable"
    ):
        bind_one(Odd("odd", lambda call: print), make_call(), CPU)


def test_a_cpu_replay_runs_on_one_thread() -> None:
    """Inside it is one thread on a CPU, and afterwards, failures included, what it was."""
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError, match="stop"), one_thread(CPU):
        assert torch.get_num_threads() == 1
        raise RuntimeError("stop")
    assert torch.get_num_threads() == 2
    with one_thread(torch.device("cuda")):
        assert torch.get_num_threads() == 2


def test_a_launcher_that_prepares_needs_leave() -> None:
    """Where preparation is not allowed, a launcher with prepare() is no answer of the arm."""

    class Prepared:
        def prepare(self) -> None:
            """Nothing to prepare."""

        def __call__(self) -> None:
            """Nothing to launch."""

    arm = BoundArm("prepared", lambda call: Prepared())
    assert isinstance(bind_one(arm, make_call(), CPU), Prepared)
    with pytest.raises(ArmFailure, match=r"bind: returned a launcher with prepare\(\); allowed: none"):
        bind_one(arm, make_call(), CPU, may_prepare=False)
