"""Set and threshold: what a selection of any order and any ties must hold, and each way of breaking it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_topk_blocks.selection import is_valid_selection, selection_faults

SCORES = torch.tensor([[0.5, 2.0, 1.0, 2.0, 9.0]])
LENGTHS = torch.tensor([4], dtype=torch.int32)


def faults(ids: list[int], tolerance: float = 0.0) -> list[str]:
    return selection_faults(torch.tensor([ids], dtype=torch.int32), SCORES, LENGTHS, tolerance)


@pytest.mark.parametrize("ids", [[1, 3], [3, 1]])
def test_order_is_free(ids: list[int]) -> None:
    """The two best ids may come in either order."""
    assert faults(ids) == []


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1, 4], "row 0: an id lies outside 0 to 3"),
        ([1, -2], "row 0: an id lies outside 0 to 3"),
        ([1, 1], "row 0: an id is named twice"),
        ([1, -1], "row 0: 1 ids; allowed: 2"),
        ([1, 2], "row 0: 2 was left out, 1 was chosen"),
        ([1, 3, 2, 0, 3], "row 0: an id is named twice"),
    ],
)
def test_each_fault_is_named(ids: list[int], words: str) -> None:
    """Ids behind the length, doubled, missing, or worse than one left out."""
    assert words in faults(ids)


def test_a_tolerance_forgives_near_ties_only() -> None:
    """1.0 for 2.0 passes at a tolerance of 1, not below."""
    assert faults([1, 2], 1.0) == []
    assert faults([1, 2], 0.5) != []


def test_ties_are_free_and_short_rows_are_padded() -> None:
    """Any of equal scores will do; a row with fewer columns than ids names all of them."""
    equal = torch.ones(2, 6)
    ids = torch.tensor([[5, 0, 3], [1, 0, -1]])
    assert is_valid_selection(ids, equal, torch.tensor([6, 2]))


def test_nan_counts_as_minus_infinity() -> None:
    """A NaN may be left out for any number, and may not be chosen before one."""
    scores = torch.tensor([[float("nan"), -3.0]])
    assert is_valid_selection(torch.tensor([[1]]), scores, torch.tensor([2]))
    assert not is_valid_selection(torch.tensor([[0]]), scores, torch.tensor([2]))


@pytest.mark.parametrize(
    ("blocks", "tolerance", "words"),
    [
        (torch.zeros(2, 3), 0.0, r"shapes of blocks and lengths is \(2, 3\) and \(1,\); allowed: \[1, k\] and \[1\]"),
        (torch.zeros(1, 3), -1.0, "tolerance is -1.0; allowed: 0 or more"),
        (torch.zeros(1, 3), float("nan"), "tolerance is nan; allowed: 0 or more"),
    ],
)
def test_wrong_arguments_are_refused(blocks: torch.Tensor, tolerance: float, words: str) -> None:
    """Shapes that do not fit and tolerances below 0 are errors, not verdicts."""
    with pytest.raises(ParameterError, match=words):
        selection_faults(blocks, SCORES, LENGTHS, tolerance)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 14))
def test_torch_topk_is_valid_whatever_the_ties(values: list[int], k: int) -> None:
    """torch.topk passes on rows full of ties; with its best id exchanged for a worse one it does not."""
    scores = torch.tensor([values]).float()
    ids = torch.full((1, k), -1)
    m = min(k, len(values))
    ids[0, :m] = scores.topk(m).indices
    assert is_valid_selection(ids, scores, torch.tensor([len(values)]))
    left = [i for i in range(len(values)) if i not in ids[0].tolist()]
    if left and values[left[0]] < values[int(ids[0, 0])]:
        ids[0, 0] = left[0]
        assert not is_valid_selection(ids, scores, torch.tensor([len(values)]))
