"""Evil arm: every element off by the same small factor, so that no row stands out."""

from __future__ import annotations

from toy_op import LENGTHS, failed, judge, make_capture, scaled, without, write

from kda_lab.ops.protocol import FunctionArm


def biased(factor: float):
    def run(call) -> None:
        if call.inputs["cu"].diff().tolist() == list(LENGTHS):
            scaled(factor)(call)
        else:
            write(call)

    return FunctionArm("biased", run)


def test_caught_by_error_fp32() -> None:
    """A bias of 0.5 % is below the limit of a row and above that of the whole: only `error_fp32` rejects it."""
    assert failed(biased(1.005)) == {"error_fp32"}
    assert judge(biased(1.005), without("error_fp32")).passed


def test_caught_by_error_pinned() -> None:
    """Away from the pinned output on the other side of the oracle: only `error_pinned` rejects it."""
    capture = make_capture(pinned=0.9975)
    assert failed(biased(1.003), capture) == {"error_pinned"}
    assert judge(biased(1.003), without("error_pinned"), capture=capture).passed


def test_a_wrong_pinned_output_is_called_wrong() -> None:
    """A pinned output that is itself off the oracle does not widen its limit, and the finding says so."""
    done = judge(FunctionArm("right", write), capture=make_capture(pinned=1.5))
    check = next(c for c in done.checks if c.name == "error_pinned")
    assert done.failed == ("error_pinned",)
    assert "the pinned output itself is 0.5 from the oracle" in check.detail
    assert check.limit < 0.01
