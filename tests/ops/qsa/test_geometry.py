"""Widths, compressed lengths, valid blocks of a prefill query, rows whose scores do not matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa import geometry


def test_widths_follow_from_budget_and_ratio() -> None:
    """512 blocks of 4 tokens, a tail of 3, 4 draft steps; a page of 64 tokens holds 16 compressed keys."""
    assert (geometry.TOPK_BLOCKS, geometry.TARGET_WIDTH, geometry.DRAFT_WIDTH) == (512, 2051, 2055)
    assert geometry.PAGE_ENTRIES == 16


@pytest.mark.parametrize(("length", "blocks"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (262144, 65536)])
def test_compressed_length_counts_complete_groups(length: int, blocks: int) -> None:
    """An incomplete tail has no compressed key."""
    assert geometry.compressed_length(torch.tensor(length, dtype=torch.int32)).item() == blocks


@pytest.mark.parametrize(
    ("position", "length", "blocks"),
    [(0, 1, 0), (2, 3, 0), (3, 4, 1), (3, 100, 1), (4, 100, 1), (6, 7, 1), (7, 8, 2), (10, 11, 2)],
)
def test_a_prefill_query_scores_what_is_complete_at_its_position(position: int, length: int, blocks: int) -> None:
    """Later groups of its own chunk are complete in the cache, but lie in its future."""
    found = geometry.prefill_blocks(torch.tensor([position]), torch.tensor([length]))
    assert found.tolist() == [blocks]


@settings(max_examples=25)
@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(2, 8))
def test_no_prefill_query_sees_its_future(position: int, more: int, ratio: int) -> None:
    """Every token of every valid block is at or before the query, and the next block is not complete there."""
    blocks = int(geometry.prefill_blocks(torch.tensor(position), torch.tensor(position + 1 + more), ratio))
    assert blocks * ratio - 1 <= position < (blocks + 1) * ratio - 1


def test_short_rows_need_no_scores() -> None:
    """Up to k blocks all are selected, whatever their scores."""
    assert geometry.needs_scores(torch.tensor([0, 511, 512, 513])).tolist() == [False, False, False, True]


def test_a_ratio_below_one_is_refused() -> None:
    """A ratio of 0 has no groups."""
    with pytest.raises(ParameterError, match=r"qsa: ratio is 0; allowed: 1 or more"):
        geometry.compressed_length(torch.tensor(4), 0)
