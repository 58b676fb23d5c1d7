"""Evil arm: writes zeros and is fast."""

from __future__ import annotations

from toy_op import failed, judge, make_capture, without, zero

from kda_lab.ops.protocol import FunctionArm

ERRORS = ("error_fp32", "error_pinned", "row_max", "changed_lengths_shorter", "changed_lengths_longer")


def test_caught_by_the_errors() -> None:
    """Zeros are written, finite and repeatable: the error checks reject them, with relative error 1."""
    done = judge(FunctionArm("zeros", zero), capture=make_capture(pinned=1.0))
    assert set(done.failed) == set(ERRORS)
    assert done.errors["fp32"] == 1.0


def test_integrity_alone_would_pass_it() -> None:
    """Without the error checks the arm would pass."""
    assert judge(FunctionArm("zeros", zero), without(*ERRORS)).passed


def test_zeros_of_a_synthetic_capture_are_caught_without_pinned_output() -> None:
    """The oracle alone is enough."""
    assert "error_fp32" in failed(FunctionArm("zeros", zero))
