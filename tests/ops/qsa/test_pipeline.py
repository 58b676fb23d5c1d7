"""The boundaries between the stages: lengths, pages, calls, and the two roads that know neither pages nor caches."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa import pipeline
from kda_lab.ops.qsa.geometry import PAGE_ENTRIES, PAGE_TOKENS, RATIO
from kda_lab.ops.qsa.rope import cos_sin_table, rotate
from kda_lab.ops.registry import load_op

LENGTHS = (132, 99, 66, 5)


@pytest.fixture
def paging() -> pipeline.Paging:
    """Four requests on a shuffled pool."""
    return pipeline.page_requests(LENGTHS, 3)


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 200))
def test_lengths_fall_and_have_every_tail(batch: int, blocks_each: int) -> None:
    """From the context down, never above it, remainders 0, 3, 2, 1 in turn, no row empty."""
    context = RATIO * batch * blocks_each
    lengths = pipeline.row_lengths(context, batch)
    assert lengths[0] == context
    assert [n % RATIO for n in lengths] == [-row % RATIO for row in range(batch)]
    assert all(0 < n <= context for n in lengths)
    assert all(later <= earlier + RATIO for earlier, later in itertools.pairwise(lengths))


def test_golden_lengths() -> None:
    """Four rows of a text of 4096 tokens."""
    assert pipeline.row_lengths(4096, 4) == (4096, 3075, 2050, 1025)


@pytest.mark.parametrize(
    ("context", "batch", "words"),
    [(10, 1, "context is 10; allowed: a multiple of 4"), (4, 2, "at least 4 tokens a row: 8"), (8, 0, "batch is 0")],
)
def test_impossible_lengths_are_refused(context: int, batch: int, words: str) -> None:
    """The message names the field and what is allowed."""
    with pytest.raises(ParameterError, match=words):
        pipeline.row_lengths(context, batch)


def test_pages_are_distinct_and_slots_follow_them(paging: pipeline.Paging) -> None:
    """No page serves two requests, page 0 serves none, and a token's slot lies in its page."""
    used = paging.pages[paging.pages >= 0].tolist()
    assert len(set(used)) == len(used) == sum(-(-n // PAGE_TOKENS) for n in LENGTHS)
    assert min(used) > 0
    assert max(used) < paging.slots // PAGE_TOKENS
    for row, length in enumerate(LENGTHS):
        for token in range(length):
            page = int(paging.pages[row, token // PAGE_TOKENS])
            assert int(paging.req_to_slot[row, token]) == page * PAGE_TOKENS + token % PAGE_TOKENS


def test_a_pool_holds_each_prefix_and_nan_elsewhere(paging: pipeline.Paging) -> None:
    """Every request finds its own tokens; a slot without a token holds NaN."""
    rows = torch.randn(max(LENGTHS), 2, 8).to(torch.bfloat16)
    pool = pipeline.scatter_rows(rows, paging)
    for row, length in enumerate(LENGTHS):
        assert torch.equal(pool[paging.req_to_slot[row, :length].long()], rows[:length])
    assert int((~pool.isnan().any(-1).any(-1)).sum()) == sum(LENGTHS)


def test_a_projection_is_rounded_once() -> None:
    """FP32 sums of BF16 products, one rounding."""
    hidden, weight = (torch.randn(3, 64).to(torch.bfloat16), torch.randn(8, 64).to(torch.bfloat16))
    out = pipeline.project(hidden, weight, 4)
    assert out.shape == (3, 2, 4)
    exact = (hidden.double() @ weight.double().T).view(3, 2, 4)
    assert torch.equal(out, exact.float().to(torch.bfloat16))


def test_index_queries_turn_at_their_own_position() -> None:
    """Position 0 does not turn; a rotation keeps the norm of the normalised row."""
    raw, norm = torch.randn(2, 4, 128).to(torch.bfloat16), torch.zeros(128).to(torch.bfloat16)
    table = cos_sin_table(100, 64)
    still, turned = pipeline.index_queries(raw[:1], norm, table[:1]), pipeline.index_queries(raw[:1], norm, table[99:])
    length = raw[:1].float().norm(dim=-1, keepdim=True) / 128**0.5
    assert torch.allclose(still.float(), raw[:1].float() / length, rtol=1e-2, atol=1e-2)
    assert not torch.equal(still, turned)
    assert torch.equal(still[..., 64:], turned[..., 64:])
    assert torch.allclose(turned.float().norm(dim=-1), torch.full((1, 4), 128**0.5), rtol=1e-2)


def selection_calls(paging: pipeline.Paging) -> list[Call]:
    """Every call from scores to attention, outputs written by the ops' own oracles."""
    draw = torch.Generator().manual_seed(5)
    keys = torch.randn(paging.slots // RATIO, 128, generator=draw).to(torch.bfloat16)
    q_index = torch.randn(len(LENGTHS), 4, 128, generator=draw).to(torch.bfloat16)
    pools = [torch.randn(paging.slots, 1, 256, generator=draw).to(torch.bfloat16) for _ in range(2)]
    q = torch.randn(len(LENGTHS), 12, 256, generator=draw).to(torch.bfloat16)
    scores = answered(pipeline.score_call(q_index, keys, paging))
    blocks = answered(pipeline.topk_call(scores.outputs["scores"], paging))
    tokens = answered(pipeline.expand_call(blocks.outputs["blocks"], paging))
    ids = tokens.outputs["tokens"]
    compacted = answered(pipeline.compact_call(ids, paging, pools[0], pools[1]))
    packed = answered(pipeline.packed_call(q, compacted))
    paged = answered(pipeline.paged_call(q, ids, paging, pools[0], pools[1]))
    return [scores, blocks, tokens, compacted, packed, paged]


def answered(call: Call) -> Call:
    """The call with its oracle's answer in its outputs."""
    for name, value in load_op(call.op).oracle.oracle_fp32(call).items():
        call.outputs[name].copy_(value)
    return call


def test_calls_are_those_of_the_ops(paging: pipeline.Paging) -> None:
    """Names of tensors, scalars and outputs are the specification's, in order; the last two agree."""
    calls = selection_calls(paging)
    raw = torch.randn(max(LENGTHS), 128).to(torch.bfloat16)
    prompt = pipeline.prompt_call(raw, raw[0], cos_sin_table(max(LENGTHS), 64), paging)
    for call in [prompt, *calls]:
        spec = load_op(call.op).spec
        assert (set(call.inputs), set(call.scalars), set(call.outputs)) == (
            set(spec.tensors), set(spec.scalars), set(spec.outputs),
        )  # fmt: skip
    assert calls[3].facts["lengths"] == list(LENGTHS)
    assert torch.allclose(calls[4].outputs["out"].float(), calls[5].outputs["out"].float(), rtol=1e-2, atol=1e-2)


def test_dense_attention_is_the_plain_formula() -> None:
    """One head over three tokens by hand; a row that selects nothing is zero."""
    q, k = torch.tensor([[[2.0]], [[2.0]]]), torch.tensor([[[1.0]], [[0.0]], [[5.0]]])
    v = torch.tensor([[[1.0]], [[10.0]], [[100.0]]])
    weights = torch.softmax(torch.tensor([2.0, 0.0], dtype=torch.float64), 0)
    both = pipeline.dense_attention(q, k, v, [2, 3], torch.tensor([[True, True, True], [False, False, False]]))
    assert float(both[0, 0, 0]) == pytest.approx(float(weights @ torch.tensor([1.0, 10.0], dtype=torch.float64)))
    assert float(both[1, 0, 0]) == 0.0
    assert float(pipeline.dense_attention(q, k, v, [1, 3])[0, 0, 0]) == 1.0


def test_exact_scores_are_the_plain_formula() -> None:
    """One block: the mean of its four keys, normalised, at position 0; only positive products count."""
    raw = torch.randn(7, 128).to(torch.bfloat16)
    q = torch.randn(1, 4, 128).to(torch.bfloat16)
    norm = torch.zeros(128).to(torch.bfloat16)
    found = pipeline.block_scores_exact(q, raw, norm, cos_sin_table(7, 64))
    mean = raw[:4].double().mean(0)
    key = mean / (mean.square().mean() + 1e-6).sqrt()
    assert found.shape == (1, 1)
    assert float(found) == pytest.approx(float((q[0].double() @ key).clamp(min=0).sum() / 128**0.5), rel=1e-6)


def test_a_step_goes_on_where_the_prompt_stopped(paging: pipeline.Paging) -> None:
    """Prompt and step fill the cache that one pass over all tokens fills: every complete block, nothing else."""
    raw, norm = torch.randn(max(LENGTHS), 128).to(torch.bfloat16), torch.zeros(128).to(torch.bfloat16)
    table = cos_sin_table(max(LENGTHS), 64)
    prompt = answered(pipeline.prompt_call(raw, norm, table, paging))
    step = answered(pipeline.step_call(prompt, raw, paging))
    assert (prompt.facts["T"], step.facts["T"]) == (sum(LENGTHS) - len(LENGTHS), len(LENGTHS))
    # Of 132, 99, 66 and 5 tokens only the last of the first row completes a block.
    assert step.facts["complete"] == 1
    cache = pipeline.compressed_cache([prompt, step], paging)
    owned = {int(paging.req_to_slot[b, 4 * n]) // RATIO for b, length in enumerate(LENGTHS) for n in range(length // 4)}
    assert {int(n) for n in torch.nonzero(~cache.isnan().any(1))} == owned
    entry = int(paging.req_to_slot[0, 128]) // RATIO
    mean = raw[128:132].float().mean(0).to(torch.bfloat16).float()
    exact = rotate(mean / (mean.square().mean() + 1e-6).sqrt(), table[128])
    assert torch.allclose(cache[entry].float(), exact, rtol=1e-2, atol=1e-2)


def test_the_compressed_cache_shares_the_pages(paging: pipeline.Paging) -> None:
    """A token's slot divided by four is the entry of its block: the page table serves both caches."""
    for row, length in enumerate(LENGTHS):
        for block in range(length // RATIO):
            page = int(paging.pages[row, block // PAGE_ENTRIES])
            assert int(paging.req_to_slot[row, block * RATIO]) // RATIO == page * PAGE_ENTRIES + block % PAGE_ENTRIES
