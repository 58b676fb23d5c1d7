"""A stage runs on poisoned outputs and is judged by its op; its timing rows are copies of the very call."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.notebook.qsa_stages import WAYS, DoorArm, check_stage, kernel_arm, run_stage, timing_row, ways_to_attend
from kda_lab.ops.protocol import Call, FunctionArm
from kda_lab.ops.qsa import pipeline
from kda_lab.ops.qsa.rope import cos_sin_table
from kda_lab.ops.registry import load_op

PAGING = pipeline.page_requests((40, 23), 1)


@pytest.fixture
def call() -> Call:
    """An expansion of ten and five blocks."""
    blocks = torch.full((2, 512), -1, dtype=torch.int32)
    blocks[0, :10], blocks[1, :5] = torch.arange(10), torch.arange(5)
    return pipeline.expand_call(blocks, PAGING)


def right(call: Call) -> None:
    """Write the oracle's answer."""
    for name, value in load_op(call.op).oracle.oracle_fp32(call).items():
        call.outputs[name].copy_(value)


def test_a_right_stage_passes(call: Call) -> None:
    """Exact work has a limit of 0 and says so."""
    arm = FunctionArm("right", right)
    run_stage(arm, call)
    check = check_stage(arm, call)
    assert (check.stage, check.arm, check.error, check.limit, check.passed) == ("tokens", "right", 0.0, 0.0, True)
    assert check.metric == "every element"


def test_a_wrong_element_and_an_unwritten_output_fail(call: Call) -> None:
    """One token off shows; so does an arm that writes nothing, since the outputs held poison."""

    def wrong(call: Call) -> None:
        right(call)
        call.outputs["tokens"][1, 3] += 1

    for arm in (FunctionArm("wrong", wrong), FunctionArm("lazy", lambda call: None)):
        run_stage(arm, call)
        assert "error is" in check_stage(arm, call).detail


def test_a_float_output_that_keeps_poison_fails() -> None:
    """NaN in a score is named, beside the error that it makes."""
    scores = pipeline.score_call(
        torch.zeros(2, 4, 128, dtype=torch.bfloat16), torch.ones(PAGING.slots // 4, 128, dtype=torch.bfloat16), PAGING
    )
    arm = FunctionArm("lazy", lambda call: None)
    run_stage(arm, scores)
    assert "1 output keeps poison" in check_stage(arm, scores).detail


def test_one_wrong_slot_among_many_fails() -> None:
    """A rel-L2 of a thousand slots hides a neighbour's slot; the allowance of an element does not."""
    paging = pipeline.page_requests((4000,), 1)
    raw = torch.randn(4000, 128, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    prompt = pipeline.prompt_call(raw, raw[0], cos_sin_table(4000, 64), paging)

    def off_by_one(call: Call) -> None:
        right(call)
        call.outputs["entry_slots"][2003] += 1

    run_stage(FunctionArm("off", off_by_one), prompt)
    check = check_stage(FunctionArm("off", off_by_one), prompt)
    assert check.error <= check.limit
    assert "the worst element is inf times its allowance from FP64" in check.detail
    run_stage(FunctionArm("right", right), prompt)
    assert check_stage(FunctionArm("right", right), prompt).passed


def test_a_candidate_is_found_by_op_and_stem() -> None:
    """The first of its folder where none is named; an unknown one is refused with the known ones."""
    assert kernel_arm("qsa.paged_decode", "direct").name == "direct"
    assert kernel_arm("qsa.block_scores").spec.name == "qsa.block_scores"
    with pytest.raises(ParameterError, match=r"kernel of qsa.paged_decode is 'none'; allowed: .*direct"):
        kernel_arm("qsa.paged_decode", "none")
    with pytest.raises(ParameterError, match=r"kernel of qsa\.nothing is ''; allowed: a file in"):
        kernel_arm("qsa.nothing")


def test_timing_sets_are_copies_with_other_contents(call: Call) -> None:
    """One row, labelled as the stage; its sets have the call's geometry on memory of their own."""
    op, (row,) = timing_row(call)
    assert (row.label, row.parameters["B"], row.parameters["lengths"]) == ("tokens", 2, "pipeline")
    first, second = op.cases.make_sets(row, 2, 5, "cpu")
    for name, tensor in call.inputs.items():
        assert first.inputs[name].shape == tensor.shape
        assert first.inputs[name].data_ptr() not in (tensor.data_ptr(), second.inputs[name].data_ptr())
    assert op.work.work(first).bytes_moved > 0


def test_the_door_takes_a_named_kernel_on_a_cpu() -> None:
    """Two rows of seventeen keys, in the interpreter."""
    draw = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(n, h, 256, generator=draw).to(torch.bfloat16) for n, h in ((1, 12), (17, 1), (17, 1)))
    inputs = {"q": q, "k": k, "v": v, "cu_seqlens_q": torch.tensor([0, 1], dtype=torch.int32)}
    inputs["cu_seqlens_k"] = torch.tensor([0, 17], dtype=torch.int32)
    scalars = {"max_seqlen_k": 17, "softmax_scale": None, "max_seqlen_q": 1}
    call = Call("qsa.packed_decode", inputs, scalars, {"out": torch.empty_like(q)}, "packed", {"lengths": [17]})
    arm = DoorArm()
    assert arm.unavailable(torch.device("cpu")) == ""
    run_stage(arm, call)
    assert check_stage(arm, call).passed


def test_three_ways_to_attend() -> None:
    """The direct kernel is judged against compaction, FlashInfer beside it."""
    assert [(arm.name, role) for arm, role in ways_to_attend(["direct"])] == [
        ("direct", "candidate"), (WAYS[0], "baseline"), (WAYS[1], "peer"),
    ]  # fmt: skip
