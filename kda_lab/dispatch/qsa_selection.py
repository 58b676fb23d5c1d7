"""QSA's selection stages in torch: top-k blocks, expansion to tokens, compaction of their KV rows.

They run where no exported kernel may: on any device, without reading device memory on the host, so that a call
can be captured in a graph. Several launches each, with temporaries of the size of their inputs or outputs.
"""

from __future__ import annotations

import torch

from kda_lab.dispatch.torch_fallback import torch_fallback


def topk_blocks(
    scores: torch.Tensor, lengths: torch.Tensor, *, k: int = 512, blocks: torch.Tensor | None = None
) -> torch.Tensor:
    """The `k` best-scored columns of each row among its first `lengths[b]`, ascending, -1 behind them.

    Ties go to the lower id. A NaN counts as -inf; columns at or behind the length are not looked at.

    Args:
        scores: [B, N] fp32.
        lengths: [B] int32; below 0 counts as 0, above N as N.
        k: ids a row.
        blocks: [B, k] int32, written; allocated when None.

    Returns:
        blocks.
    """
    rows, columns = scores.shape
    if blocks is None:
        blocks = torch.empty(rows, k, dtype=torch.int32, device=scores.device)
    column = torch.arange(columns, device=scores.device)
    live = lengths.clamp(0, columns)[:, None]
    # Live columns are the first ones, so a stable sort puts a live -inf before any other column.
    ranked = torch.where((column < live) & ~scores.isnan(), scores, float("-inf"))
    best = ranked.sort(dim=1, descending=True, stable=True).indices[:, :k]
    ids = torch.where(best < live, best, columns).sort(dim=1).values
    blocks.fill_(-1)
    blocks[:, : ids.shape[1]] = torch.where(ids < columns, ids, -1)
    return blocks


def expand_blocks(
    blocks: torch.Tensor,
    lengths: torch.Tensor,
    positions: torch.Tensor,
    *,
    ratio: int = 4,
    tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """The tokens of each row's blocks and of its incomplete tail, in the order of the columns, -1 behind them.

    Args:
        blocks: [B, k] int32; a negative id is no block.
        lengths: [B] int32, tokens: none at or behind its row's length is named.
        positions: [B] int32: the tail is ratio · ((position + 1) // ratio) to position.
        ratio: tokens a block.
        tokens: [B, k · ratio + ratio - 1] int32, written; allocated when None.

    Returns:
        tokens.
    """
    rows, k = blocks.shape
    if tokens is None:
        tokens = torch.empty(rows, k * ratio + ratio - 1, dtype=torch.int32, device=blocks.device)
    offset = torch.arange(ratio, device=blocks.device)
    ends = lengths.long()[:, None]
    inner = (blocks.long()[:, :, None] * ratio + offset).view(rows, k * ratio)
    chosen = (blocks >= 0).repeat_interleave(ratio, dim=1) & (inner < ends)
    position = positions.long()[:, None]
    tail = (position + 1).clamp(min=0) // ratio * ratio + offset[: ratio - 1]
    named = torch.cat([inner, tail], 1)
    valid = torch.cat([chosen, (tail <= position) & (tail < ends)], 1)
    order = (~valid).to(torch.int8).sort(dim=1, stable=True).indices
    return tokens.copy_(torch.where(valid, named, -1).gather(1, order))


def compact_kv(
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    requests: torch.Tensor,
    req_to_slot: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    *,
    packed_k: torch.Tensor | None = None,
    packed_v: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The KV rows of every valid token, packed in the order of the columns, row behind row; zeros behind them.

    Args:
        tokens: [B, W] int32; valid where 0 <= token < lengths[b], wherever in the row.
        lengths, requests: [B] int32.
        req_to_slot: [R, maxlen] int32, slots of the pools.
        k_pool, v_pool: [S, HKV, D].
        packed_k, packed_v: [N, HKV, D], written whole; N at least the number of valid tokens; B · W rows when None.
        cu_seqlens_k: [B+1] int32, written: exclusive prefix sum of the valid counts; allocated when None.

    Returns:
        packed_k, packed_v, cu_seqlens_k.
    """
    rows, width = tokens.shape
    if packed_k is None:
        packed_k = k_pool.new_empty(rows * width, *k_pool.shape[1:])
    if packed_v is None:
        packed_v = v_pool.new_empty(rows * width, *v_pool.shape[1:])
    if cu_seqlens_k is None:
        cu_seqlens_k = torch.empty(rows + 1, dtype=torch.int32, device=tokens.device)
    valid = (tokens >= 0) & (tokens < lengths[:, None])
    # A row's number in the packed order is the count of valid tokens before it, over all rows.
    total = valid.flatten().cumsum(0)
    # Not `[0] = 0`, which copies a host scalar: no graph could hold that.
    cu_seqlens_k[:1].zero_()
    cu_seqlens_k[1:] = total[width - 1 :: width]
    named = torch.where(valid, tokens, 0).long()
    slots = req_to_slot[requests.long()[:, None], named].long()
    capacity = packed_k.shape[0]
    place = torch.where(valid.flatten(), total - 1, capacity).clamp(max=capacity)
    source = torch.full((capacity + 1,), -1, dtype=torch.int64, device=tokens.device)
    source.scatter_(0, place, slots.flatten())
    source = source[:capacity]
    for pool, packed in ((k_pool, packed_k), (v_pool, packed_v)):
        packed.copy_(pool[source.clamp(min=0)])
        packed.masked_fill_((source < 0)[:, None, None], 0)
    return packed_k, packed_v, cu_seqlens_k


_ROW = {"dtypes": ["int32"], "shape": ["B"]}
_KV = {"dtypes": ["bfloat16"], "shape": ["N", "HKV", "D"], "optional": True}
_POOL = {"dtypes": ["bfloat16"], "shape": ["S", "HKV", "D"]}

TOPK_BLOCKS = torch_fallback(
    "qsa.topk_blocks",
    topk_blocks,
    {
        "scores": {"dtypes": ["float32"], "shape": ["B", "N"]},
        "lengths": _ROW,
        "blocks": {"dtypes": ["int32"], "shape": ["B", "K"], "optional": True},
    },
    {"k": {"kind": "int", "minimum": 1}},
)
EXPAND_BLOCKS = torch_fallback(
    "qsa.expand_blocks",
    expand_blocks,
    {
        "blocks": {"dtypes": ["int32"], "shape": ["B", "K"]},
        "lengths": _ROW,
        "positions": _ROW,
        "tokens": {"dtypes": ["int32"], "shape": ["B", "W"], "optional": True},
    },
    {"ratio": {"kind": "int", "minimum": 1}},
)
COMPACT_KV = torch_fallback(
    "qsa.compact_kv",
    compact_kv,
    {
        "tokens": {"dtypes": ["int32"], "shape": ["B", "W"]},
        "lengths": _ROW,
        "requests": _ROW,
        "req_to_slot": {"dtypes": ["int32"], "shape": ["R", "L"]},
        "k_pool": _POOL,
        "v_pool": _POOL,
        "packed_k": _KV,
        "packed_v": _KV,
        "cu_seqlens_k": {"dtypes": ["int32"], "shape": ["B+1"], "optional": True},
    },
    {},
)
