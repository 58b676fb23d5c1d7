"""The oracles of block scores: two roads, golden values, -inf behind the length, the scorer's shortcut."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_block_scores import cases, oracle
from kda_lab.verify.metrics import element_max, rel_l2


def drawn(live: list[int], capacity: int = 64, heads: int = 4, seed: int = 0) -> Call:
    return cases._draw("oracle", (heads, capacity), live, "test", cases._generator("oracle", seed, "cpu"))


def test_golden_score() -> None:
    """Heads +2, -3 and +5 against one key give (2 + 5) / sqrt(128); the other 15 blocks are -inf."""
    call = drawn([1], 16, heads=3)
    q, keys = torch.zeros(1, 3, 128), torch.zeros(call.inputs["keys"].shape)
    q[0, :, 7] = torch.tensor([2.0, -3.0, 5.0])
    keys[int(call.inputs["pages"][0, 0]) * 16, 7] = 1.0
    found = oracle.oracle_fp64(call.with_inputs(q_index=q.bfloat16(), keys=keys.bfloat16()))["scores"]
    assert found.tolist() == [[7 / math.sqrt(128)] + [-math.inf] * 15]


@settings(max_examples=15)
@given(st.lists(st.integers(0, 64), min_size=1, max_size=4), st.integers(1, 9), st.integers(0, 99))
def test_two_roads_agree(live: list[int], heads: int, seed: int) -> None:
    """Gather then product, and product with the whole pool then gather, give the same scores and the same -inf."""
    call = cases.with_guard_rows(drawn(live, heads=heads, seed=seed), 20)
    gathered, products = oracle.oracle_fp64(call)["scores"], oracle.oracle_products(call)["scores"]
    assert rel_l2(gathered, products) < 1e-12
    assert torch.equal(gathered == -math.inf, torch.arange(64) >= torch.tensor(live)[:, None])


def test_emulation_and_fp32_lie_within_every_elements_allowance() -> None:
    """FP32 sums in another order use a hundredth of what each score may err by."""
    call = drawn([64, 17, 0])
    exact = oracle.oracle_fp64(call)
    allowed = oracle.allowance(call, exact)["scores"]
    for found in (oracle.oracle_fp32(call), oracle.emulate(call)):
        assert 0 < element_max(found["scores"], exact["scores"], allowed) < 0.05


def test_a_rounded_product_exceeds_the_allowance() -> None:
    """The allowance tells a score made of BF16 products from one of FP32 products."""
    call = drawn([64])
    exact = oracle.oracle_fp64(call)
    rounded = exact["scores"].bfloat16().double()
    assert element_max(rounded, exact["scores"], oracle.allowance(call, exact)["scores"]) > 1


def chosen(scores: torch.Tensor, lengths: torch.Tensor, k: int) -> list[set[int]]:
    """The selected blocks of each row: of the k best, those that the row has."""
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return [{int(n) for n in row if n < length} for row, length in zip(best, lengths.tolist(), strict=True)]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 64), min_size=1, max_size=5), st.integers(1, 64), st.integers(0, 99))
def test_the_shortcut_selects_the_same_set(live: list[int], k: int, seed: int) -> None:
    """Rows of up to k blocks select them all, so that a scorer may skip them; longer rows keep their scores."""
    call = drawn(live, seed=seed)
    scores, lengths = oracle.oracle_fp32(call)["scores"], call.inputs["lengths"]
    short = oracle.shortened(scores, lengths, k)
    assert chosen(short, lengths, k) == chosen(scores, lengths, k)
    assert all(len(found) == min(k, n) for found, n in zip(chosen(short, lengths, k), live, strict=True))
    assert torch.equal(short[lengths > k], scores[lengths > k])


def test_the_shortcut_of_a_long_row_would_be_wrong() -> None:
    """With one block more than k the scores decide: without them another set is selected."""
    call = drawn([64])
    scores, lengths = oracle.oracle_fp32(call)["scores"], call.inputs["lengths"]
    flat = oracle.shortened(scores, lengths, 64)
    assert chosen(flat, lengths, 8) != chosen(scores, lengths, 8)


@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("lengths", (0,), 65, r"lengths is 65; allowed: 0 to 64"),
        ("lengths", (0,), -1, r"lengths is -1; allowed: 0 to 64"),
        ("pages", (0, 1), -1, r"pages is -1; allowed: 0 to 3, the pages of keys"),
        ("pages", (0, 1), 4, r"pages is 4; allowed: 0 to 3, the pages of keys"),
    ],
)
def test_a_call_that_reads_outside_is_refused(name: str, at: tuple[int, ...], value: int, message: str) -> None:
    """Oracles read no entry that is not there: the length and every live page are checked."""
    call = drawn([30])
    broken = call.inputs[name].clone()
    broken[at] = value
    with pytest.raises(ParameterError, match=message):
        oracle.oracle_fp64(call.with_inputs(**{name: broken}))
