"""Evil arm: right numbers, two heads exchanged."""

from __future__ import annotations

from toy_op import failed, judge, make_op, rounded, without

from kda_lab.ops.protocol import FunctionArm

ERRORS = ("error_fp32", "row_max", "changed_lengths_shorter", "changed_lengths_longer")


def swapping(call) -> None:
    right = rounded(call)
    right["out"] = right["out"][:, [1, 0, 2, 3]]
    for name, value in right.items():
        call.outputs[name].copy_(value)


def test_caught_by_error_fp32() -> None:
    """Exchanged heads are caught by the errors and only by them."""
    assert failed(FunctionArm("swapping", swapping)) == set(ERRORS)


def test_integrity_alone_would_pass_it() -> None:
    """Without the error checks the arm would pass."""
    assert judge(FunctionArm("swapping", swapping), without(*ERRORS), op=make_op()).passed
