"""The plain Triton step that a packed decode must beat: q, k and v as separate views, one warp a block of 32 rows.

It stands for the generic gated delta rule kernel that serves the split tensors (source thread sglang PR 26586): the
formulas in their written order, the output read from the updated tile. Written here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_V = 32
EPSILON = 1e-6


@triton.jit
def _step_kernel(
    p_q,
    p_k,
    p_v,
    p_a,
    p_b,
    p_a_log,
    p_dt_bias,
    p_state,
    p_indices,
    p_out,
    lower_bound,
    scale,
    group,
    row_stride,
    a_stride,
    b_stride,
    slot_stride,
    HV,
    V: tl.constexpr,
    K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SAFE: tl.constexpr,
    EPSILON: tl.constexpr,
):
    i_v, i_b, i_hv = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    o_k = tl.arange(0, BLOCK_K)
    o_v = i_v * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k = o_k < K
    m_v = o_v < V
    p_out += (i_b * HV + i_hv) * V + o_v
    index = tl.load(p_indices + i_b).to(tl.int64)
    if index < 0:
        tl.store(p_out, tl.zeros([BLOCK_V], dtype=p_out.dtype.element_ty), mask=m_v)
    else:
        p_tile = p_state + index * slot_stride + (i_hv * V + o_v[:, None]) * K + o_k[None, :]
        m_tile = m_v[:, None] & m_k[None, :]
        b_state = tl.load(p_tile, mask=m_tile, other=0.0).to(tl.float32)
        o_h = (i_hv // group) * K + o_k
        b_q = tl.load(p_q + i_b * row_stride + o_h, mask=m_k, other=0.0).to(tl.float32)
        b_k = tl.load(p_k + i_b * row_stride + o_h, mask=m_k, other=0.0).to(tl.float32)
        b_v = tl.load(p_v + i_b * row_stride + i_hv * V + o_v, mask=m_v, other=0.0).to(tl.float32)
        b_q = b_q / tl.sqrt(tl.sum(b_q * b_q, axis=0) + EPSILON) * scale
        b_k = b_k / tl.sqrt(tl.sum(b_k * b_k, axis=0) + EPSILON)
        b_x = tl.load(p_a + i_b * a_stride + i_hv * K + o_k, mask=m_k, other=0.0).to(tl.float32)
        b_x += tl.load(p_dt_bias + i_hv * K + o_k, mask=m_k, other=0.0)
        rate = tl.exp(tl.load(p_a_log + i_hv))
        # Clamped where an exponential would pass FP32: sigmoid and softplus are at their limits there.
        if SAFE:
            b_g = lower_bound / (1.0 + tl.exp(tl.minimum(-rate * b_x, 80.0)))
        else:
            b_g = -rate * tl.where(b_x > 20.0, b_x, tl.log(1.0 + tl.exp(tl.minimum(b_x, 20.0))))
        b_state *= tl.exp(b_g)[None, :]
        b_raw = tl.load(p_b + i_b * b_stride + i_hv).to(tl.float32)
        beta = 1.0 / (1.0 + tl.exp(tl.minimum(-b_raw, 80.0)))
        b_v = beta * (b_v - tl.sum(b_state * b_k[None, :], axis=1))
        b_state += b_v[:, None] * b_k[None, :]
        tl.store(p_out, tl.sum(b_state * b_q[None, :], axis=1).to(p_out.dtype.element_ty), mask=m_v)
        tl.store(p_tile, b_state.to(p_state.dtype.element_ty), mask=m_tile)


def decode(tensors: dict[str, torch.Tensor], lower_bound: float | None, out: torch.Tensor) -> None:
    """One token for each request; `state` is updated in place, `out` is written.

    Args:
        tensors: the op's tensors by name, as `spec.py` lists them.
        lower_bound: of the safe gate; None for the softplus gate.
        out: [B, 1, HV, V] bf16, contiguous.
    """
    mixed, state = tensors["mixed_qkv"], tensors["state"]
    _, HV, V, K = state.shape
    keys = (mixed.shape[1] - HV * V) // 2
    q, k, v = mixed.split((keys, keys, HV * V), dim=1)
    block_v = min(triton.next_power_of_2(V), BLOCK_V)
    a, b = tensors["a"], tensors["b"]
    _step_kernel[(triton.cdiv(V, block_v), mixed.shape[0], HV)](
        q,
        k,
        v,
        a,
        b,
        tensors["a_log"],
        tensors["dt_bias"],
        state,
        tensors["state_indices"],
        out,
        0.0 if lower_bound is None else lower_bound,
        K**-0.5,
        HV * K // keys,
        mixed.stride(0),
        a.stride(0),
        b.stride(0),
        state.stride(0),
        HV,
        V=V,
        K=K,
        BLOCK_V=block_v,
        BLOCK_K=triton.next_power_of_2(K),
        SAFE=lower_bound is not None,
        EPSILON=EPSILON,
        num_warps=1,
        num_stages=2,
    )
