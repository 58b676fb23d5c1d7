"""Evil arm: leaves a part of its output unwritten and hopes for what lay there before."""

from __future__ import annotations

from toy_op import failed, judge, rounded, without, write

from kda_lab.ops.protocol import FunctionArm


def partial(call) -> None:
    call.outputs["count"].copy_(rounded(call)["count"])
    call.outputs["out"][:-1].copy_(rounded(call)["out"][:-1])


def skipping_count(call) -> None:
    call.outputs["out"].copy_(rounded(call)["out"])


def test_caught_by_output_written() -> None:
    """An unwritten row is caught as unwritten, not as a computed NaN."""
    names = failed(FunctionArm("partial", partial))
    assert "output_written" in names
    assert "output_finite" not in names


def test_only_output_written_tells_it_from_a_computed_nan() -> None:
    """Without that check no finding would say that the row was never written."""
    left = set(judge(FunctionArm("partial", partial), without("output_written")).failed)
    assert left == {"error_fp32", "row_max", "repeat_bits", "changed_lengths_shorter", "changed_lengths_longer"}


def test_unwritten_integers_are_caught() -> None:
    """An integer output has no NaN; its poison is recognised all the same."""
    check = next(c for c in judge(FunctionArm("skipping", skipping_count)).checks if c.name == "output_written")
    assert (check.passed, check.value) == (False, 8.0)


def test_a_replaced_output_counts_as_unwritten() -> None:
    """Putting another tensor into the call's outputs leaves the real output unwritten."""

    def replacing(call) -> None:
        call.outputs.update(rounded(call))
        write(call)

    assert "output_written" in failed(FunctionArm("replacing", replacing))


def test_a_resized_output_counts_as_unwritten() -> None:
    """Moving the output tensor to other memory leaves the real output unwritten."""

    def moving(call) -> None:
        for output in call.outputs.values():
            output.set_(output.clone())
        write(call)

    assert "output_written" in failed(FunctionArm("moving", moving))
