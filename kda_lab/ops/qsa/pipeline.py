"""The boundaries between the stages of Qwen Sparse Attention: each function turns what one stage wrote into the next call.

hidden states -> index projections -> compressed keys -> block scores -> top-k blocks -> tokens -> attention, either
over KV rows that are compacted first or straight over the paged pool. Nothing is computed here but projections and
addresses: the stages are ops, so that any arm can run, be judged and be timed on the very call.

Axes: B rows, one query row of one request each. T tokens of a text. S slots of the KV pool, in pages of 64 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.precision import full_fp32
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa.geometry import HEAD_DIM, INDEX_DIM, INDEX_HEADS, PAGE_ENTRIES, PAGE_TOKENS, RATIO, TOPK_BLOCKS
from kda_lab.ops.qsa.rmsnorm import EPS, rms_norm
from kda_lab.ops.qsa.rope import rotate

ROOM = "qsa"
SPARE_PAGES = 3
"""Pages of the pool that no request owns, page 0 among them: its entries are the trash of the compressed cache."""


@dataclass(frozen=True)
class Paging:
    """Where the tokens of each request lie. A page holds 64 tokens, and in the compressed cache their 16 keys."""

    lengths: tuple[int, ...]
    """[B] tokens of each request, the current one included."""
    pages: torch.Tensor
    """[B, P] int32 page ids in the order of the tokens, -1 behind the last; the same id in both caches."""
    req_to_slot: torch.Tensor
    """[B, P * 64] int32: slot of each token of each request, 0 behind the last page."""
    slots: int
    """Of the KV pool; the compressed cache has a quarter of them."""


def row_lengths(context: int, batch: int) -> tuple[int, ...]:
    """Lengths of `batch` requests, from the whole context down to a `batch`-th of it.

    Their remainders modulo 4 go through 0, 3, 2 and 1, so that every length of tail is there.

    Raises:
        ParameterError: a context too short for so many rows, or no row.
    """
    if batch < 1:
        raise ParameterError(ROOM, [Reason("batch", repr(batch), "1 or more")])
    if context < RATIO * batch or context % RATIO:
        allowed = f"a multiple of {RATIO}, at least {RATIO} tokens a row: {RATIO * batch}"
        raise ParameterError(ROOM, [Reason("context", repr(context), allowed)])
    found = []
    for row in range(batch):
        length = context * (batch - row) // batch // RATIO * RATIO + -row % RATIO
        found.append(length if length <= context else length - RATIO)
    return tuple(found)


def page_requests(lengths: Sequence[int], seed: int, device: torch.device | str = "cpu") -> Paging:
    """Give each request pages of a shuffled pool, as an allocator does after some hours."""
    counts = [-(-length // PAGE_TOKENS) for length in lengths]
    total, most = sum(counts) + SPARE_PAGES, max(counts)
    generator = torch.Generator().manual_seed(seed + 2)
    free = (torch.randperm(total - 1, generator=generator) + 1).to(torch.int32)
    pages = torch.full((len(counts), most), -1, dtype=torch.int32)
    start = 0
    for row, count in enumerate(counts):
        pages[row, :count] = free[start : start + count]
        start += count
    inside = torch.arange(PAGE_TOKENS, dtype=torch.int32)
    slots = torch.where(pages[..., None] < 0, 0, pages[..., None] * PAGE_TOKENS + inside).flatten(1)
    return Paging(tuple(lengths), pages.to(device), slots.to(torch.int32).to(device), total * PAGE_TOKENS)


def project(hidden: torch.Tensor, weight: torch.Tensor, width: int) -> torch.Tensor:
    """A linear layer without bias: [T, K] and [N * width, K] bf16 to [T, N, width] bf16, summed in FP32, rounded once."""
    with full_fp32():
        out = hidden.float() @ weight.float().T
    return out.view(hidden.shape[0], -1, width).to(torch.bfloat16)


def index_queries(raw: torch.Tensor, norm: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """RMS norm, then the rotary embedding at each row's own position: [B, Hi, 128] bf16, rounded once.

    Args:
        raw: [B, Hi, 128] bf16: the index query heads of the projection.
        norm: [128], stored less one.
        cos_sin: [B, rotary_dim] fp32: the table's row of each position.
    """
    return rotate(rms_norm(raw, norm), cos_sin[:, None]).to(torch.bfloat16)


def scatter_rows(rows: torch.Tensor, paging: Paging) -> torch.Tensor:
    """A pool in which each request has its own copy of the text's rows: [S, ...]; slots without a token hold NaN.

    Args:
        rows: [T, ...]: request b is the first `lengths[b]` tokens of the text.
    """
    pool = torch.full((paging.slots, *rows.shape[1:]), float("nan"), dtype=rows.dtype, device=rows.device)
    for row, length in enumerate(paging.lengths):
        pool[paging.req_to_slot[row, :length].long()] = rows[:length]
    return pool


def prompt_call(raw_keys: torch.Tensor, norm: torch.Tensor, cos_sin: torch.Tensor, paging: Paging) -> Call:
    """Compressed keys of every request's tokens but its last one: a prefill, requests behind one another.

    Args:
        raw_keys: [T, 128] bf16: request b is the first `lengths[b]` tokens of the text.
        norm: [128], stored less one.
        cos_sin: [T, rotary_dim] fp32, one row a position.
    """
    rows = [torch.arange(length - 1) for length in paging.lengths]
    ring = raw_keys.new_zeros(len(rows), RATIO, INDEX_DIM)
    return _compress_call("keys of the prompt", rows, (raw_keys, ring, norm, cos_sin), paging)


def step_call(prompt: Call, raw_keys: torch.Tensor, paging: Paging) -> Call:
    """Compressed keys of the decode step: the last token of each request, on the ring that the prompt left."""
    rows = [torch.tensor([length - 1]) for length in paging.lengths]
    tensors = (raw_keys, prompt.outputs["new_ring"], prompt.inputs["weight"], prompt.inputs["cos_sin"])
    return _compress_call("key of the step", rows, tensors, paging)


def compressed_cache(calls: Sequence[Call], paging: Paging) -> torch.Tensor:
    """The cache [S/4, 128] bf16 that these calls fill in turn; entries that nobody owns, the trash too, hold NaN."""
    like = calls[0].outputs["entries"]
    cache = torch.full((paging.slots // RATIO, INDEX_DIM), float("nan"), dtype=like.dtype, device=like.device)
    for call in calls:
        cache[call.outputs["entry_slots"]] = call.outputs["entries"]
    cache[0] = float("nan")
    return cache


def _compress_call(label: str, rows: Sequence[torch.Tensor], tensors: tuple[torch.Tensor, ...], paging: Paging) -> Call:
    """A call on the tokens at these positions of each request; `tensors` are raw keys, ring, norm and table."""
    raw_keys, ring, norm, cos_sin = tensors
    positions = torch.cat(list(rows)).to(raw_keys.device)
    requests = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(r) for r in rows])).to(raw_keys.device)
    inputs = {
        "k_raw": raw_keys[positions],
        "requests": requests.to(torch.int32),
        "positions": positions.to(torch.int32),
        "slots": paging.req_to_slot[requests, positions].to(torch.int64),
        "ring": ring,
        "weight": norm,
        "cos_sin": cos_sin,
    }
    outputs = {
        "entries": torch.empty_like(inputs["k_raw"]),
        "entry_slots": torch.empty_like(inputs["slots"]),
        "new_ring": torch.empty_like(ring),
    }
    complete = int(((positions + 1) % RATIO == 0).sum())
    facts = {"T": len(positions), "R": len(rows), "W": cos_sin.shape[1], "complete": complete}
    return Call("qsa.compress_keys", inputs, {"eps": EPS}, outputs, label, facts)


def score_call(q_index: torch.Tensor, keys: torch.Tensor, paging: Paging) -> Call:
    """Block scores of every row: reads the compressed cache [S/4, 128] through the page table."""
    lengths = [length // RATIO for length in paging.lengths]
    B, P = paging.pages.shape
    inputs = {"q_index": q_index, "keys": keys, "pages": paging.pages, "lengths": _int32(lengths, q_index)}
    scores = torch.empty(B, P * PAGE_ENTRIES, dtype=torch.float32, device=q_index.device)
    facts = {"B": B, "HI": INDEX_HEADS, "P": P, "lengths": lengths}
    return Call("qsa.block_scores", inputs, {}, {"scores": scores}, "scores", facts)


def topk_call(scores: torch.Tensor, paging: Paging) -> Call:
    """The 512 best blocks of every row."""
    lengths = [length // RATIO for length in paging.lengths]
    B, N = scores.shape
    blocks = torch.empty(B, TOPK_BLOCKS, dtype=torch.int32, device=scores.device)
    inputs = {"scores": scores, "lengths": _int32(lengths, scores)}
    facts = {"B": B, "N": N, "k": TOPK_BLOCKS, "lengths": lengths}
    return Call("qsa.topk_blocks", inputs, {"k": TOPK_BLOCKS}, {"blocks": blocks}, "blocks", facts)


def expand_call(blocks: torch.Tensor, paging: Paging) -> Call:
    """The tokens of the chosen blocks and of the incomplete one: each row's query stands at its last token."""
    lengths = list(paging.lengths)
    B, k = blocks.shape
    tokens = torch.empty(B, k * RATIO + RATIO - 1, dtype=torch.int32, device=blocks.device)
    inputs = {"blocks": blocks, "lengths": _int32(lengths, blocks)}
    inputs["positions"] = _int32([length - 1 for length in lengths], blocks)
    facts = {"B": B, "k": k, "lengths": lengths}
    return Call("qsa.expand_blocks", inputs, {"ratio": RATIO}, {"tokens": tokens}, "tokens", facts)


