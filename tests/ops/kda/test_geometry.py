"""Sizes of Kimi Delta Attention."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.kda.geometry import CONV_STATE, CONV_WIDTH, local_heads, query_head


@pytest.mark.parametrize(("attn_tp", "heads"), [(1, 96), (2, 48), (4, 24), (8, 12), (16, 6), (32, 3)])
def test_heads_are_shared_evenly(attn_tp: int, heads: int) -> None:
    """Local heads of every published width of attention tensor parallelism."""
    assert local_heads(attn_tp) == heads


@pytest.mark.parametrize("attn_tp", [0, -1, 5, 64])
def test_uneven_shares_are_refused(attn_tp: int) -> None:
    """A width that does not divide the heads is named with what would."""
    with pytest.raises(ParameterError, match=rf"kda: attn_tp is {attn_tp}; allowed: a divisor of 96"):
        local_heads(attn_tp)


def test_neighbouring_value_heads_share_a_query_head() -> None:
    """hv // (HV / H), never hv % H."""
    assert query_head(8, 2).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert query_head(3, 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("counts", [(8, 3), (8, 0), (0, 2)])
def test_head_counts_must_divide(counts: tuple[int, int]) -> None:
    """Value heads that query heads cannot share evenly are refused."""
    with pytest.raises(ParameterError, match=rf"kda: value_head_count is {counts[0]}; allowed: a multiple"):
        query_head(*counts)


def test_the_window_is_what_the_convolution_still_needs() -> None:
    """Width 4 keeps three tokens."""
    assert (CONV_WIDTH, CONV_STATE) == (4, 3)
