"""Replaying: the result's fields, and what is refused before anything runs."""

from __future__ import annotations

import pytest
import torch
from toy_op import BoundArm, judge, make_capture, make_op, reference, scaled, write

from kda_lab.errors import VerificationError
from kda_lab.ops.protocol import FunctionArm
from kda_lab.verify import Settings, replay


def test_a_right_arm_passes() -> None:
    """A right arm passes every check, and the result names capture, arm and device."""
    done = judge(FunctionArm("right", write, source_sha256="ab"), capture=make_capture(pinned=1.0))
    assert (done.passed, done.failed) == (True, ())
    assert (done.op, done.capture, done.arm, done.source_sha256, done.device) == (
        "toy.mean",
        "toy-a",
        "right",
        "ab",
        "cpu",
    )
    assert done.axes["B"] == 8


def test_errors_are_reported_beside_the_checks() -> None:
    """FP32, FP64, pinned, worst row, both floors and the pinned output's own error are numbers of the result."""
    done = judge(FunctionArm("biased", scaled(1.1)), capture=make_capture(pinned=1.0))
    assert set(done.errors) == {"fp32", "fp64", "pinned", "row_max", "floor", "floor_row_max", "pinned_fp32"}
    assert done.errors["fp32"] == pytest.approx(0.1, rel=0.05)
    assert done.errors["fp64"] == pytest.approx(done.errors["fp32"], rel=1e-3)
    assert done.errors["pinned"] == pytest.approx(0.1, rel=0.05)
    assert done.errors["pinned_fp32"] == pytest.approx(done.errors["floor"], rel=1e-3)


def test_what_was_not_compared_is_none() -> None:
    """No pinned output, or no launch at all, gives None and not a number."""
    done = judge(FunctionArm("right", write))
    assert (done.errors["pinned"], done.errors["pinned_fp32"]) == (None, None)
    assert done.skipped == {"error_pinned": "the capture has no pinned output"}

    def bind(call):
        raise ValueError("no")

    assert judge(BoundArm("broken", bind)).errors["fp32"] is None


def test_a_shared_reference_gives_the_same_answer() -> None:
    """A reference that was made before is used, and changes nothing."""
    arm, ref = FunctionArm("right", write), reference()
    op = make_op()
    op.oracle = None
    assert replay(op, arm, make_capture(), "cpu", reference=ref) == judge(arm)


def test_a_reference_of_another_capture_is_refused() -> None:
    """Judging against another capture's oracle is refused with both names."""
    with pytest.raises(
        VerificationError, match="reference is of capture 'toy-a'; allowed: 'toy-b', by name and SHA-256"
    ):
        replay(make_op(), FunctionArm("right", write), make_capture("toy-b"), "cpu", reference=reference())
    with pytest.raises(VerificationError, match="by name and SHA-256"):
        replay(make_op(), FunctionArm("right", write), make_capture(seed=5), "cpu", reference=reference())


def test_an_unavailable_arm_is_refused() -> None:
    """An arm that cannot run here is an error with its own sentence; loops ask before they replay."""
    arm = BoundArm("gpu_only", lambda call: print, reason="unavailable, because there is no GPU")
    with pytest.raises(
        VerificationError, match="arm gpu_only cannot be judged on cpu: unavailable, because there is no GPU"
    ):
        judge(arm)


def test_no_checks_are_refused() -> None:
    """An empty list of checks would pass everything."""
    with pytest.raises(VerificationError, match="checks is empty; allowed: at least one check, such as CHECKS"):
        judge(FunctionArm("right", write), ())


def test_the_capture_is_not_changed() -> None:
    """Replaying leaves the capture's tensors alone."""
    capture = make_capture()
    before = {n: t.clone() for n, t in {**capture.call.inputs, **capture.call.outputs}.items()}
    judge(FunctionArm("right", write), capture=capture)
    assert all(torch.equal(before[n], t) for n, t in {**capture.call.inputs, **capture.call.outputs}.items())


def test_peers_with_fixed_lengths_say_why_checks_are_absent() -> None:
    """The record of such an arm states the reason for each check that does not apply."""
    arm = FunctionArm("planned", write, reads_live_lengths=False)
    done = replay(make_op(), arm, make_capture(), "cpu", Settings(role="peer"))
    assert done.passed
    assert (
        done.skipped["changed_lengths_longer"]
        == "the arm fixes lengths when it is bound, which only baselines and peers may"
    )