def compact_call(tokens: torch.Tensor, paging: Paging, k_pool: torch.Tensor, v_pool: torch.Tensor) -> Call:
    """Copy the KV rows of every valid token behind one another."""
    B, W = tokens.shape
    outputs = {name: k_pool.new_empty(B * W, *k_pool.shape[1:]) for name in ("packed_k", "packed_v")}
    outputs["cu_seqlens_k"] = torch.empty(B + 1, dtype=torch.int32, device=tokens.device)
    inputs = {**_addresses(tokens, paging), "k_pool": k_pool, "v_pool": v_pool}
    facts = {"B": B, "W": W, "HKV": k_pool.shape[1], "lengths": _counts(tokens, paging)}
    return Call("qsa.compact_kv", inputs, {}, outputs, "compaction", facts)


def packed_call(q: torch.Tensor, compacted: Call) -> Call:
    """Attention over the rows that a compaction wrote."""
    B, HQ, _ = q.shape
    width, packed = compacted.facts["W"], compacted.outputs
    inputs = {"q": q, "k": packed["packed_k"], "v": packed["packed_v"]}
    inputs["cu_seqlens_q"] = torch.arange(B + 1, dtype=torch.int32, device=q.device)
    inputs["cu_seqlens_k"] = packed["cu_seqlens_k"]
    scalars: dict[str, Any] = {"max_seqlen_k": width, "softmax_scale": HEAD_DIM**-0.5, "max_seqlen_q": 1}
    facts = {"B": B, "HQ": HQ, "HKV": inputs["k"].shape[1], "lengths": compacted.facts["lengths"], "kind": "pipeline"}
    return Call("qsa.packed_decode", inputs, scalars, {"out": torch.empty_like(q)}, "packed attention", facts)


