"""QSA compaction: valid columns are ranked by a prefix sum, then their KV rows are copied; two launches.

The first launch ranks the columns of each row, one program a row: it leaves the slots of the valid ones packed from
the left, and their number. Every column decides by itself whether it is valid, so holes and late columns are no special
case. The second launch copies 16 packed rows of K and V a program. A row's start is the sum of the numbers before it;
ranks without a token are mapped one to one to the rows behind the live end, which are zeroed, so that each program
stores the same amount and every row of the packed buffers is stored once. Offsets into pools and packed buffers are 64
bits wide. The bits are the same in every launch; nothing is kept between calls.

Imports torch and triton only. Idea: source thread sglang PR 36845 and its follow-ups on holes, stale rows and 64-bit
offsets; code written here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

HEAD_DIM = 256
MAX_BATCH = 1024
MAX_WIDTH = 8192
KV_HEADS = (1, 2, 4)
ROWS = 16
ROWS_INTERPRETED = 512
"""On a CPU: the interpreter's cost is per operation, not per element."""
RANK_WARPS = 8
COPY_WARPS = 4


@triton.jit
def _rank_kernel(
    p_tokens, p_lengths, p_requests, p_table, p_slots, p_counts, width, table_columns, BLOCK_W: tl.constexpr
):
    i_b = tl.program_id(0).to(tl.int64)
    o_w = tl.arange(0, BLOCK_W)
    length = tl.load(p_lengths + i_b)
    request = tl.load(p_requests + i_b).to(tl.int64)
    b_token = tl.load(p_tokens + i_b * width + o_w, mask=o_w < width, other=-1)
    m_valid = (b_token >= 0) & (b_token < length)
    b_one = m_valid.to(tl.int32)
    b_rank = tl.cumsum(b_one, axis=0) - b_one
    b_slot = tl.load(p_table + request * table_columns + b_token, mask=m_valid, other=0)
    tl.store(p_slots + i_b * width + b_rank, b_slot, mask=m_valid)
    tl.store(p_counts + i_b, tl.sum(b_one, axis=0))


