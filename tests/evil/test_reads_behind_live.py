"""Evil arm: reads one entry behind the live end with weight zero, which is harmless only on finite data."""

from __future__ import annotations

import torch
from toy_op import failed, judge, make_op, rounded, write

from kda_lab.ops.protocol import FunctionArm


def overreading(call) -> None:
    write(call)
    behind = call.inputs["x"][int(call.inputs["cu"][-1])]
    call.outputs["out"][-1].copy_((rounded(call)["out"][-1].float() + 0.0 * behind.float()).bfloat16())


def test_caught_by_nan_guard_rows() -> None:
    """Rows behind the live end hold NaN, so that reading them shows in the output."""
    assert {"output_finite", "error_fp32"} <= failed(FunctionArm("overreading", overreading))


def test_only_the_guard_rows_see_it() -> None:
    """With finite rows behind the live end the same arm would pass."""
    op = make_op()
    poisoned, changed = op.cases.with_guard_rows, op.cases.changed

    def finite(call):
        return call.with_inputs(x=torch.nan_to_num(call.inputs["x"]))

    op.cases.with_guard_rows = lambda call, count: finite(poisoned(call, count))
    op.cases.changed = lambda *how: {n: torch.nan_to_num(t) for n, t in changed(*how).items()}
    assert judge(FunctionArm("overreading", overreading), op=op).passed
