"""Evil arm: one column of a wide product is 1 % off, which every rel-L2 of a rounded output hides."""

from __future__ import annotations

import pytest
import torch

from kda_lab.captures.generated import GeneratedCaptures
from kda_lab.ops.protocol import Call, FunctionArm
from kda_lab.ops.registry import load_op
from kda_lab.verify import Replay, checks_of, replay

OP = "nvfp4.gemm"


def run(factor: float, without: str = "", always: bool = False) -> Replay:
    """Judge an arm that multiplies a column of BF16 outputs, on the original contents or on all."""
    op = load_op(OP)
    captures = GeneratedCaptures(OP, op.cases.rows(["tiny_b"], [4], ["random"]), 1)
    capture = captures.load(captures.names()[0])

    def product(call: Call) -> None:
        out = op.oracle.oracle_fp32(call)["out"]
        if always or torch.equal(call.inputs["x_fp4"], capture.call.inputs["x_fp4"]):
            out[:, 7] *= factor
        call.outputs["out"].copy_(out)

    checks = [check for check in checks_of(op) if check.name != without]
    return replay(op, FunctionArm("column", product), capture, "cpu", checks=checks)


def test_caught_by_element_max() -> None:
    """The gate of single elements rejects it, and nothing else does."""
    assert run(1.01).failed == ("element_max",)


def test_only_element_max_sees_it() -> None:
    """Without that check the arm would pass; a right one passes with it."""
    assert run(1.01, without="element_max").passed
    assert run(1.0).passed


@pytest.mark.parametrize("changed", ["changed_x", "changed_alpha"])
def test_changed_contents_judge_elements_too(changed: str) -> None:
    """What is wrong on every contents fails the checks of both changes, by its element."""
    done = run(1.01, always=True)
    assert changed in done.failed
    check = next(c for c in done.checks if c.name == changed)
    assert check.value < check.limit
    assert "of its allowance" in check.detail
