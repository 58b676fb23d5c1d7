"""The scanning expansion kernel in the interpreter: the oracle's bits at every edge, one program a row."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.registry import load_op

ROOT = Path(__file__).parents[3]
OP = load_op("qsa.expand_blocks")
ARM = candidate_arm(ROOT / "notebooks" / "candidates" / "qsa.expand_blocks" / "scanned.py")


def run(call) -> torch.Tensor:
    call.outputs["tokens"].fill_(-7)
    ARM.bind([call])[0]()
    return call.outputs["tokens"]


@pytest.mark.parametrize("edge", sorted(OP.cases.edge_calls(5)))
def test_every_edge_is_right(edge: str) -> None:
    """Holes, tails, partial blocks, ids below -1 and beyond 2^29, and more than 512 rows."""
    call = OP.cases.edge_calls(5)[edge]
    assert torch.equal(run(call), OP.oracle.oracle_fp32(call)["tokens"])


@pytest.mark.parametrize("kind", OP.cases.KINDS)
def test_rows_of_the_model_are_right(kind: str) -> None:
    """512 blocks and 2051 columns, at all edges of the length."""
    call = OP.cases.synthesise(OP.cases.make_row(13, kind, "mixed"), 2)
    assert torch.equal(run(call), OP.oracle.oracle_fp32(call)["tokens"])


@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_other_ratios_are_right(ratio: int) -> None:
    """The ratio is a scalar of the call: no tail at 1, a width that is no power of two at 3."""
    call = OP.cases.make_call([[2, -1, 0, 7]], [10], [8])
    width = 4 * ratio + ratio - 1
    other = type(call)(
        call.op, call.inputs, {"ratio": ratio}, {"tokens": torch.zeros(1, width, dtype=torch.int32)}, "", call.facts
    )
    assert torch.equal(run(other), OP.oracle.oracle_fp32(other)["tokens"])


def test_outputs_are_allocated_when_none_is_given() -> None:
    """Without `tokens` the entry makes them itself."""
    blocks, row = torch.tensor([[0]], dtype=torch.int32), torch.tensor([5], dtype=torch.int32)
    assert ARM.module.expand_blocks(blocks, row, row - 1).tolist() == [[0, 1, 2, 3, 4, -1, -1]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"blocks": torch.zeros(2, 4, dtype=torch.int64)}, "blocks must be contiguous int32"),
        (
            {"blocks": torch.zeros(0, 4, dtype=torch.int32)},
            "blocks is 0 x 4; allowed: 1 row or more of 1 to 4096 blocks",
        ),
        ({"positions": torch.zeros(3, dtype=torch.int32)}, r"positions must be contiguous int32 \[2\]"),
        ({"ratio": 17}, "ratio is 17; allowed: 1 to 16"),
        ({"tokens": torch.zeros(2, 16, dtype=torch.int32)}, r"tokens must be contiguous int32 \[2, 19\]"),
    ],
)
def test_the_kernel_refuses_by_itself(change: dict, words: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    row = torch.zeros(2, dtype=torch.int32)
    given = {"blocks": torch.zeros(2, 4, dtype=torch.int32), "lengths": row, "positions": row, **change}
    tensors = [given.pop(name) for name in ("blocks", "lengths", "positions")]
    with pytest.raises(ValueError, match=f"qsa_expand_blocks_scanned: .*{words}"):
        ARM.module.expand_blocks(*tensors, **given)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", OP.cases.KINDS)
def test_the_gpu_has_the_bits_of_the_oracle(kind: str) -> None:
    """A thousand rows of the model's width."""
    call = OP.cases.synthesise(OP.cases.make_row(1024, kind, "mixed"), 3, "cuda")
    assert torch.equal(run(call), OP.oracle.oracle_fp32(call)["tokens"])
