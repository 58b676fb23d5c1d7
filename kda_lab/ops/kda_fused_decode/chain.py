"""The three launches that a fused decode must beat: convolution with its window, packed step, gated norm.

Each is plain Triton with the intermediate rows in memory, in BF16 as a server keeps them. It stands for the chain of
separate kernels (source thread sglang PR 32890); written here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kda_lab.ops.kda_packed_decode import plain

CONV_BLOCK = 512


@dataclass(frozen=True)
class Between:
    """Rows between the launches."""

    mixed: torch.Tensor
    """[B, 3P] bf16, after the convolution."""
    out: torch.Tensor
    """[B, 1, HV, V] bf16, before the norm."""


def between(tensors: dict[str, torch.Tensor]) -> Between:
    """Memory for the rows between the launches of one call."""
    mixed, (_, HV, V, _) = tensors["mixed_qkv"], tensors["state"].shape
    out = mixed.new_empty(mixed.shape[0], 1, HV, V)
    return Between(torch.empty(mixed.shape, dtype=mixed.dtype, device=mixed.device), out)


@triton.jit
def _convolve_kernel(p_x, p_window, p_weight, p_indices, p_y, x_stride, slot_stride, channels, BLOCK: tl.constexpr):
    i_c, i_b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_c = i_c * BLOCK + tl.arange(0, BLOCK)
    m_c = o_c < channels
    index = tl.load(p_indices + i_b).to(tl.int64)
    if index < 0:
        tl.store(p_y + i_b * channels + o_c, tl.zeros([BLOCK], dtype=p_y.dtype.element_ty), mask=m_c)
    else:
        p_rows = p_window + index * slot_stride + o_c
        b_0 = tl.load(p_rows, mask=m_c, other=0.0)
        b_1 = tl.load(p_rows + channels, mask=m_c, other=0.0)
        b_2 = tl.load(p_rows + 2 * channels, mask=m_c, other=0.0)
        b_x = tl.load(p_x + i_b * x_stride + o_c, mask=m_c, other=0.0)
        p_taps = p_weight + o_c
        b_y = b_0.to(tl.float32) * tl.load(p_taps, mask=m_c, other=0.0)
        b_y += b_1.to(tl.float32) * tl.load(p_taps + channels, mask=m_c, other=0.0)
        b_y += b_2.to(tl.float32) * tl.load(p_taps + 2 * channels, mask=m_c, other=0.0)
        b_y += b_x.to(tl.float32) * tl.load(p_taps + 3 * channels, mask=m_c, other=0.0)
        b_y = b_y / (1.0 + tl.exp(tl.minimum(-b_y, 80.0)))
        tl.store(p_y + i_b * channels + o_c, b_y.to(p_y.dtype.element_ty), mask=m_c)
        tl.debug_barrier()
        tl.store(p_rows, b_1, mask=m_c)
        tl.store(p_rows + channels, b_2, mask=m_c)
        tl.store(p_rows + 2 * channels, b_x, mask=m_c)


@triton.jit
def _norm_kernel(
    p_o, p_gate, p_weight, p_indices, p_out, gate_stride, epsilon, HV, V: tl.constexpr, BLOCK: tl.constexpr
):
    i_hv, i_b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_v = tl.arange(0, BLOCK)
    m_v = o_v < V
    o_row = (i_b * HV + i_hv) * V + o_v
    b_o = tl.load(p_o + o_row, mask=m_v, other=0.0).to(tl.float32)
    b_gate = tl.load(p_gate + i_b * gate_stride + i_hv * V + o_v, mask=m_v, other=0.0).to(tl.float32)
    b_o = b_o / tl.sqrt(tl.sum(b_o * b_o, axis=0) / V + epsilon) * tl.load(p_weight + o_v, mask=m_v, other=0.0)
    b_o = b_o / (1.0 + tl.exp(tl.minimum(-b_gate, 80.0)))
    # A gate may hold anything in a row of padding.
    b_o = tl.where(tl.load(p_indices + i_b) < 0, 0.0, b_o)
    tl.store(p_out + o_row, b_o.to(p_out.dtype.element_ty), mask=m_v)


def decode(
    tensors: dict[str, torch.Tensor], lower_bound: float | None, epsilon: float, out: torch.Tensor, rows: Between
) -> None:
    """One raw token for each request in three launches; both pools are updated in place, `out` is written.

    Args:
        tensors: the op's tensors by name, as `spec.py` lists them.
        lower_bound: of the safe gate; None for the softplus gate.
        epsilon: of the output norm.
        out: [B, P] bf16, contiguous.
        rows: of `between`.
    """
    x, window, indices = tensors["mixed_qkv"], tensors["conv_state"], tensors["state_indices"]
    (batch, channels), (_, HV, V, _) = x.shape, tensors["state"].shape
    _convolve_kernel[(triton.cdiv(channels, CONV_BLOCK), batch)](
        x,
        window,
        tensors["conv_weight"],
        indices,
        rows.mixed,
        x.stride(0),
        window.stride(0),
        channels,
        BLOCK=CONV_BLOCK,
    )
    plain.decode({**tensors, "mixed_qkv": rows.mixed}, lower_bound, rows.out)
    gate = tensors["gate"]
    _norm_kernel[(HV, batch)](
        rows.out,
        gate,
        tensors["norm_weight"],
        indices,
        out,
        gate.stride(0),
        epsilon,
        HV,
        V=V,
        BLOCK=triton.next_power_of_2(V),
        num_warps=1,
    )
