"""The fold's speed baseline: a simple Triton kernel over one layer, launched once for each."""

from __future__ import annotations

import triton
import triton.language as tl

from kda_lab.ops.protocol import Call

BLOCK_V = 32


@triton.jit
def _layer_kernel(
    p_k,
    p_v,
    p_g,
    p_beta,
    p_state,
    p_index,
    p_accepted,
    stride_state,
    T,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    i_h = tl.program_id(1)
    i_b = tl.program_id(2).to(tl.int64)
    slot = tl.load(p_index + i_b).to(tl.int64)
    accepted = tl.load(p_accepted + i_b)
    if (slot >= 0) & (accepted > 0):
        o_k = tl.arange(0, BLOCK_K)
        o_v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
        m_k = o_k < K
        m_v = o_v < V
        m_tile = m_v[:, None] & m_k[None, :]
        p_tile = p_state + slot * stride_state + i_h * V * K + o_v[:, None] * K + o_k[None, :]
        b_s = tl.load(p_tile, mask=m_tile, other=0.0)
        for t in range(0, accepted):
            row = i_b * T + t
            b_k = tl.load(p_k + (row * H + i_h // (HV // H)) * K + o_k, mask=m_k, other=0.0).to(tl.float32)
            b_v = tl.load(p_v + (row * HV + i_h) * V + o_v, mask=m_v, other=0.0).to(tl.float32)
            b_g = tl.load(p_g + (row * HV + i_h) * K + o_k, mask=m_k, other=0.0)
            b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, axis=0) + 1e-6)
            b_s = b_s * tl.exp(b_g)[None, :]
            b_d = tl.load(p_beta + row * HV + i_h) * (b_v - tl.sum(b_s * b_k[None, :], axis=1))
            b_s += b_d[:, None] * b_k[None, :]
        tl.store(p_tile, b_s, mask=m_tile)


def fold_layers(call: Call) -> None:
    """Fold every layer of a call, one launch each, into the pool of its outputs."""
    i, state = call.inputs, call.outputs["state"]
    layers, _, HV, V, K = state.shape
    _, B, T, H, _ = i["ring_k"].shape
    block_v = min(BLOCK_V, triton.next_power_of_2(V))
    for y in range(layers):
        ring = (i[name][y] for name in ("ring_k", "ring_v", "ring_g", "ring_beta"))
        rows = (state[y], i["state_indices"], i["accepted"], state.stride(1), T)
        widths = (H, HV, K, V, triton.next_power_of_2(K), block_v)
        _layer_kernel[(triton.cdiv(V, block_v), HV, B)](*ring, *rows, *widths)
