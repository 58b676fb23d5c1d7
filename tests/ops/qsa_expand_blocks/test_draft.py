"""Speculative rows: golden columns of a draft row, golden row tables, and what is refused."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_expand_blocks import cases, oracle
from kda_lab.ops.qsa_expand_blocks.draft import Rows, draft_columns, draft_extend_rows, verify_rows


def columns(frozen: list[int], captured: int, position: int, steps: int = 4) -> list[int]:
    lengths, positions = (torch.tensor([n], dtype=torch.int32) for n in (captured, position))
    return draft_columns(torch.tensor([frozen], dtype=torch.int32), lengths, positions, steps)[0].tolist()


@pytest.mark.parametrize(
    ("frozen", "captured", "position", "wanted"),
    [
        ([0, 1, 2, 3, 4, -1, -1], 5, 6, [0, 1, 2, 3, 4, -1, -1, 5, 6, -1, -1]),
        ([0, 1, 2, 3, 4, -1, -1], 5, 4, [0, 1, 2, 3, 4, -1, -1, -1, -1, -1, -1]),
        ([0, 1, 2, 3, 4, -1, -1], 5, 8, [0, 1, 2, 3, 4, -1, -1, 5, 6, 7, 8]),
        ([0, 1, 2, 3, 4, -1, -1], 5, 99, [0, 1, 2, 3, 4, -1, -1, 5, 6, 7, 8]),
        ([0, 0, 0], 1, 0, [0, 0, 0, -1, -1, -1, -1]),
    ],
)
def test_golden_draft_columns(frozen: list[int], captured: int, position: int, wanted: list[int]) -> None:
    """The newer positions stand in the last four columns, up to the current one; the hole before them stays."""
    assert columns(frozen, captured, position) == wanted


def test_a_draft_row_of_the_model_is_2055_wide() -> None:
    """512 blocks of 4 and a tail give 2051 columns, the draft steps four more; a saturated row has no hole."""
    call = cases.make_call([list(range(512))], [2051], [2050])
    row = draft_columns(oracle.oracle_fp32(call)["tokens"], call.inputs["lengths"], torch.tensor([2054]))
    assert row.shape == (1, 2055)
    assert row.dtype == torch.int32
    assert row[0].tolist() == list(range(2055))


def test_golden_rows_of_a_draft_extension() -> None:
    """Two requests of 11 and 21 tokens that grew by 1 and 2, in a graph of 8 rows."""
    found = draft_extend_rows([11, 21], [1, 2], [3, 7], 8)
    assert found == Rows((11, 20, 21, 1, 1, 1, 1, 1), (3, 7, 7, 3, 3, 3, 3, 3), (10, 19, 19, 0, 0, 0, 0, 0))


def test_golden_rows_of_a_target_verification() -> None:
    """One request of 9 tokens with four draft tokens, and one that pads the graph: its rows have length 1."""
    found = verify_rows([9, 1], [5, 0], padded=1)
    assert found.lengths == (10, 11, 12, 13, 1, 1, 1, 1)
    assert found.requests == (5, 5, 5, 5, 5, 5, 5, 5)
    assert found.prefixes == (9, 9, 9, 9, 0, 0, 0, 0)


def test_a_verification_without_padding_has_a_row_a_draft_token() -> None:
    """Three requests of four rows are the twelve rows of the recorded calls."""
    found = verify_rows([4, 8, 2], [0, 1, 2])
    assert found.lengths == (5, 6, 7, 8, 9, 10, 11, 12, 3, 4, 5, 6)
    assert found.requests == (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2)


def test_padding_rows_attend_to_token_0_alone() -> None:
    """Length 1 and no block: the expansion of a padding row is its request's first token."""
    call = cases.make_call([[-1, -1]], [1], [0])
    assert oracle.oracle_fp32(call)["tokens"][0].tolist() == [0] + [-1] * 10


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: columns([0], 1, 1, steps=0), "steps is 0; allowed: 1 or more"),
        (
            lambda: draft_columns(torch.zeros(2, 3), torch.zeros(1), torch.zeros(2)),
            r"shapes is \(2, 3\), \(1,\) and \(2,\); allowed: \[B, W\], \[B\] and \[B\]",
        ),
        (lambda: verify_rows([1], [0, 1]), "bases, requests and padded is 1, 2 and 0; allowed: one request a base"),
        (lambda: verify_rows([1], [0], padded=1), "bases, requests and padded is 1, 1 and 1"),
        (
            lambda: draft_extend_rows([], [], [], 4),
            "lengths, extends and requests is 0, 0 and 0; allowed: equally many",
        ),
        (lambda: draft_extend_rows([3], [4], [0], 8), r"extends is \[4\]; allowed: 1 to its request's length each"),
        (lambda: draft_extend_rows([9], [4], [0], 3), "graph_rows is 3; allowed: 4 or more"),
    ],
)
def test_what_does_not_fit_is_refused(action, words: str) -> None:
    """Each wrong argument is named with what is allowed."""
    with pytest.raises(ParameterError, match=rf"qsa\.draft: {words}"):
        action()
