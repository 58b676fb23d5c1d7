"""The speed baseline of the decode from a ring: simple, one program a query head, the state made for every token."""

from __future__ import annotations

import triton
import triton.language as tl

from kda_lab.ops.kda_replay_decode.steps import bound_of, heads_of_call, modes_of
from kda_lab.ops.protocol import Call

BLOCK_V = 64


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _materialised_kernel(
    p_qkv, p_a, p_b, p_a_log, p_dt, p_state, p_d, p_k, p_g, p_positions, p_index, p_out,
    lower_bound, scale, stride_qkv, stride_a, stride_b, stride_state,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, L: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    SAFE: tl.constexpr, CIRCULAR: tl.constexpr, PRE: tl.constexpr, FORCE: tl.constexpr,
):  # fmt: skip
    i_q = tl.program_id(0)
    i_b = tl.program_id(1).to(tl.int64)
    GROUP: tl.constexpr = HV // H
    slot = tl.load(p_index + i_b).to(tl.int64)
    live = slot >= 0
    slot = tl.where(live, slot, 0)
    n = tl.load(p_positions + slot)
    flush = (n >= L - 1) | FORCE
    history = flush & (CIRCULAR and not FORCE and L > 1)
    appended = live & (history | (flush == 0))
    at = tl.where(history, 0, n)
    o_k = tl.arange(0, BLOCK_K)
    m_k = (o_k < K) & live
    p_row = p_qkv + i_b * stride_qkv
    b_q = tl.load(p_row + i_q * K + o_k, mask=m_k, other=0.0).to(tl.float32)
    b_k = tl.load(p_row + (H + i_q) * K + o_k, mask=m_k, other=0.0).to(tl.float32)
    b_q = b_q * tl.rsqrt(tl.sum(b_q * b_q, axis=0) + 1e-6) * scale
    b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, axis=0) + 1e-6)
    for i_e in tl.static_range(GROUP):
        i_h = i_q * GROUP + i_e
        own = (slot * HV + i_h) * L
        p_keys = p_k + (slot * H + i_q) * L * K + o_k
        b_x = tl.load(p_a + i_b * stride_a + i_h * K + o_k, mask=m_k, other=0.0).to(tl.float32)
        b_x += tl.load(p_dt + i_h * K + o_k, mask=m_k, other=0.0)
        rate = tl.exp(tl.load(p_a_log + i_h))
        b_new = lower_bound * _sigmoid(rate * b_x)
        if not SAFE:
            b_new = -rate * tl.where(b_x > 20.0, b_x, tl.log(1.0 + tl.exp(b_x)))
        beta = _sigmoid(tl.load(p_b + i_b * stride_b + i_h).to(tl.float32))
        b_e = tl.zeros([BLOCK_K], dtype=tl.float32)
        if PRE:
            b_e = tl.load(p_g + (own + n - 1) * K + o_k, mask=m_k & (n > 0), other=0.0)
        for i_v in tl.static_range((V + BLOCK_V - 1) // BLOCK_V):
            o_v = i_v * BLOCK_V + tl.arange(0, BLOCK_V)
            m_v = o_v < V
            m_tile = m_v[:, None] & m_k[None, :]
            p_tile = p_state + slot * stride_state + i_h * V * K + o_v[:, None] * K + o_k[None, :]
            b_s = tl.load(p_tile, mask=m_tile, other=0.0)
            b_v = tl.load(p_row + 2 * H * K + i_h * V + o_v, mask=m_v & live, other=0.0).to(tl.float32)
            for j in range(0, n):
                b_jk = tl.load(p_keys + j * K, mask=m_k, other=0.0).to(tl.float32)
                b_jd = tl.load(p_d + (own + j) * V + o_v, mask=m_v & live, other=0.0).to(tl.float32)
                if not PRE:
                    b_s = b_s * tl.exp(tl.load(p_g + (own + j) * K + o_k, mask=m_k, other=0.0))[None, :]
                b_s += b_jd[:, None] * b_jk[None, :]
            b_s = b_s * tl.exp(b_e)[None, :]
            b_t = b_s * tl.exp(b_new)[None, :]
            b_d = beta * (b_v - tl.sum(b_t * b_k[None, :], axis=1))
            b_t += b_d[:, None] * b_k[None, :]
            b_o = tl.sum(b_t * b_q[None, :], axis=1)
            tl.store(p_out + (i_b * HV + i_h) * V + o_v, tl.where(live, b_o, 0.0).to(tl.bfloat16), mask=m_v)
            tl.debug_barrier()
            tl.store(p_tile, b_s, mask=m_tile & history)
            tl.store(p_tile, b_t, mask=m_tile & flush & (history == 0))
            tl.store(p_d + (own + at) * V + o_v, b_d.to(tl.bfloat16), mask=m_v & appended)
        tl.debug_barrier()
        if PRE:
            b_new += tl.where(history, 0.0, 1.0) * b_e
            b_kept = b_k * tl.exp(-b_new)
        else:
            b_kept = b_k
        tl.store(p_g + (own + at) * K + o_k, b_new, mask=m_k & appended)
        last = appended & (i_e == GROUP - 1)
        tl.store(p_keys + at * K, b_kept.to(p_k.dtype.element_ty), mask=m_k & last)


def replay_decode(call: Call) -> None:
    """Run the kernel on the memory that a call updates."""
    i, o, heads, modes = call.inputs, call.outputs, heads_of_call(call), modes_of(call)
    bound = bound_of(call)
    rows = (i["mixed_qkv"], i["a"], i["b"], i["a_log"], i["dt_bias"], o["state"], o["ring_d"], o["ring_k"], o["ring_g"])
    strides = (i["mixed_qkv"].stride(0), i["a"].stride(0), i["b"].stride(0), o["state"].stride(0))
    _materialised_kernel[(heads.H, i["state_indices"].shape[0])](
        *rows,
        i["write_positions"],
        i["state_indices"],
        o["out"],
        0.0 if bound is None else bound,
        heads.K**-0.5,
        *strides,
        heads.H,
        heads.HV,
        heads.K,
        heads.V,
        i["ring_d"].shape[2],
        triton.next_power_of_2(heads.K),
        min(BLOCK_V, triton.next_power_of_2(heads.V)),
        SAFE=bound is not None,
        CIRCULAR=modes.circular,
        PRE=modes.predecayed,
        FORCE=modes.force_flush,
    )
