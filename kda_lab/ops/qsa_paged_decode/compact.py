"""Stream compaction for the baseline: selected pool rows gathered into packed K and V, and the packed offsets.

Two launches: one counts the valid columns of each row, one gives every 16 columns of a row a program, which finds
their place in the packed rows from the counts before them and copies K and V. Holes may stand anywhere. It stands for
what serves QSA before attention reads the pool itself (source thread, sglang PR 36845); written here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

CHUNK = 16
"""Columns a program copies."""
INTERPRETED_CHUNK = 1024
"""The same in the interpreter, whose cost is per operation."""
MAX_BATCH = 128


@triton.jit
def _count_kernel(p_tokens, p_lengths, p_counts, width, BLOCK_W: tl.constexpr):
    i_b = tl.program_id(0)
    o_w = tl.arange(0, BLOCK_W)
    b_token = tl.load(p_tokens + i_b * width + o_w, mask=o_w < width, other=-1)
    m_valid = (b_token >= 0) & (b_token < tl.load(p_lengths + i_b))
    tl.store(p_counts + i_b, tl.sum(m_valid.to(tl.int32), axis=0))


@triton.jit
def _gather_kernel(
    p_tokens,
    p_lengths,
    p_requests,
    p_table,
    p_k,
    p_v,
    p_counts,
    p_packed_k,
    p_packed_v,
    p_ends,
    width,
    stride_table,
    ROW: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_B: tl.constexpr,
    CHUNK: tl.constexpr,
):
    i_c = tl.program_id(0)
    i_b = tl.program_id(1)
    batch = tl.num_programs(1)
    o_b = tl.arange(0, BLOCK_B)
    b_counts = tl.load(p_counts + o_b, mask=o_b < batch, other=0)
    start = tl.sum(tl.where(o_b < i_b, b_counts, 0), axis=0)
    if i_c == 0:
        tl.store(p_ends + i_b + 1, start + tl.sum(tl.where(o_b == i_b, b_counts, 0), axis=0))
        # The first row also writes the leading zero.
        tl.store(p_ends + i_b, start, mask=i_b == 0)
    length = tl.load(p_lengths + i_b)
    p_row = p_tokens + i_b * width
    o_w = tl.arange(0, BLOCK_W)
    b_before = tl.load(p_row + o_w, mask=o_w < tl.minimum(i_c * CHUNK, width), other=-1)
    before = tl.sum(((b_before >= 0) & (b_before < length)).to(tl.int32), axis=0)
    o_c = i_c * CHUNK + tl.arange(0, CHUNK)
    b_token = tl.load(p_row + o_c, mask=o_c < width, other=-1)
    m_valid = (b_token >= 0) & (b_token < length)
    b_rank = start + before + tl.cumsum(m_valid.to(tl.int32), axis=0) - 1
    p_pages = p_table + tl.load(p_requests + i_b).to(tl.int64) * stride_table
    b_slot = tl.load(p_pages + b_token, mask=m_valid, other=0).to(tl.int64)
    o_d = tl.arange(0, ROW)
    o_from = b_slot[:, None] * ROW + o_d[None, :]
    o_to = b_rank.to(tl.int64)[:, None] * ROW + o_d[None, :]
    m_row = m_valid[:, None]
    tl.store(p_packed_k + o_to, tl.load(p_k + o_from, mask=m_row), mask=m_row)
    tl.store(p_packed_v + o_to, tl.load(p_v + o_from, mask=m_row), mask=m_row)


@dataclass(frozen=True)
class Packed:
    """Scratch of one geometry: packed rows, offsets and counts, made once and reused by every call."""

    k: torch.Tensor
    """[B·W, HKV, D] bf16; rows behind the live end are zero, or left over from an earlier call."""
    v: torch.Tensor
    cu_seqlens_q: torch.Tensor
    """[B+1] int32: 0, 1, …, B."""
    cu_seqlens_k: torch.Tensor
    """[B+1] int32."""
    counts: torch.Tensor
    """[B] int32."""


def packed_for(k_pool: torch.Tensor, batch: int, width: int) -> Packed:
    """Scratch for calls of `batch` rows (at most 128) and `width` columns on pools like `k_pool` [S, HKV, D]."""
    device = k_pool.device
    # Zeroed once: an attention kernel may load whole tiles, and a NaN there would survive a weight of zero.
    k, v = (torch.zeros(batch * width, *k_pool.shape[1:], dtype=k_pool.dtype, device=device) for _ in range(2))
    ends = torch.arange(batch + 1, dtype=torch.int32, device=device)
    return Packed(k, v, ends, torch.zeros_like(ends), torch.zeros_like(ends[1:]))


def compact(inputs: dict[str, torch.Tensor], packed: Packed) -> None:
    """Fill `packed` from a call's inputs: k_pool and v_pool [S, HKV, D] bf16, and the four index tensors, int32.

    Row b's valid columns, in their order, become the packed rows cu_seqlens_k[b] to cu_seqlens_k[b + 1] - 1.
    """
    tokens, k_pool, table = inputs["tokens"], inputs["k_pool"], inputs["req_to_slot"]
    batch, width = tokens.shape
    block_w, chunk = triton.next_power_of_2(width), CHUNK if tokens.is_cuda else INTERPRETED_CHUNK
    _count_kernel[(batch,)](tokens, inputs["lengths"], packed.counts, width, BLOCK_W=block_w, num_warps=4)
    indices = (tokens, inputs["lengths"], inputs["requests"], table)
    outputs = (packed.counts, packed.k, packed.v, packed.cu_seqlens_k)
    _gather_kernel[(triton.cdiv(width, chunk), batch)](
        *indices,
        k_pool,
        inputs["v_pool"],
        *outputs,
        width,
        table.shape[1],
        ROW=k_pool.shape[1] * k_pool.shape[2],
        BLOCK_W=block_w,
        BLOCK_B=MAX_BATCH,
        CHUNK=chunk,
        num_warps=4,
    )