@triton.jit
def _copy_kernel(
    p_slots,
    p_counts,
    p_k,
    p_v,
    p_packed_k,
    p_packed_v,
    p_cu,
    batch,
    width,
    capacity,
    ROW: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    i_c = tl.program_id(0)
    i_b = tl.program_id(1)
    o_b = tl.arange(0, BLOCK_B)
    b_counts = tl.load(p_counts + o_b, mask=o_b < batch, other=0)
    start = tl.sum(tl.where(o_b < i_b, b_counts, 0), axis=0)
    count = tl.load(p_counts + i_b)
    if i_c == 0:
        tl.store(p_cu + i_b + 1, start + count)
        if i_b == 0:
            tl.store(p_cu, start)
    o_rank = i_c * ROWS + tl.arange(0, ROWS)
    m_live = o_rank < count
    # The ranks without a token, counted over all rows, are the rows behind the live end, in the same order.
    b_dead = tl.sum(b_counts, axis=0) + (i_b * width - start) + (o_rank - count)
    b_place = tl.where(m_live, start + o_rank, b_dead)
    m_row = (o_rank < width) & (b_place < capacity)
    o_d = tl.arange(0, ROW)
    b_slot = tl.load(p_slots + i_b.to(tl.int64) * width + o_rank, mask=m_live, other=0).to(tl.int64)
    o_from = b_slot[:, None] * ROW + o_d[None, :]
    o_to = b_place.to(tl.int64)[:, None] * ROW + o_d[None, :]
    # A pool row is read once here, a packed row soon by the attention: the packed ones may stay in L2.
    b_k = tl.load(p_k + o_from, mask=m_live[:, None], other=0.0, eviction_policy="evict_first")
    b_v = tl.load(p_v + o_from, mask=m_live[:, None], other=0.0, eviction_policy="evict_first")
    tl.store(p_packed_k + o_to, b_k, mask=m_row[:, None])
    tl.store(p_packed_v + o_to, b_v, mask=m_row[:, None])


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _rank_unit(width: int) -> dict[str, object]:
    names = ("p_tokens", "p_lengths", "p_requests", "p_table", "p_slots", "p_counts")
    constants = {"BLOCK_W": _power_of_two(width)}
    return {
        "function": "_rank_kernel",
        "signature": {
            **dict.fromkeys(names, "*i32"),
            "width": "i32",
            "table_columns": "i32",
            **dict.fromkeys(constants, "constexpr"),
        },
        "constants": constants,
        "divisible_by_16": names,
        "num_warps": RANK_WARPS,
        "num_stages": 2,
    }


def _copy_unit(kv_heads: int, batch: int) -> dict[str, object]:
    indices, rows = ("p_slots", "p_counts", "p_cu"), ("p_k", "p_v", "p_packed_k", "p_packed_v")
    constants = {"ROW": kv_heads * HEAD_DIM, "ROWS": ROWS, "BLOCK_B": _power_of_two(batch)}
    types = {**dict.fromkeys(indices, "*i32"), **dict.fromkeys(rows, "*bf16")}
    order = ("p_slots", "p_counts", *rows, "p_cu")
    return {
        "function": "_copy_kernel",
        "signature": {
            **{name: types[name] for name in order},
            **dict.fromkeys(("batch", "width", "capacity"), "i32"),
            **dict.fromkeys(constants, "constexpr"),
        },
        "constants": constants,
        "divisible_by_16": order,
        "num_warps": COPY_WARPS,
        "num_stages": 2,
    }


_INDEX = {"dtypes": ("int32",), "alignment_bytes": 4}
_ROW = {**_INDEX, "shape": ("B",)}
_KV = {"dtypes": ("bfloat16",), "alignment_bytes": 16}
CONTRACT = {
    "op": "qsa.compact_kv",
    "kernel": "qsa_compact_kv_ranked",
    "entry": "compact_kv",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "QSA compaction of 2051 or 2055 selected tokens a row, holes allowed, from paged pools",
    "tensors": {
        "tokens": {**_INDEX, "shape": ("B", "W")},
        "lengths": _ROW,
        "requests": _ROW,
        "req_to_slot": {**_INDEX, "shape": ("R", "L")},
        "k_pool": {**_KV, "shape": ("S", "HKV", HEAD_DIM)},
        "v_pool": {**_KV, "shape": ("S", "HKV", HEAD_DIM)},
        "packed_k": {**_KV, "shape": ("N", "HKV", HEAD_DIM), "optional": True},
        "packed_v": {**_KV, "shape": ("N", "HKV", HEAD_DIM), "optional": True},
        "cu_seqlens_k": {**_INDEX, "shape": ("B+1",), "optional": True},
    },
    "scalars": {},
    "callable": (
        {
            "axes": {
                "B": {"minimum": 1, "maximum": MAX_BATCH},
                "W": {"minimum": 1, "maximum": MAX_WIDTH},
                "HKV": KV_HEADS,
            },
            "basis": "source thread, wider",
        },
    ),
    "fallback": {"kind": "chain", "chain": ("qsa_compact_kv_torch",)},
    "state": {
        "scratch_bytes": 0,
        "concurrency": "any: slots and counts of a call lie in memory that is allocated for it",
        "reset": "none",
    },
    "kernels_per_call": 2,
    "compile_units": (
        _rank_unit(2051),
        _rank_unit(MAX_WIDTH),
        *(_copy_unit(kv_heads, batch) for kv_heads in (1, 2) for batch in (1, 128)),
    ),
}


def _problems(
    tokens: torch.Tensor,
    rows: dict[str, torch.Tensor],
    req_to_slot: torch.Tensor,
    pools: tuple[torch.Tensor, torch.Tensor],
    packed: tuple[torch.Tensor | None, torch.Tensor | None],
) -> list[str]:
    """What the kernels cannot take, in words; the full contract stands in contract.json."""
    if tokens.dim() != 2 or req_to_slot.dim() != 2 or pools[0].dim() != 3 or pools[0].shape != pools[1].shape:
        return ["tokens must be [B, W], req_to_slot [R, maxlen], k_pool and v_pool [S, HKV, 256] of one shape"]
    found = []
    batch, width = tokens.shape
    if not 1 <= batch <= MAX_BATCH or not 1 <= width <= MAX_WIDTH:
        found.append(f"tokens is {batch} x {width}; allowed: 1 to {MAX_BATCH} rows of 1 to {MAX_WIDTH} columns")
    if pools[0].shape[1] not in KV_HEADS or pools[0].shape[2] != HEAD_DIM:
        found.append(f"heads are {tuple(pools[0].shape[1:])}; allowed: {' or '.join(map(str, KV_HEADS))} x {HEAD_DIM}")
    if any(t.dtype != torch.int32 or not t.is_contiguous() for t in (tokens, req_to_slot, *rows.values())):
        found.append("tokens, lengths, requests, req_to_slot and cu_seqlens_k must be contiguous int32")
    sizes = {name: batch + (name == "cu_seqlens_k") for name in rows}
    found += [f"{name} must have {n} elements" for name, n in sizes.items() if rows[name].shape != (n,)]
    given = [t for t in packed if t is not None]
    if any(t.dtype != torch.bfloat16 or not t.is_contiguous() for t in (*pools, *given)):
        found.append("pools and packed buffers must be contiguous bfloat16")
    if any(t.shape[1:] != pools[0].shape[1:] or t.shape[0] != given[0].shape[0] for t in given):
        found.append("packed_k and packed_v must be [N, HKV, 256] of one shape")
    return found


def _launch(
    index: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    pools: tuple[torch.Tensor, torch.Tensor],
    packed: tuple[torch.Tensor, torch.Tensor],
    cu_seqlens_k: torch.Tensor,
) -> None:
    """Rank, then copy; two launches more where the packed buffers have more rows than there are ranks."""
    tokens, req_to_slot = index[0], index[3]
    batch, width = tokens.shape
    capacity = packed[0].shape[0]
    slots, counts = tokens.new_empty(batch * width), tokens.new_empty(batch)
    _rank_kernel[(batch,)](
        *index,
        slots,
        counts,
        width,
        req_to_slot.shape[1],
        BLOCK_W=_power_of_two(width),
        num_warps=RANK_WARPS,
    )
    rows = ROWS if tokens.is_cuda else ROWS_INTERPRETED
    _copy_kernel[(triton.cdiv(width, rows), batch)](
        slots,
        counts,
        *pools,
        *packed,
        cu_seqlens_k,
        batch,
        width,
        capacity,
        ROW=pools[0].shape[1] * HEAD_DIM,
        ROWS=rows,
        BLOCK_B=_power_of_two(batch),
        num_warps=COPY_WARPS,
    )
    if capacity > batch * width:
        for rest in packed:
            rest[batch * width :].zero_()


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
    """Copy the KV rows of every valid token into packed buffers, row behind row, in the order of the columns.

    Args:
        tokens: [B, W] int32; valid where 0 <= token < lengths[b]; all tensors contiguous, all indices int32.
        lengths, requests: [B], read on the device.
        req_to_slot: [R, maxlen]; entries of valid tokens lie in 0 to S - 1.
        k_pool, v_pool: [S, HKV, 256] bf16.
        packed_k, packed_v: [N, HKV, 256] bf16; B · W rows when None. Rows that do not fit in N are not written.
        cu_seqlens_k: [B+1]; allocated when None.

    Returns:
        packed_k, packed_v (rows behind cu_seqlens_k[B] are zero) and cu_seqlens_k.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    rows = {"lengths": lengths, "requests": requests}
    rows |= {} if cu_seqlens_k is None else {"cu_seqlens_k": cu_seqlens_k}
    problems = _problems(tokens, rows, req_to_slot, (k_pool, v_pool), (packed_k, packed_v))
    if problems:
        raise ValueError("qsa_compact_kv_ranked: " + "; ".join(problems) + ".")
    batch, width = tokens.shape
    like = packed_v if packed_k is None else packed_k
    capacity = batch * width if like is None else like.shape[0]
    packed_k = k_pool.new_empty(capacity, *k_pool.shape[1:]) if packed_k is None else packed_k
    packed_v = v_pool.new_empty(capacity, *v_pool.shape[1:]) if packed_v is None else packed_v
    cu_seqlens_k = tokens.new_empty(batch + 1) if cu_seqlens_k is None else cu_seqlens_k
    index = (tokens, lengths, requests, req_to_slot)
    _launch(index, (k_pool, v_pool), (packed_k, packed_v), cu_seqlens_k)
    return packed_k, packed_v, cu_seqlens_k
