"""The plain way in three launches: scores of every row, the softmax mix, RMSNorm; what serving engines run on Hopper.

Every row is read twice, and the mix goes through memory in BF16. A pending addition and the snapshot are launches of
their own. Plain Triton, written here after the definition; source thread sglang PR 32890 names the three steps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_MIX = 1024
"""Channels that one program of the second launch mixes."""


@triton.jit
def _scores_kernel(p_bank, p_prefix, p_weight, p_scores, valid, NB, epsilon, D: tl.constexpr, BLOCK_D: tl.constexpr):
    i_t = tl.program_id(0).to(tl.int64)
    i_r = tl.program_id(1)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    if i_r < valid:
        b_x = tl.load(p_bank + (i_t * NB + i_r) * D + o_d, mask=m_d, other=0.0).to(tl.float32)
    else:
        b_x = tl.load(p_prefix + i_t * D + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_w = tl.load(p_weight + o_d, mask=m_d, other=0.0)
    score = tl.sum(b_x * b_w, axis=0) / tl.sqrt(tl.sum(b_x * b_x, axis=0) / D + epsilon)
    tl.store(p_scores + i_t * (valid + 1) + i_r, score)


@triton.jit
def _mix_kernel(
    p_bank, p_prefix, p_scores, p_mix, valid, NB, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr
):
    i_t = tl.program_id(0).to(tl.int64)
    o_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < D
    o_r = tl.arange(0, BLOCK_R)
    b_s = tl.load(p_scores + i_t * (valid + 1) + o_r, mask=o_r <= valid, other=-float("inf"))
    top = tl.max(b_s, axis=0)
    total = tl.sum(tl.exp(b_s - top), axis=0)
    last = tl.load(p_scores + i_t * (valid + 1) + valid)
    b_mix = tl.exp(last - top) * tl.load(p_prefix + i_t * D + o_d, mask=m_d, other=0.0).to(tl.float32)
    for i_r in range(0, valid):
        weight = tl.exp(tl.load(p_scores + i_t * (valid + 1) + i_r) - top)
        b_mix += weight * tl.load(p_bank + (i_t * NB + i_r) * D + o_d, mask=m_d, other=0.0).to(tl.float32)
    tl.store(p_mix + i_t * D + o_d, (b_mix / total).to(p_mix.dtype.element_ty), mask=m_d)


@triton.jit
def _norm_kernel(p_mix, p_weight, p_out, epsilon, D: tl.constexpr, BLOCK_D: tl.constexpr):
    i_t = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    b_x = tl.load(p_mix + i_t * D + o_d, mask=m_d, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(b_x * b_x, axis=0) / D + epsilon)
    b_out = b_x * scale * tl.load(p_weight + o_d, mask=m_d, other=0.0)
    tl.store(p_out + i_t * D + o_d, b_out.to(p_out.dtype.element_ty), mask=m_d)


class Scratch:
    """Scores and mix between the launches, for calls of one geometry."""

    def __init__(self, prefix: torch.Tensor, rows: int) -> None:
        self.scores = torch.zeros(prefix.shape[0], rows, dtype=torch.float32, device=prefix.device)
        self.mix = torch.zeros_like(prefix)


def mix_and_norm(
    streams: tuple[torch.Tensor, torch.Tensor],
    weights: tuple[torch.Tensor, torch.Tensor],
    scratch: Scratch,
    out: torch.Tensor,
    valid: int,
    epsilon: float,
) -> None:
    """The three launches on bank [T, NB, D] and prefix [T, D]; writes `out` and the scratch only.

    Args:
        streams: bank and prefix, BF16.
        weights: score_weight and out_weight [D], FP32.
    """
    bank, prefix = streams
    T, NB, D = bank.shape
    block = triton.next_power_of_2(D)
    small = min(BLOCK_MIX, block)
    _scores_kernel[(T, valid + 1)](
        bank, prefix, weights[0], scratch.scores, valid, NB, epsilon, D=D, BLOCK_D=block, num_warps=8
    )
    _mix_kernel[(T, triton.cdiv(D, small))](
        bank, prefix, scratch.scores, scratch.mix, valid, NB,
        D=D, BLOCK_D=small, BLOCK_R=triton.next_power_of_2(valid + 1), num_warps=4,
    )  # fmt: skip
    _norm_kernel[(T,)](scratch.mix, weights[1], out, epsilon, D=D, BLOCK_D=block, num_warps=8)
