"""Captures as timing rows: copies of recorded tensors, each on memory of its own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from kda_lab.captures.rows import ALIGNMENT_BYTES, capture_rows, copies
from kda_lab.captures.store import CaptureSet

SET = CaptureSet.open(Path(__file__).parents[2] / "data" / "captures" / "qsa.packed_decode")


def test_a_row_names_its_capture_and_axes() -> None:
    """Label, axes and length class come from the capture."""
    op, rows = capture_rows(SET, ["tp1-q4-saturated"])
    assert op.spec.name == "qsa.packed_decode"
    assert rows[0].label == "tp1-q4-saturated"
    assert rows[0].parameters == {"B": 4, "HQ": 24, "HKV": 2, "topology": "tp1", "lengths": "q4-saturated"}


def test_sets_are_distinct_memory_with_recorded_values() -> None:
    """Three sets share no byte, start aligned, hold values of the capture and its lengths."""
    op, rows = capture_rows(SET, ["tp2r0-q3"])
    sets = op.cases.make_sets(rows[0], 3, 1, "cpu")
    recorded = SET.load("tp2r0-q3").call
    for name in ("q", "k", "v", "cu_seqlens_k"):
        starts = [call.inputs[name].data_ptr() for call in sets]
        size = recorded.inputs[name].numel() * recorded.inputs[name].element_size()
        assert all(b - a >= size for a, b in itertools.pairwise(starts))
        assert {(b - a) % ALIGNMENT_BYTES for a, b in itertools.pairwise(starts)} == {0}
    assert torch.equal(sets[0].inputs["cu_seqlens_k"], recorded.inputs["cu_seqlens_k"])
    assert set(sets[2].inputs["k"].flatten(1).sum(1).tolist()) <= set(recorded.inputs["k"].flatten(1).sum(1).tolist())
    assert len({call.outputs["out"].data_ptr() for call in sets}) == 3


def test_another_seed_gives_other_contents() -> None:
    """Same lengths, other values: a recheck after timing sees a changed buffer."""
    op, rows = capture_rows(SET, ["tp2r0-q3"])
    first, second = (op.cases.make_sets(rows[0], 1, seed, "cpu")[0] for seed in (1, 2))
    assert not torch.equal(first.inputs["k"], second.inputs["k"])
    assert first.facts["lengths"] == second.facts["lengths"]


@pytest.mark.parametrize("shape", [(), (3,), (2, 5)], ids=str)
def test_copies_keep_shape_and_values(shape: tuple[int, ...]) -> None:
    """Any contiguous tensor, a scalar included."""
    tensor = torch.arange(max(1, torch.Size(shape).numel()), dtype=torch.int32).reshape(shape)
    for copy in copies(tensor, 2):
        assert torch.equal(copy, tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(15, dtype=torch.uint8).view(5, 3).t(),
        torch.arange(24).view(2, 3, 4).permute(2, 0, 1),
        torch.arange(4, dtype=torch.uint8).view(1, 4).t(),
    ],
    ids=["transposed", "permuted", "one row"],
)
def test_copies_keep_the_strides_of_a_dense_view(tensor: torch.Tensor) -> None:
    """A weight stays the transposed view that the op wants, on memory of its own."""
    first, second = copies(tensor, 2)
    for copy in (first, second):
        assert torch.equal(copy, tensor) and copy.stride() == tensor.stride()
    assert (second.data_ptr() - first.data_ptr()) % ALIGNMENT_BYTES == 0
    first.zero_()
    assert torch.equal(second, tensor)


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(12).view(3, 4)[:, :2], torch.arange(3).view(3, 1).expand(3, 2)],
    ids=["slice", "expanded"],
)
def test_copies_of_a_view_that_is_not_dense_are_contiguous(tensor: torch.Tensor) -> None:
    """No copy writes twice to one place."""
    copy = copies(tensor, 1)[0]
    assert torch.equal(copy, tensor) and copy.is_contiguous()


GEMMS = CaptureSet.open(Path(__file__).parents[2] / "data" / "captures" / "nvfp4.gemm")


def test_a_row_of_a_product_has_its_axes_and_kind() -> None:
    """There are no lengths; the first word of the name is the topology."""
    op, rows = capture_rows(GEMMS, ["smollm2_down-M9"])
    assert op.spec.name == "nvfp4.gemm"
    wanted = {"M": 9, "N": 576, "K": 1536, "topology": "smollm2_down", "kind": "real"}
    assert rows[0].parameters == wanted


def test_sets_of_a_product_are_calls_of_the_op_with_other_contents_a_seed() -> None:
    """Strides as the op wants them, memory of their own, and another product for another seed."""
    op, rows = capture_rows(GEMMS, ["smollm2_down-M2"])
    first, second = op.cases.make_sets(rows[0], 2, 1, "cpu")
    recorded = GEMMS.load("smollm2_down-M2").call
    for name, tensor in recorded.inputs.items():
        assert first.inputs[name].stride() == tensor.stride(), name
        assert first.inputs[name].data_ptr() != second.inputs[name].data_ptr(), name
    other = op.cases.make_sets(rows[0], 1, 2, "cpu")[0]
    products = [op.oracle.oracle_fp32(call)["out"] for call in (first, second, other)]
    assert torch.equal(products[0], products[1])
    assert not torch.allclose(products[0], products[2])
