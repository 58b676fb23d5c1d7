"""The verify ops' speed baseline: the chain as separate kernels, simple and unfused, with the maths of the definition.

Convolution and windows, gates, recurrence: three Triton launches through memory, and a copy of what the ring keeps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kda_lab.ops.kda.speculative import heads_of, split_heads
from kda_lab.ops.protocol import Call

BLOCK = 256
BLOCK_V = 32


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _convolution_kernel(
    p_qkv, p_past, p_weight, p_index, p_y, p_windows, stride_b, stride_t, stride_past, C, T, BLOCK: tl.constexpr
):
    i_row = tl.program_id(1).to(tl.int64)
    i_b = i_row // T
    t = (i_row % T).to(tl.int32)
    slot = tl.load(p_index + i_b).to(tl.int64)
    o_c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_c = (o_c < C) & (slot >= 0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for j in tl.static_range(4):
        at = t + j - 3
        b_new = tl.load(p_qkv + i_b * stride_b + at * stride_t + o_c, mask=m_c & (at >= 0), other=0.0)
        b_old = tl.load(p_past + slot * stride_past + (at + 3) * C + o_c, mask=m_c & (at < 0), other=0.0)
        b_x = tl.where(at >= 0, b_new.to(tl.float32), b_old.to(tl.float32))
        total += b_x * tl.load(p_weight + j * C + o_c, mask=m_c, other=0.0).to(tl.float32)
        if j > 0:
            tl.store(p_windows + (i_row * 3 + j - 1) * C + o_c, b_x.to(tl.bfloat16), mask=o_c < C)
    tl.store(p_y + i_row * C + o_c, (total * _sigmoid(total)).to(tl.bfloat16), mask=o_c < C)


@triton.jit
def _gates_kernel(
    p_a, p_b, p_a_log, p_dt, p_index, p_g, p_beta, stride_a_b, stride_a_t, stride_b_b, stride_b_t, lower_bound, T, HV, K,
    SAFE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i_h = tl.program_id(0)
    i_row = tl.program_id(1).to(tl.int64)
    i_b = i_row // T
    live = tl.load(p_index + i_b) >= 0
    o_k = tl.arange(0, BLOCK)
    m_k = o_k < K
    p_gate = p_a + i_b * stride_a_b + (i_row % T) * stride_a_t + i_h * K
    b_x = tl.load(p_gate + o_k, mask=m_k, other=0.0).to(tl.float32) + tl.load(p_dt + i_h * K + o_k, mask=m_k, other=0.0)
    rate = tl.exp(tl.load(p_a_log + i_h))
    b_g = lower_bound * _sigmoid(rate * b_x)
    if not SAFE:
        b_g = -rate * tl.where(b_x > 20.0, b_x, tl.log(1.0 + tl.exp(b_x)))
    tl.store(p_g + (i_row * HV + i_h) * K + o_k, tl.where(live, b_g, 0.0), mask=m_k)
    beta = _sigmoid(tl.load(p_b + i_b * stride_b_b + (i_row % T) * stride_b_t + i_h).to(tl.float32))
    tl.store(p_beta + i_row * HV + i_h, tl.where(live, beta, 0.0))


@triton.jit
def _recurrence_kernel(
    p_y, p_g, p_beta, p_state, p_index, p_out, p_snapshots, stride_state, scale, T,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, SNAPSHOTS: tl.constexpr,
):  # fmt: skip
    i_h = tl.program_id(1)
    i_b = tl.program_id(2).to(tl.int64)
    C: tl.constexpr = 2 * H * K + HV * V
    slot = tl.load(p_index + i_b).to(tl.int64)
    o_k = tl.arange(0, BLOCK_K)
    o_v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k = o_k < K
    m_v = o_v < V
    m_tile = m_v[:, None] & m_k[None, :]
    o_tile = o_v[:, None] * K + o_k[None, :]
    b_s = tl.load(p_state + slot * stride_state + i_h * V * K + o_tile, mask=m_tile & (slot >= 0), other=0.0)
    for t in range(0, T):
        row = i_b * T + t
        p_row = p_y + row * C
        b_q = tl.load(p_row + (i_h // (HV // H)) * K + o_k, mask=m_k, other=0.0).to(tl.float32)
        b_k = tl.load(p_row + (H + i_h // (HV // H)) * K + o_k, mask=m_k, other=0.0).to(tl.float32)
        b_v = tl.load(p_row + 2 * H * K + i_h * V + o_v, mask=m_v, other=0.0).to(tl.float32)
        b_g = tl.load(p_g + (row * HV + i_h) * K + o_k, mask=m_k, other=0.0)
        beta = tl.load(p_beta + row * HV + i_h)
        b_q = b_q * tl.rsqrt(tl.sum(b_q * b_q, axis=0) + 1e-6) * scale
        b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, axis=0) + 1e-6)
        b_s = b_s * tl.exp(b_g)[None, :]
        b_d = beta * (b_v - tl.sum(b_s * b_k[None, :], axis=1))
        b_s += b_d[:, None] * b_k[None, :]
        b_o = tl.sum(b_s * b_q[None, :], axis=1)
        tl.store(p_out + (row * HV + i_h) * V + o_v, b_o.to(tl.bfloat16), mask=m_v)
        if SNAPSHOTS:
            tl.store(p_snapshots + (row * HV + i_h) * V * K + o_tile, b_s, mask=m_tile)


def chain(call: Call, scratch: dict[str, torch.Tensor], lower_bound: float | None) -> None:
    """Run the chain on a call of either verify op; every output that the call has is written.

    Args:
        scratch: `y` [B, T, C] bf16, `ring_g` and `ring_beta` where the call has none; `snapshots` where states are
            to be kept although the call does not ask for them.
    """
    i, outputs = call.inputs, {**scratch, **call.outputs}
    qkv, state, index = i["mixed_qkv"], i["state"], i["state_indices"]
    heads, (B, T, C) = heads_of(qkv.shape[-1], state), qkv.shape
    snapshots = outputs.get("snapshots")
    past = i["conv_state"]
    _convolution_kernel[(triton.cdiv(C, BLOCK), B * T)](
        qkv, past, i["conv_weight"], index, outputs["y"], outputs["windows"],
        qkv.stride(0), qkv.stride(1), past.stride(0), C, T, BLOCK=BLOCK,
    )  # fmt: skip
    bound = 0.0 if lower_bound is None else lower_bound
    block_k = triton.next_power_of_2(heads.K)
    _gates_kernel[(heads.HV, B * T)](
        i["a"], i["b"], i["a_log"], i["dt_bias"], index, outputs["ring_g"], outputs["ring_beta"],
        *i["a"].stride()[:2], *i["b"].stride()[:2], bound, T, heads.HV, heads.K,
        SAFE=lower_bound is not None, BLOCK=block_k,
    )  # fmt: skip
    block_v = min(BLOCK_V, triton.next_power_of_2(heads.V))
    _recurrence_kernel[(triton.cdiv(heads.V, block_v), heads.HV, B)](
        outputs["y"], outputs["ring_g"], outputs["ring_beta"], state, index, outputs["out"], snapshots,
        state.stride(0), heads.K**-0.5, T, heads.H, heads.HV, heads.K, heads.V, block_k, block_v,
        SNAPSHOTS=snapshots is not None,
    )  # fmt: skip
    _, k, v = split_heads(outputs["y"], heads)
    for name, tokens in (("ring_k", k), ("ring_v", v)):
        if name in call.outputs:
            call.outputs[name].copy_(tokens)


def scratch_for(call: Call, snapshots: bool = False) -> dict[str, torch.Tensor]:
    """Buffers between the kernels of `chain` for calls of this geometry."""
    qkv = call.inputs["mixed_qkv"]
    heads, (B, T, _) = heads_of(qkv.shape[-1], call.inputs["state"]), qkv.shape
    found = {
        "y": torch.zeros(qkv.shape, dtype=torch.bfloat16, device=qkv.device),
        "ring_g": torch.zeros(B, T, heads.HV, heads.K, device=qkv.device),
        "ring_beta": torch.zeros(B, T, heads.HV, device=qkv.device),
    }
    if snapshots:
        found["snapshots"] = torch.zeros(B, T, heads.HV, heads.V, heads.K, device=qkv.device)
    return found
