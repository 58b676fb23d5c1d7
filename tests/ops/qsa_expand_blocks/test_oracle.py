"""Expansion: golden rows, the table of valid counts, and three roads to the same bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_expand_blocks import cases, oracle

ROADS = (oracle.oracle_fp32, oracle.oracle_fp64, oracle.emulate)
COUNTS = {
    1: 1,
    3: 3,
    4: 4,
    7: 7,
    2047: 2047,
    2048: 2048,
    2050: 2050,
    2051: 2051,
    2052: 2048,
    2053: 2049,
    2055: 2051,
    2056: 2048,
    262143: 2051,
    262144: 2048,
}


@pytest.mark.parametrize("road", ROADS, ids=lambda road: road.__name__)
@pytest.mark.parametrize(
    ("blocks", "length", "position", "wanted"),
    [
        ([1, 0, -1, -1], 11, 10, [4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10]),
        ([0, -1], 4, 3, [0, 1, 2, 3]),
        ([-1, -1], 1, 0, [0]),
        ([2, 0], 13, 12, [8, 9, 10, 11, 0, 1, 2, 3, 12]),
        ([1, -1, 0, -1], 9, 8, [4, 5, 6, 7, 0, 1, 2, 3, 8]),
        ([1, 0], 6, 5, [4, 5, 0, 1, 2, 3, 4, 5]),
        ([0, 5], 11, 5, [0, 1, 2, 3, 4, 5]),
        ([-1], 0, -1, []),
        ([0], 3, 6, [0, 1, 2]),
    ],
)
def test_golden_rows(road, blocks: list[int], length: int, position: int, wanted: list[int]) -> None:
    """Blocks in their order, cut at the length, the tail behind them, -1 to the width; -1 among blocks leaves no gap."""
    call = cases.make_call([blocks], [length], [position])
    assert road(call)["tokens"].tolist() == [wanted + [-1] * (4 * len(blocks) + 3 - len(wanted))]


@pytest.mark.parametrize(("length", "count"), COUNTS.items())
def test_valid_counts_of_a_full_selection(length: int, count: int) -> None:
    """A decode row that takes all blocks it can has min(len // 4, 512) · 4 + len % 4 tokens: at most 2051."""
    assert oracle.valid_count(length) == count
    blocks = list(range(min(length // 4, 512)))
    assert len(oracle.tokens_of(blocks, length, length - 1)) == count


@pytest.mark.parametrize("name", sorted(cases.edge_calls(3)))
def test_three_roads_lead_to_the_same_bits(name: str) -> None:
    """Definition, masks and prefix sums agree at every edge."""
    call = cases.edge_calls(3)[name]
    first, second, third = (road(call)["tokens"] for road in ROADS)
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    assert first.dtype == torch.int32


@settings(max_examples=25)
@given(st.lists(st.integers(-2, 6), min_size=1, max_size=6), st.integers(0, 24), st.integers(-1, 24))
def test_roads_agree_on_any_row(blocks: list[int], length: int, position: int) -> None:
    """Blocks twice, behind the length or missing; positions before, at and behind the end."""
    call = cases.make_call([blocks], [length], [position])
    found = [road(call)["tokens"] for road in ROADS]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    valid = found[0][0] >= 0
    assert bool((valid.int().diff() <= 0).all())
    assert bool((found[0][0][valid] < length).all())


def test_a_decode_row_names_each_token_once() -> None:
    """Rows of kind decode are as long as the count says, and name no token twice."""
    call = cases.synthesise(cases.make_row(13, "decode", "mixed", 8), 2)
    rows = [[t for t in row if t >= 0] for row in oracle.oracle_fp32(call)["tokens"].tolist()]
    assert [len(row) for row in rows] == cases.expected_count(call)
    assert all(len(set(row)) == len(row) for row in rows)


def test_another_ratio_is_another_width() -> None:
    """Blocks of two tokens have a tail of one; what does not fit together is refused."""
    call = cases.make_call([[1, 0]], [5], [4])
    two = replace(call, scalars={"ratio": 2}, outputs={"tokens": torch.empty(1, 5, dtype=torch.int32)})
    assert [road(two)["tokens"].tolist() for road in ROADS] == [[[2, 3, 0, 1, 4]]] * 3
    with pytest.raises(ParameterError, match=r"tokens\.shape\[1\] is 5; allowed: 11, which is k·ratio \+ ratio - 1"):
        oracle.oracle_fp32(replace(two, scalars={"ratio": 4}))
    with pytest.raises(ParameterError, match=r"ratio is 0; allowed: an int of 1 or more"):
        oracle.ratio_of(replace(two, scalars={"ratio": 0}))
