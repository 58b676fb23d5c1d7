"""Evil arm: keeps the decoded weight of a matrix product by its address, so that later launches need not read it."""

from __future__ import annotations

import pytest
import torch

from kda_lab.captures.generated import GeneratedCaptures
from kda_lab.ops.protocol import Call, FunctionArm
from kda_lab.ops.registry import load_op
from kda_lab.verify import Replay, checks_of, replay

OP = "nvfp4.gemm"


@pytest.fixture(params=["random", "exact"])
def capture(request: pytest.FixtureRequest) -> object:
    """A small product."""
    rows = load_op(OP).cases.rows(["tiny_a"], [2], [request.param])
    captures = GeneratedCaptures(OP, rows, 1)
    return captures.load(captures.names()[0])


def run(capture: object, keeps: bool, without: str = "") -> Replay:
    """Judge an arm that computes with the weight of its first launch, or of each launch."""
    op = load_op(OP)
    kept: dict[int, dict[str, torch.Tensor]] = {}

    def product(call: Call) -> None:
        found = {name: call.inputs[name].t().clone().t() for name in ("weight", "weight_sf")}
        if keeps:
            found = kept.setdefault(call.inputs["weight"].data_ptr(), found)
        call.outputs["out"].copy_(op.oracle.emulate(call.with_inputs(**found))["out"])

    checks = [check for check in checks_of(op) if check.name != without]
    return replay(op, FunctionArm("keeping", product), capture, "cpu", checks=checks)


def test_caught_by_the_second_contents(capture: object) -> None:
    """The second contents hold another weight too: the check that bears the name of alpha rejects it, and only that."""
    assert run(capture, keeps=True).failed == ("changed_alpha",)


def test_only_that_check_sees_it(capture: object) -> None:
    """Without it the arm would pass; and the same arm without its memory passes with it."""
    assert run(capture, keeps=True, without="changed_alpha").passed
    assert run(capture, keeps=False).passed
