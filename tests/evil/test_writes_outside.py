"""Evil arm: computes the right answer and writes past the end, or before the start, of its output."""

from __future__ import annotations

import pytest
from toy_op import failed, judge, without, write

from kda_lab.ops.protocol import FunctionArm


def overrunning(first: int):
    def run(call) -> None:
        write(call)
        out = call.outputs["out"]
        out.as_strided((16,), (1,), out.storage_offset() + first).zero_()

    return FunctionArm("overrunning", run)


@pytest.mark.parametrize("first", [-16, -30_000, 8 * 4 * 16, 8 * 4 * 16 + 30_000])
def test_caught_by_guards(first: int) -> None:
    """Sixteen elements outside the output, near or far, are caught by the guard bands and by nothing else."""
    assert failed(overrunning(first)) == {"guards"}


def test_only_guards_see_it() -> None:
    """Without the guards the arm would pass."""
    assert judge(overrunning(512), without("guards")).passed


def test_the_detail_counts_the_elements() -> None:
    """The finding says how many elements were written beside which output."""
    check = next(c for c in judge(overrunning(512)).checks if c.name == "guards")
    assert "first: 16 elements outside out" in check.detail