def paged_call(
    q: torch.Tensor, tokens: torch.Tensor, paging: Paging, k_pool: torch.Tensor, v_pool: torch.Tensor
) -> Call:
    """Attention straight over the pool, through the slot table."""
    B, HQ, _ = q.shape
    inputs = {"q": q, "k_pool": k_pool, "v_pool": v_pool, **_addresses(tokens, paging)}
    facts = {"B": B, "HQ": HQ, "HKV": k_pool.shape[1], "W": tokens.shape[1], "lengths": _counts(tokens, paging)}
    scalars: dict[str, Any] = {"softmax_scale": HEAD_DIM**-0.5}
    return Call("qsa.paged_decode", inputs, scalars, {"out": torch.empty_like(q)}, "paged attention", facts)


def _addresses(tokens: torch.Tensor, paging: Paging) -> dict[str, torch.Tensor]:
    requests = torch.arange(len(paging.lengths), dtype=torch.int32, device=tokens.device)
    lengths = _int32(list(paging.lengths), tokens)
    return {"tokens": tokens, "lengths": lengths, "requests": requests, "req_to_slot": paging.req_to_slot}


def _counts(tokens: torch.Tensor, paging: Paging) -> list[int]:
    """Live tokens of each row; reads them on the host, since facts are for people and work models."""
    limit = _int32(list(paging.lengths), tokens)[:, None]
    return [int(n) for n in ((tokens >= 0) & (tokens < limit)).sum(1)]


def _int32(values: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=like.device)


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int], selected: torch.Tensor | None = None
) -> torch.Tensor:
    """Masked dense attention in FP64 over the text's own rows: no pool, no pages, no packing.

    Args:
        q: [B, HQ, D]; k, v: [T, HKV, D]: the text that every request is a prefix of.
        lengths: [B] tokens of each request.
        selected: [B, T] bool; None selects every token of the request.
    Returns:
        [B, HQ, D] fp64; zero where a row selects nothing.
    """
    B, HQ, D = q.shape
    T, HKV, _ = k.shape
    inside = torch.arange(T, device=q.device) < torch.tensor(lengths, device=q.device)[:, None]
    mask = inside if selected is None else inside & selected
    grouped = q.double().view(B, HKV, HQ // HKV, D)
    scores = torch.einsum("bgjd,tgd->bgjt", grouped, k.double()) * D**-0.5
    weights = scores.masked_fill(~mask[:, None, None], float("-inf")).softmax(-1).nan_to_num(0.0)
    return torch.einsum("bgjt,tgd->bgjd", weights, v.double()).reshape(B, HQ, D)


def block_scores_exact(
    q_index: torch.Tensor, raw_keys: torch.Tensor, norm: torch.Tensor, cos_sin: torch.Tensor
) -> torch.Tensor:
    """Scores of every complete block of a text in FP64 by another road: from raw keys, no cache, no rounding.

    Args:
        q_index: [B, Hi, 128] bf16.
        raw_keys: [T, 128] bf16, as projected.
        norm: [128], stored less one.
        cos_sin: [T, rotary_dim] fp32, one row a position.
    Returns:
        [B, T // 4] fp64; blocks behind a request's end are scored too.
    """
    complete = raw_keys.shape[0] // RATIO
    means = raw_keys[: complete * RATIO].double().view(complete, RATIO, INDEX_DIM).mean(1)
    keys = rotate(rms_norm(means, norm), cos_sin[: complete * RATIO : RATIO].double())
    return torch.einsum("bhd,nd->bhn", q_index.double(), keys).relu().sum(1) * INDEX_DIM**-0.5
