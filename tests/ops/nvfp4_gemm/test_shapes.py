"""Names, tables and rows of the NVFP4 GEMM's shapes."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.nvfp4_gemm import shapes


def test_published_rows_are_the_29_of_the_source_thread() -> None:
    """Five batches of four Qwen3.5 layers, two of three 27B layers, and the prefill of those three."""
    found = [(row.parameters["M"], row.label.split("-")[0]) for row in shapes.published()]
    assert len(found) == len(set(found)) == 29
    assert sum(M == 4369 for M, _ in found) == 3
    assert {M for M, name in found if name == "lm_head"} == {1, 9, 4369}
    assert {M for M, name in found if name == "9b_down"} == {1, 2, 4, 8, 9}


def test_dispatched_shapes_are_17_of_the_published_ones() -> None:
    """Sixteen of Qwen3.5 without its nine-token rows, and the one 27B layer that paid off end to end."""
    published = {tuple(row.parameters[axis] for axis in "MNK") for row in shapes.published()}
    assert len(set(shapes.DISPATCHED)) == 17
    assert set(shapes.DISPATCHED) < published
    assert [shape for shape in shapes.DISPATCHED if shape[0] == 9] == [(9, 5120, 17408)]


def test_rows_are_labelled_by_shape_batch_and_kind() -> None:
    """Labels are readable and unique, in the order shape, batch, kind, and say what the parameters say."""
    found = shapes.rows(("tiny_a", "27b_down"), (1, 9), ("random", "exact"))
    assert [row.label for row in found][:3] == ["tiny_a-M1-random", "tiny_a-M1-exact", "tiny_a-M9-random"]
    assert found[-1].parameters == {"M": 9, "N": 5120, "K": 17408, "kind": "exact"}
    assert len({row.label for row in found}) == 8
    assert {row.op for row in found} == {"nvfp4.gemm"}


def test_every_shape_can_be_packed() -> None:
    """K is a multiple of 16 everywhere; the tiny ones hold a K without 64 and an N without 16."""
    assert all(K % 16 == 0 for K, _ in shapes.SHAPES.values())
    assert shapes.SHAPES["tiny_e"][0] % 64
    assert shapes.SHAPES["tiny_f"][1] % 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["tiny_z"], [1], ["random"]), r"nvfp4\.gemm: shape is 'tiny_z'; allowed: '4b_gate_up'"),
        ((["tiny_a"], [0], ["random"]), r"batch is 0; allowed: 1 or more\."),
        ((["tiny_a"], [True], ["random"]), r"batch is True; allowed: 1 or more\."),
        ((["tiny_a"], [1], ["flat"]), r"kind is 'flat'; allowed: 'random', 'fp32', 'exact', 'any_scale'"),
    ],
)
def test_unknown_rows_are_refused(arguments: tuple[list, list, list], message: str) -> None:
    """An unknown shape or kind, and a batch without tokens, are refused with what there is."""
    with pytest.raises(ParameterError, match=message):
        shapes.rows(*arguments)
