"""Evil arm: overwrites the poison with a NaN of its own, so that every element looks written."""

from __future__ import annotations

import math

import pytest
from toy_op import failed, judge, without, write

from kda_lab.ops.protocol import FunctionArm


def broken(value: float) -> FunctionArm:
    def run(call) -> None:
        write(call)
        call.outputs["out"][1, 1, 1] = value

    return FunctionArm("broken", run)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "minus-inf"])
def test_caught_by_output_finite(value: float) -> None:
    """A computed NaN or infinity is caught as not finite, and not as unwritten."""
    names = failed(broken(value))
    assert "output_finite" in names
    assert "output_written" not in names


def test_nan_fails_every_error_check() -> None:
    """A NaN error passes no limit, so the error checks reject it too."""
    assert {"error_fp32", "row_max", "changed_lengths_shorter"} <= set(judge(broken(math.nan)).failed)


def test_only_output_finite_says_so() -> None:
    """Without that check no finding would count the elements that are not finite."""
    done = judge(broken(math.nan), without("output_finite"))
    assert not any("NaN or infinite" in check.detail for check in done.checks)
