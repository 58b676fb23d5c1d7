"""Evil arms: take live lengths from the call they were bound to instead of the launch's own."""

from __future__ import annotations

import torch
from toy_op import BoundArm, failed, judge, without, write


def frozen(clamp) -> BoundArm:
    """An arm that computes with `clamp(live lengths, lengths at bind)` entries a row."""

    def bind(call):
        bound = call.inputs["cu"].diff().clone()

        def launch() -> None:
            cu, x = call.inputs["cu"], call.inputs["x"]
            write(call)
            lengths = clamp(cu.diff(), bound)
            for b, length in enumerate(lengths.tolist()):
                rows = x[int(cu[b]) : int(cu[b]) + length].float()
                mean = rows.mean(0) if length else torch.zeros(x.shape[1:])
                call.outputs["out"][b].copy_((mean * 0.75).bfloat16())

        return launch

    return BoundArm("frozen", bind)


def test_lengths_of_the_bind_are_caught_both_ways() -> None:
    """An arm that uses the bound lengths is wrong on shorter and on longer contents, and only there."""
    arm = frozen(lambda live, bound: bound)
    assert failed(arm) == {"changed_lengths_shorter", "changed_lengths_longer"}


def test_only_longer_sees_a_loop_bounded_at_bind() -> None:
    """A loop that is bounded by the bound length is right on shorter contents: only `longer` rejects it."""
    arm = frozen(torch.minimum)
    assert failed(arm) == {"changed_lengths_longer"}
    assert judge(arm, without("changed_lengths_longer")).passed


def test_only_shorter_sees_a_loop_that_never_shrinks() -> None:
    """A loop that covers at least the bound length is right on longer contents: only `shorter` rejects it."""
    arm = frozen(torch.maximum)
    assert failed(arm) == {"changed_lengths_shorter"}
    assert judge(arm, without("changed_lengths_shorter")).passed


def test_a_candidate_cannot_excuse_itself() -> None:
    """A candidate that declares fixed lengths is replayed on others all the same."""
    arm = frozen(lambda live, bound: bound)
    arm.reads_live_lengths = False
    assert {"changed_lengths_shorter", "changed_lengths_longer"} <= failed(arm)


def test_the_right_arm_of_this_family_passes() -> None:
    """The same arm with live lengths passes: the checks reject the trick and not the code around it."""
    assert judge(frozen(lambda live, bound: live)).passed
