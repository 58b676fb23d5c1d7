"""Evil arm: computes the right answer, then writes into its input."""

from __future__ import annotations

from toy_op import failed, judge, without, write

from kda_lab.ops.protocol import FunctionArm


def mutating(call) -> None:
    write(call)
    call.inputs["x"][0].mul_(2)


def touching_guard_rows(call) -> None:
    write(call)
    # Still NaN, with another pattern: only a comparison of bits can see this.
    call.inputs["x"][-1].copy_(-call.inputs["x"][-1])


def test_caught_by_inputs_unchanged() -> None:
    """A written input is caught by the comparison of bits, and by nothing else."""
    assert failed(FunctionArm("mutating", mutating)) == {"inputs_unchanged"}


def test_only_inputs_unchanged_sees_it() -> None:
    """Without that check the arm would pass."""
    assert judge(FunctionArm("mutating", mutating), without("inputs_unchanged")).passed


def test_rows_behind_the_live_end_are_inputs_too() -> None:
    """A write behind the live end is caught although the value was NaN and stays NaN."""
    assert failed(FunctionArm("guard_rows", touching_guard_rows)) == {"inputs_unchanged"}


def test_the_detail_names_the_input() -> None:
    """The finding says which input was changed, and in which phase first."""
    check = next(c for c in judge(FunctionArm("mutating", mutating)).checks if c.name == "inputs_unchanged")
    assert check.detail.startswith("first: x; repeat_1: x")
