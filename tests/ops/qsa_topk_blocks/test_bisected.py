"""The bisecting top-k kernel in the interpreter: the oracle's bits at every edge, in both of its forms."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.registry import load_op

ROOT = Path(__file__).parents[3]
OP = load_op("qsa.topk_blocks")
ARM = candidate_arm(ROOT / "notebooks" / "candidates" / "qsa.topk_blocks" / "bisected.py")


def run(call) -> torch.Tensor:
    call.outputs["blocks"].fill_(-7)
    ARM.bind([call])[0]()
    return call.outputs["blocks"]


@pytest.mark.parametrize("edge", sorted(OP.cases.edge_calls(5)))
def test_a_resident_row_is_right(edge: str) -> None:
    """Ties, NaN, infinities, empty and short rows, behind guard columns of NaN."""
    call = OP.cases.with_guard_rows(OP.cases.edge_calls(5)[edge], 9)
    assert torch.equal(run(call), OP.oracle.oracle_fp32(call)["blocks"])


@pytest.mark.parametrize("edge", ["scores", "equal", "two", "infinite", "nan", "bucket"])
def test_a_row_that_is_read_in_tiles_is_right(edge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form for long rows, here with tiles of 16 columns: counts, ties and places carry over from tile to tile."""
    monkeypatch.setattr(ARM.module, "RESIDENT_COLUMNS", 8)
    monkeypatch.setattr(ARM.module, "BLOCK_N", 16)
    call = OP.cases.with_guard_rows(OP.cases.edge_calls(5)[edge], 9)
    assert ARM.module._launch_constants(call.inputs["scores"].shape[1], 8)["RESIDENT"] is False
    assert torch.equal(run(call), OP.oracle.oracle_fp32(call)["blocks"])


@pytest.mark.parametrize("kind", ["scores", "flat", "bucket"])
def test_rows_of_the_model_are_right(kind: str) -> None:
    """k = 512 of 4096 and of more than 16384 columns, the last of them in the form that reads tiles."""
    for columns in (4096, 17000):
        call = OP.cases.synthesise(OP.cases.make_row(1, columns, kind), 2)
        assert torch.equal(run(call), OP.oracle.oracle_fp32(call)["blocks"])


def test_lengths_outside_the_row_are_clamped() -> None:
    """A length below 0 is an empty row, one above N the whole row."""
    call = OP.cases.make_call(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), (2, 2), 1)
    call.inputs["lengths"].copy_(torch.tensor([-3, 9]))
    assert run(call).tolist() == [[-1], [1]]


TINY = 1e-45


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_subnormal_scores_are_not_zero(device: str) -> None:
    """The least number above zero ranks above both zeros, the least below them behind."""
    scores = torch.tensor([[-TINY, 0.0, TINY, -0.0, 3 * TINY]], device=device)
    call = OP.cases.make_call(scores, (5,), 4)
    assert run(call).tolist() == [[1, 2, 3, 4]]
    assert run(OP.cases.make_call(scores, (5,), 2)).tolist() == [[2, 4]]


def test_outputs_are_allocated_when_none_is_given() -> None:
    """Without `blocks` the entry makes [B, k] int32 itself."""
    found = ARM.module.topk_blocks(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([3], dtype=torch.int32), k=2)
    assert found.dtype == torch.int32
    assert found.tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scores": torch.zeros(2, 4, dtype=torch.float16)}, "scores must be contiguous float32"),
        ({"scores": torch.zeros(0, 4)}, "scores is 0 x 4; allowed: 1 row or more of 1 to 1048576 columns"),
        ({"lengths": torch.zeros(2, dtype=torch.int64)}, r"lengths must be contiguous int32 \[2\]"),
        ({"k": 0}, "k is 0; allowed: 1 to 2048"),
        ({"blocks": torch.zeros(2, 3, dtype=torch.int32)}, r"blocks must be contiguous int32 \[2, 4\]"),
    ],
)
def test_the_kernel_refuses_by_itself(change: dict, words: str) -> None:
    """Lifted out of this project it still says what it cannot take."""
    given = {"scores": torch.zeros(2, 4), "lengths": torch.zeros(2, dtype=torch.int32), "k": 4, **change}
    with pytest.raises(ValueError, match=f"qsa_topk_blocks_bisected: .*{words}"):
        ARM.module.topk_blocks(given.pop("scores"), given.pop("lengths"), **given)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", OP.cases.KINDS)
@pytest.mark.parametrize("columns", [512, 4096, 65536])
def test_the_gpu_has_the_bits_of_the_oracle(kind: str, columns: int) -> None:
    """Every kind of scores at the widths of the model, with lengths at all edges."""
    call = OP.cases.synthesise(OP.cases.make_row(8, columns, kind, "mixed"), 3, "cuda")
    assert torch.equal(run(call), OP.oracle.oracle_fp32(call)["blocks"])
