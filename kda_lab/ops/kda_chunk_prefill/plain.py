"""The usual pipeline in plain Triton, four launches: gate and sums, scores and inverse, states, outputs.

What a first version looks like: sums of decays, states before every chunk and new values all go through memory. The
arithmetic is that of `kda.chunked`: halving down to single tokens, so any gate is finite; BF16 operands, FP32 sums.
K and V are powers of two of at least 16.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import triton
import triton.language as tl

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.chunked import CHUNK
from kda_lab.ops.kda.geometry import L2_EPSILON

LEVELS = CHUNK.bit_length() - 1
BLOCK_V = 32


@triton.jit
def _place(p_table, C: tl.constexpr):
    """Sequence, first token, first token behind the sequence: from the table row of this program's chunk."""
    p_row = p_table + tl.program_id(0) * 3
    first = tl.load(p_row + 1)
    o_t = first + tl.arange(0, C)
    return tl.load(p_row), o_t.to(tl.int64), o_t < tl.load(p_row + 2)


@triton.jit
def _sums(p_a, p_a_log, p_bias, p_table, p_sum, lower, HV, K: tl.constexpr, C: tl.constexpr, BOUNDED: tl.constexpr):
    i_h = tl.program_id(1)
    _, o_t, m_t = _place(p_table, C)
    o_k = tl.arange(0, K)
    o_tk = o_t[:, None] * (HV * K) + (i_h * K + o_k)[None, :]
    b_x = tl.load(p_a + o_tk, mask=m_t[:, None], other=0.0).to(tl.float32) + tl.load(p_bias + i_h * K + o_k)[None, :]
    rate = tl.exp(tl.load(p_a_log + i_h))
    if BOUNDED:
        b_g = lower / (1.0 + tl.exp(-rate * b_x))
    else:
        b_g = -rate * (tl.maximum(b_x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(b_x))))
    b_sum = tl.cumsum(tl.where(m_t[:, None], b_g, 0.0), axis=0)
    o_ck = (tl.program_id(0) * C + tl.arange(0, C)).to(tl.int64)[:, None] * (HV * K) + (i_h * K + o_k)[None, :]
    tl.store(p_sum + o_ck, b_sum)


