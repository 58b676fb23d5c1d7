"""The oracles: agreement by independent roads, holes, empty rows, duplicates, and refusal of what leaves the pool."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_packed_decode import oracle as packed
from kda_lab.ops.qsa_paged_decode import cases, oracle
from kda_lab.verify.metrics import rel_l2

EDGES = cases.edge_calls(7)


def tiny(tokens: list[list[int]], lengths: list[int]) -> Call:
    """A call of these columns on one request of eight tokens in slots 8 to 1, one head of width 4."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(len(tokens), 1, 4, generator=generator).bfloat16()
    k, v = (torch.randn(9, 1, 4, generator=generator).bfloat16() for _ in "kv")
    inputs = {"q": q, "k_pool": k, "v_pool": v, "tokens": torch.tensor(tokens, dtype=torch.int32)}
    inputs |= {"lengths": torch.tensor(lengths, dtype=torch.int32)}
    inputs |= {"requests": torch.zeros(len(tokens), dtype=torch.int32)}
    inputs |= {"req_to_slot": torch.arange(8, 0, -1, dtype=torch.int32)[None]}
    return Call("qsa.paged_decode", inputs, {"softmax_scale": None}, {"out": torch.empty_like(q)})


@pytest.mark.parametrize("name", sorted(EDGES))
def test_the_dense_masked_road_agrees(name: str) -> None:
    """Masked attention over the whole pool, without gather or order, gives what the row loop gives.

    FP32 scores of thousands have errors of 1e-4, and so have the probabilities.
    """
    masked = oracle.oracle_masked(EDGES[name])["out"]
    assert torch.allclose(oracle.oracle_fp64(EDGES[name])["out"], masked, rtol=1e-12, atol=1e-12)
    assert torch.allclose(oracle.oracle_fp32(EDGES[name])["out"].double(), masked, rtol=1e-3, atol=1e-3)


@settings(max_examples=15)
@given(columns=st.permutations([*range(6), -1, -1, 6, 7]), length=st.integers(0, 8))
def test_order_and_holes_change_nothing(columns: list[int], length: int) -> None:
    """Wherever the valid columns stand, the answer is that of the tokens below the length."""
    call = tiny([list(columns)], [length])
    plain = tiny([list(range(length)) + [-1] * (10 - length)], [length])
    assert torch.allclose(oracle.oracle_fp64(call)["out"], oracle.oracle_fp64(plain)["out"], atol=1e-12)


def test_it_is_packed_decode_of_the_gathered_rows() -> None:
    """Gathering the slots and attending to the packed rows gives the same numbers."""
    call = EDGES["holes"]
    slots = oracle.geometry(call).slots
    ends = torch.tensor([0, *[len(s) for s in slots]]).cumsum(0).to(torch.int32)
    k, v = (call.inputs[n][torch.cat(slots)] for n in ("k_pool", "v_pool"))
    inputs = {"q": call.inputs["q"], "k": k, "v": v, "cu_seqlens_q": ends, "cu_seqlens_k": ends}
    gathered = replace(call, inputs=inputs)
    assert torch.equal(oracle.oracle_fp64(call)["out"], packed.oracle_fp64(gathered)["out"])


def test_golden_draft_row_keeps_its_newer_tokens() -> None:
    """Frozen 0 1 2 3 4 -1 -1, captured length 5, newer 5 6: seven valid tokens, not the first seven columns."""
    call = tiny([[0, 1, 2, 3, 4, -1, -1, 5, 6, -1, -1]], [7])
    assert oracle.geometry(call).slots[0].tolist() == [8, 7, 6, 5, 4, 3, 2]


def test_rows_without_valid_tokens_are_exactly_zero() -> None:
    """Length 0, holes alone, or tokens behind the end alone: zero bits from every oracle."""
    call = tiny([[-1, -1], [0, 1], [5, 6]], [4, 0, 5])
    for found in (oracle.oracle_fp32, oracle.oracle_fp64, oracle.oracle_masked, oracle.emulate):
        assert torch.count_nonzero(found(call)["out"]) == 0


def test_a_token_named_twice_counts_twice() -> None:
    """The weight of a doubled column doubles."""
    call = tiny([[0, 0, 1]], [2])
    q, k, v = (call.inputs[n].double() for n in ("q", "k_pool", "v_pool"))
    weights = (k[[8, 8, 7], 0] @ q[0, 0] / 2).softmax(0)
    assert torch.allclose(oracle.oracle_fp64(call)["out"][0, 0], weights @ v[[8, 8, 7], 0])


def test_the_scale_is_the_given_one() -> None:
    """A scale of zero gives the mean of the selected V rows, by every road."""
    call = replace(EDGES["shared_request"], scalars={"softmax_scale": 0.0})
    slots = oracle.geometry(call).slots[0]
    mean = call.inputs["v_pool"][slots].double().mean(0).expand(12, 256)
    for found in (oracle.oracle_fp32, oracle.oracle_fp64, oracle.oracle_masked):
        assert torch.allclose(found(call)["out"][0].double(), mean, atol=1e-5)


@pytest.mark.parametrize("splits", [1, 7])
def test_the_emulation_is_within_bf16_noise(splits: int) -> None:
    """However a row is split, the emulated kernel stays near 2e-3 of FP64 and is not exact."""
    call = EDGES["draft_width"]
    error = rel_l2(oracle.emulate(call, splits)["out"], oracle.oracle_fp64(call)["out"])
    assert 1e-4 < error < 3e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requests": [5]}, r"requests is \[5\]; allowed: 0 to 0, the rows of req_to_slot"),
        ({"lengths": [99], "tokens": [[40, 1]]}, r"tokens is 40; allowed: below 8, the columns of req_to_slot"),
        ({"req_to_slot": [[9] * 8]}, r"req_to_slot is 9 to 9; allowed: 0 to 8, the slots of the pool"),
    ],
    ids=["requests", "tokens", "slots"],
)
def test_what_leaves_its_table_is_refused(change: dict, message: str) -> None:
    """A request, token or slot that is not there is refused before anything is read through it."""
    call = tiny([[0, 1]], [2]).with_inputs(**{n: torch.tensor(x, dtype=torch.int32) for n, x in change.items()})
    with pytest.raises(ParameterError, match=message):
        oracle.geometry(call)


def test_heads_that_do_not_divide_are_refused() -> None:
    """Five query heads on two key heads have no group."""
    call = tiny([[0]], [1])
    pool = call.inputs["k_pool"].expand(9, 2, 4)
    with pytest.raises(ParameterError, match=r"q\.shape\[1\] is 5; allowed: a multiple of k_pool\.shape\[1\], 2"):
        oracle.geometry(call.with_inputs(q=torch.zeros(1, 5, 4).bfloat16(), k_pool=pool, v_pool=pool))
