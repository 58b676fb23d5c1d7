"""The schedule of the source thread's kernel: at most eight splits a row, by its live length, merged by the last to arrive.

One program a (row, KV head, split). It was tuned for 48 multiprocessors; here it is the peer that shows
what another schedule gains on this card. Written here from a description of the merged kernel
(sglang PR 36845), not from its text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

MOST_SPLITS = 8
BLOCK_M = 16
MAX_BATCH = 128
MAX_KV_HEADS = 2
NUM_WARPS = 4
FEW_SLOTS = 4
"""Rows x KV heads up to which a row of middle length is cut in four."""


@dataclass(frozen=True)
class Tiles:
    """KV rows a tile, and tiles in flight."""

    block_k: int
    num_stages: int


@dataclass(frozen=True)
class Workspace:
    """Partial results of every (row, KV head, split) and one arrival counter a (row, KV head), zero between launches."""

    acc: torch.Tensor
    maximum: torch.Tensor
    total: torch.Tensor
    count: torch.Tensor

    @classmethod
    def of(cls, device: torch.device, width: int) -> Workspace:
        """Room for the largest batch, 32.25 MiB at D 256; one launch at a time may use it."""
        slots = MAX_BATCH * MAX_KV_HEADS
        parts = slots * MOST_SPLITS * BLOCK_M
        acc, maximum, total = (
            torch.zeros(n, dtype=torch.float32, device=device) for n in (parts * width, parts, parts)
        )
        return cls(acc, maximum, total, torch.zeros(slots, dtype=torch.int32, device=device))


def tiles_for(batch: int, kv_heads: int) -> Tiles:
    """The tiles of a launch, by what the host knows: small ones while few programs run."""
    return Tiles(32, 3) if batch < (12 if kv_heads == 1 else 4) else Tiles(64, 2)


def split_count(length: int, batch: int, kv_heads: int) -> int:
    """Into how many programs a row of `length` live keys is cut: 1, 2, 4 or 8.

    It may fall as the length grows: 2 to 4 rows are cut in four from 481 keys on, and in two from 1505.
    """
    block_k = tiles_for(batch, kv_heads).block_k
    tiles = -(-length // block_k)
    steps: tuple[tuple[int, int], ...]
    if batch == 1:
        steps = ((1024, 8), (512, 4), (256, 2))
    elif batch * kv_heads <= FEW_SLOTS:
        steps = ((1536, 2), (512, 4))
    else:
        steps = ((1536, 2),)
    return next((splits for keys, splits in steps if tiles >= keys // block_k), 1)


@triton.jit
def _splits_of(tiles, BLOCK_K: tl.constexpr, SINGLE: tl.constexpr, FEW: tl.constexpr):
    """`split_count` on the device."""
    n = tl.where(tiles >= 1536 // BLOCK_K, 2, 1)
    if SINGLE:
        n = tl.where(tiles >= 256 // BLOCK_K, 2, 1)
        n = tl.where(tiles >= 512 // BLOCK_K, 4, n)
        n = tl.where(tiles >= 1024 // BLOCK_K, 8, n)
    elif FEW:
        n = tl.where((tiles >= 512 // BLOCK_K) & (n == 1), 4, n)
    return n


@triton.jit
def _add_tile(b_q, b_k, b_v, m_k, b_max, b_sum, b_acc, scale):
    """One step of the online softmax; the sum keeps P unrounded, the product takes it in the dtype of V."""
    b_s = tl.dot(b_q, tl.trans(b_k)) * scale
    b_s = tl.where(m_k[None, :], b_s, -float("inf"))  # [BLOCK_M, BLOCK_K]
    new_max = tl.maximum(b_max, tl.max(b_s, axis=1))
    b_p = tl.exp(b_s - new_max[:, None])
    decay = tl.exp(b_max - new_max)
    b_acc = tl.dot(b_p.to(b_v.dtype), b_v, acc=b_acc * decay[:, None])
    return new_max, b_sum * decay + tl.sum(b_p, axis=1), b_acc


@triton.jit
def _merge(p_out, p_acc, p_max, p_sum, o_first, o_out, m_m, n, D: tl.constexpr, BLOCK_M: tl.constexpr):
    """Add the splits in their order, whoever arrived last; `.cg`, because other multiprocessors wrote them."""
    o_m = tl.arange(0, BLOCK_M)
    o_part = o_m[:, None] * D + tl.arange(0, D)[None, :]
    top = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    for i_s in range(0, n):
        top = tl.maximum(top, tl.load(p_max + o_first + i_s * BLOCK_M + o_m, cache_modifier=".cg"))
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    b_acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    for i_s in range(0, n):
        part = o_first + i_s * BLOCK_M
        b_w = tl.exp(tl.load(p_max + part + o_m, cache_modifier=".cg") - top)
        total += b_w * tl.load(p_sum + part + o_m, cache_modifier=".cg")
        b_acc += b_w[:, None] * tl.load(p_acc + part * D + o_part, cache_modifier=".cg")
    b_out = b_acc / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=m_m[:, None])


@triton.jit
def _scheduled_kernel(
    p_q,
    p_k,
    p_v,
    p_cu_k,
    p_out,
    p_acc,
    p_max,
    p_sum,
    p_count,
    scale,
    HKV: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    MOST: tl.constexpr,
    SINGLE: tl.constexpr,
    FEW: tl.constexpr,
):
    i_b = tl.program_id(0)
    i_g = tl.program_id(1) // MOST
    i_s = tl.program_id(1) % MOST
    start = tl.load(p_cu_k + i_b).to(tl.int64)
    length = (tl.load(p_cu_k + i_b + 1) - start).to(tl.int32)
    tiles = (length + BLOCK_K - 1) // BLOCK_K
    n = _splits_of(tiles, BLOCK_K, SINGLE, FEW)
    if i_s < n:
        o_m = tl.arange(0, BLOCK_M)
        o_d = tl.arange(0, D)
        o_k = tl.arange(0, BLOCK_K)
        m_m = o_m < GROUP
        o_out = (i_b * HKV + i_g) * GROUP * D + o_m[:, None] * D + o_d[None, :]
        b_q = tl.load(p_q + o_out, mask=m_m[:, None], other=0.0)
        base = (start * HKV + i_g) * D
        last = tiles * (i_s + 1) // n
        full = tl.minimum(last, length // BLOCK_K)

        b_max = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
        b_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
        b_acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
        for tile in range(tiles * i_s // n, full):
            o_kv = (tile * BLOCK_K + o_k)[:, None] * (HKV * D) + o_d[None, :]
            b_k = tl.load(p_k + base + o_kv)
            b_v = tl.load(p_v + base + o_kv)
            b_max, b_sum, b_acc = _add_tile(b_q, b_k, b_v, o_k < BLOCK_K, b_max, b_sum, b_acc, scale)
        # One tile at most: only the last of a row is not full.
        for tile in range(full, last):
            m_k = tile * BLOCK_K + o_k < length
            o_kv = (tile * BLOCK_K + o_k)[:, None] * (HKV * D) + o_d[None, :]
            b_k = tl.load(p_k + base + o_kv, mask=m_k[:, None], other=0.0)
            b_v = tl.load(p_v + base + o_kv, mask=m_k[:, None], other=0.0)
            b_max, b_sum, b_acc = _add_tile(b_q, b_k, b_v, m_k, b_max, b_sum, b_acc, scale)

        if n == 1:
            b_out = b_acc / tl.where(b_sum > 0.0, b_sum, 1.0)[:, None]
            tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=m_m[:, None])
        else:
            slot = i_b * HKV + i_g
            o_first = slot * MOST * BLOCK_M
            part = o_first + i_s * BLOCK_M
            tl.store(p_acc + part * D + o_m[:, None] * D + o_d[None, :], b_acc)
            tl.store(p_max + part + o_m, b_max)
            tl.store(p_sum + part + o_m, b_sum)
            # Every thread's partial must be visible before the arrival is counted.
            tl.debug_barrier()
            arrived = tl.atomic_add(p_count + slot, 1, sem="acq_rel", scope="gpu")
            if arrived == n - 1:
                _merge(p_out, p_acc, p_max, p_sum, o_first, o_out, m_m, n, D, BLOCK_M)
                tl.atomic_xchg(p_count + slot, 0, sem="release", scope="gpu")


def packed_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    softmax_scale: float,
    out: torch.Tensor,
    workspace: Workspace,
) -> None:
    """Packed decode in one launch of B x (8 HKV) programs.

    Args:
        q: [B, HQ, D] bf16, contiguous; B <= 128, D a power of two, at most 16 query heads a KV head.
        k: [N, HKV, D] bf16, contiguous; HKV 1 or 2, N >= cu_seqlens_k[B].
        v: as k.
        cu_seqlens_k: [B+1] int32; row b attends to KV rows cu[b] to cu[b+1].
        softmax_scale: multiplies q·k.
        out: [B, HQ, D] bf16; written.
        workspace: of the device; its counters are zero before and after.
    """
    batch, heads, width = q.shape
    kv_heads = k.shape[1]
    tiles = tiles_for(batch, kv_heads)
    _scheduled_kernel[(batch, kv_heads * MOST_SPLITS)](
        q,
        k,
        v,
        cu_seqlens_k,
        out,
        workspace.acc,
        workspace.maximum,
        workspace.total,
        workspace.count,
        softmax_scale,
        HKV=kv_heads,
        GROUP=heads // kv_heads,
        D=width,
        BLOCK_M=BLOCK_M,
        BLOCK_K=tiles.block_k,
        MOST=MOST_SPLITS,
        SINGLE=batch == 1,
        FEW=batch * kv_heads <= FEW_SLOTS,
        num_warps=NUM_WARPS,
        num_stages=tiles.num_stages,
    )