@triton.jit
def _pairs(o_i, half):
    o_pair = o_i // (2 * half)
    m_second = (o_i // half) % 2 == 1
    return (o_pair[:, None] == o_pair[None, :]) & m_second[:, None] & (~m_second)[None, :]


@triton.jit
def _normalised(p_x, o_x, m_t, scale, EPSILON: tl.constexpr):
    b_x = tl.load(p_x + o_x, mask=m_t[:, None], other=0.0).to(tl.float32)
    return b_x * (tl.rsqrt(tl.sum(b_x * b_x, axis=1) + EPSILON) * scale)[:, None]


@triton.jit
def _intra(
    p_q,
    p_k,
    p_v,
    p_beta,
    p_sum,
    p_table,
    p_w,
    p_u,
    p_qg,
    p_kg,
    p_scores,
    scale,
    HV,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    EPSILON: tl.constexpr,
):
    i_h = tl.program_id(1)
    _, o_t, m_t = _place(p_table, C)
    o_i, o_k, o_v = tl.arange(0, C), tl.arange(0, K), tl.arange(0, V)
    o_c = (tl.program_id(0) * C + o_i).to(tl.int64)
    o_ck = o_c[:, None] * (HV * K) + (i_h * K + o_k)[None, :]
    o_cv = o_c[:, None] * (HV * V) + (i_h * V + o_v)[None, :]
    o_qk = o_t[:, None] * (HV // GROUP * K) + (i_h // GROUP * K + o_k)[None, :]
    b_q = _normalised(p_q, o_qk, m_t, scale, EPSILON)
    b_k = _normalised(p_k, o_qk, m_t, 1.0, EPSILON)
    b_sum = tl.load(p_sum + o_ck)
    b_kk = tl.zeros([C, C], dtype=tl.float32)
    b_qk = tl.where(o_i[:, None] == o_i[None, :], tl.sum(b_q * b_k, axis=1)[:, None], 0.0)
    for level in tl.static_range(LEVELS):
        half = 1 << level
        o_edge = (tl.program_id(0) * C + o_i // (2 * half) * (2 * half) + half - 1).to(tl.int64)
        b_edge = tl.load(p_sum + o_edge[:, None] * (HV * K) + (i_h * K + o_k)[None, :])
        b_e = tl.exp(-tl.abs(b_sum - b_edge))
        b_right = (b_k * b_e).to(tl.bfloat16)
        m_pair = _pairs(o_i, half)
        b_kk += tl.where(m_pair, tl.dot(b_right, tl.trans(b_right)), 0.0)
        b_qk += tl.where(m_pair, tl.dot((b_q * b_e).to(tl.bfloat16), tl.trans(b_right)), 0.0)
    b_beta = tl.load(p_beta + o_t * HV + i_h, mask=m_t, other=0.0)
    b_kk *= b_beta[:, None]
    b_t = tl.where(o_i[:, None] == o_i[None, :], 1.0, 0.0) - tl.where(_pairs(o_i, 1), b_kk, 0.0)
    for level in tl.static_range(1, LEVELS):
        b_off = tl.where(_pairs(o_i, 1 << level), b_kk, 0.0).to(tl.bfloat16)
        b_left = tl.dot(b_t.to(tl.bfloat16), b_off).to(tl.bfloat16)
        b_t -= tl.dot(b_left, b_t.to(tl.bfloat16))
    b_t = b_t.to(tl.bfloat16)
    b_e = tl.exp(b_sum)
    b_v = tl.load(p_v + o_t[:, None] * (HV * V) + (i_h * V + o_v)[None, :], mask=m_t[:, None], other=0.0)
    tl.store(p_w + o_ck, tl.dot(b_t, (b_k * b_e * b_beta[:, None]).to(tl.bfloat16)).to(tl.bfloat16))
    tl.store(p_u + o_cv, tl.dot(b_t, (b_v.to(tl.float32) * b_beta[:, None]).to(tl.bfloat16)).to(tl.bfloat16))
    tl.store(p_qg + o_ck, (b_q * b_e).to(tl.bfloat16))
    o_last = (tl.program_id(0) * C + C - 1).to(tl.int64) * (HV * K) + i_h * K + o_k
    tl.store(p_kg + o_ck, (b_k * tl.exp(tl.load(p_sum + o_last)[None, :] - b_sum)).to(tl.bfloat16))
    tl.store(p_scores + o_c[:, None] * (HV * C) + (i_h * C + o_i)[None, :], b_qk.to(tl.bfloat16))


@triton.jit
def _states(
    p_w,
    p_u,
    p_kg,
    p_sum,
    p_spans,
    p_index,
    p_has,
    p_state,
    p_before,
    p_new,
    stride_slot,
    HV,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    i_v, i_h, i_n = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, chunks = tl.load(p_spans + i_n * 2), tl.load(p_spans + i_n * 2 + 1)
    index = tl.load(p_index + i_n).to(tl.int64)
    o_i, o_k, o_v = tl.arange(0, C), tl.arange(0, K), i_v * BLOCK_V + tl.arange(0, BLOCK_V)
    if (index >= 0) & (chunks > 0):
        p_mine = p_state + index * stride_slot + i_h * (V * K) + o_v[:, None] * K + o_k[None, :]
        b_s = tl.load(p_mine)
        if tl.load(p_has + i_n) == 0:
            b_s = tl.zeros([BLOCK_V, K], dtype=tl.float32)
        for i_c in range(chunks):
            o_c = ((first + i_c) * C + o_i).to(tl.int64)
            o_ck = o_c[:, None] * (HV * K) + (i_h * K + o_k)[None, :]
            o_cv = o_c[:, None] * (HV * V) + (i_h * V + o_v)[None, :]
            o_before = ((first + i_c).to(tl.int64) * HV + i_h) * (V * K) + o_v[:, None] * K + o_k[None, :]
            tl.store(p_before + o_before, b_s.to(tl.bfloat16))
            b_new = tl.load(p_u + o_cv).to(tl.float32)
            b_new -= tl.dot(tl.load(p_w + o_ck), tl.trans(b_s.to(tl.bfloat16)))
            tl.store(p_new + o_cv, b_new.to(tl.bfloat16))
            o_last = ((first + i_c) * C + C - 1).to(tl.int64) * (HV * K) + i_h * K + o_k
            b_s *= tl.exp(tl.load(p_sum + o_last))[None, :]
            b_s += tl.dot(tl.trans(b_new.to(tl.bfloat16)), tl.load(p_kg + o_ck))
        tl.store(p_mine, b_s)


@triton.jit
def _outputs(
    p_qg,
    p_scores,
    p_before,
    p_new,
    p_table,
    p_index,
    p_out,
    HV,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    i_h, i_v = tl.program_id(1), tl.program_id(2)
    n, o_t, m_t = _place(p_table, C)
    o_i, o_k, o_v = tl.arange(0, C), tl.arange(0, K), i_v * BLOCK_V + tl.arange(0, BLOCK_V)
    o_c = (tl.program_id(0) * C + o_i).to(tl.int64)
    b_o = tl.zeros([C, BLOCK_V], dtype=tl.float32)
    if tl.load(p_index + n) >= 0:
        # Scores first: in the other order ptxas 12.8 (bundled with Triton 3.6 and 3.7) gives the second product, at K = 64,
        # the base of shared memory for its descriptor, and the GPU reads outside of it.
        b_a = tl.load(p_scores + o_c[:, None] * (HV * C) + (i_h * C + o_i)[None, :])
        b_o = tl.dot(b_a, tl.load(p_new + o_c[:, None] * (HV * V) + (i_h * V + o_v)[None, :]))
        o_before = (tl.program_id(0).to(tl.int64) * HV + i_h) * (V * K) + o_v[:, None] * K + o_k[None, :]
        b_q = tl.load(p_qg + o_c[:, None] * (HV * K) + (i_h * K + o_k)[None, :])
        b_o += tl.dot(b_q, tl.trans(tl.load(p_before + o_before)))
    tl.store(p_out + o_t[:, None] * (HV * V) + (i_h * V + o_v)[None, :], b_o.to(tl.bfloat16), mask=m_t[:, None])


def tables(cu_seqlens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where chunks lie: [chunks, 3] (sequence, first token, end of the sequence), [N, 2] (first chunk, chunks); int32.

    Read on the host, as the usual pipelines do.
    """
    ends = cu_seqlens.tolist()
    rows: list[tuple[int, int, int]] = []
    spans: list[tuple[int, int]] = []
    for n, (first, last) in enumerate(itertools.pairwise(ends)):
        starts = range(first, last, CHUNK)
        spans.append((len(rows), len(starts)))
        rows.extend((n, start, last) for start in starts)
    made = [torch.tensor(found, dtype=torch.int32).view(-1, width) for found, width in ((rows, 3), (spans, 2))]
    return made[0].to(cu_seqlens.device), made[1].to(cu_seqlens.device)


def prefill(
    i: dict[str, torch.Tensor],
    lower_bound: float | None,
    out: torch.Tensor,
    where: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """The op on its tensors by name, `state` being the pool that is updated; `where` comes from `tables`.

    Raises:
        ParameterError: K or V is no power of two of at least 16.
    """
    (_, H, K), (HV, V) = i["q"].shape, i["v"].shape[1:]
    if any(width < 16 or width & (width - 1) for width in (K, V)):
        raise ParameterError("kda.chunk_prefill", [Reason("K, V", repr((K, V)), "powers of two of at least 16")])
    table, spans = where
    chunks = table.shape[0]
    if not chunks:
        return
    bf16: dict[str, Any] = {"dtype": torch.bfloat16, "device": out.device}
    total = torch.empty(chunks * CHUNK, HV, K, dtype=torch.float32, device=out.device)
    w, qg, kg = (torch.empty(chunks * CHUNK, HV, K, **bf16) for _ in range(3))
    u, new = (torch.empty(chunks * CHUNK, HV, V, **bf16) for _ in range(2))
    scores, before = torch.empty(chunks * CHUNK, HV, CHUNK, **bf16), torch.empty(chunks, HV, V, K, **bf16)
    widths = {"K": K, "C": CHUNK}
    gate = (i["a"], i["a_log"], i["dt_bias"], table, total, lower_bound or 0.0, HV)
    _sums[(chunks, HV)](*gate, **widths, BOUNDED=lower_bound is not None, num_warps=8)
    widths["V"] = V
    operands = (i["q"], i["k"], i["v"], i["beta"], total, table, w, u, qg, kg, scores, K**-0.5, HV)
    _intra[(chunks, HV)](*operands, GROUP=HV // H, **widths, LEVELS=LEVELS, EPSILON=L2_EPSILON, num_warps=8)
    block = min(V, BLOCK_V)
    has = i["has_state"].view(torch.uint8)
    pools = (w, u, kg, total, spans, i["state_indices"], has, i["state"], before, new, i["state"].stride(0), HV)
    _states[(V // block, HV, spans.shape[0])](*pools, **widths, BLOCK_V=block, num_warps=4)
    found = (qg, scores, before, new, table, i["state_indices"], out, HV)
    _outputs[(chunks, HV, V // block)](*found, **widths, BLOCK_V=block, num_warps=4)
