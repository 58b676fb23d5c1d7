"""The slow correct baseline: one program a query head, FP32 arithmetic on CUDA cores, no tensor cores.

Every KV row is loaded once for each of the query heads that share it, which is what a grouped
kernel avoids. It stands for the first correct QSA kernel of the source thread (sglang PR 36845):
written here from its description (spec part A.5), not from its text.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_K = 64


@triton.jit
def _per_head_kernel(
    p_q,
    p_k,
    p_v,
    p_cu_k,
    p_out,
    softmax_scale,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i_b = tl.program_id(0)
    i_h = tl.program_id(1)
    start = tl.load(p_cu_k + i_b).to(tl.int64)
    length = (tl.load(p_cu_k + i_b + 1) - start).to(tl.int32)
    o_d = tl.arange(0, BLOCK_D)
    o_k = tl.arange(0, BLOCK_K)
    m_d = o_d < D
    b_q = tl.load(p_q + (i_b * HQ + i_h) * D + o_d, mask=m_d, other=0.0).to(tl.float32)
    base = (start * HKV + i_h // (HQ // HKV)) * D

    b_max = -float("inf")
    b_sum = 0.0
    b_acc = tl.zeros([BLOCK_D], dtype=tl.float32)
    for first in range(0, length, BLOCK_K):
        m_k = first + o_k < length
        m_kd = m_k[:, None] & m_d[None, :]
        o_kd = (first + o_k)[:, None] * (HKV * D) + o_d[None, :]
        b_k = tl.load(p_k + base + o_kd, mask=m_kd, other=0.0).to(tl.float32)
        b_s = tl.sum(b_q[None, :] * b_k, axis=1) * softmax_scale
        b_s = tl.where(m_k, b_s, -float("inf"))  # [BLOCK_K]
        new_max = tl.maximum(b_max, tl.max(b_s, axis=0))
        b_p = tl.exp(b_s - new_max)
        decay = tl.exp(b_max - new_max)
        b_v = tl.load(p_v + base + o_kd, mask=m_kd, other=0.0).to(tl.float32)
        b_acc = b_acc * decay + tl.sum(b_p[:, None] * b_v, axis=0)
        b_sum = b_sum * decay + tl.sum(b_p, axis=0)
        b_max = new_max
    # A row without keys has no sum; its output is exactly zero.
    b_out = b_acc / tl.where(b_sum > 0.0, b_sum, 1.0)
    tl.store(p_out + (i_b * HQ + i_h) * D + o_d, b_out.to(p_out.dtype.element_ty), mask=m_d)


def packed_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    softmax_scale: float,
    out: torch.Tensor,
) -> None:
    """Packed decode, one program a (row, query head).

    Args:
        q: [B, HQ, D] bf16 or fp16, contiguous; any D, any HQ that HKV divides.
        k: [N, HKV, D], dtype of q, contiguous; N >= cu_seqlens_k[B].
        v: [N, HKV, D], as k.
        cu_seqlens_k: [B+1] int32; row b attends to KV rows cu[b] to cu[b+1].
        softmax_scale: multiplies q·k.
        out: [B, HQ, D], dtype of q; written.
    """
    batch, heads, width = q.shape
    _per_head_kernel[(batch, heads)](
        q,
        k,
        v,
        cu_seqlens_k,
        out,
        softmax_scale,
        HQ=heads,
        HKV=k.shape[1],
        D=width,
        BLOCK_D=triton.next_power_of_2(width),
        BLOCK_K=BLOCK_K,
        num_warps=4,
    )
