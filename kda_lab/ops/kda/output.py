"""The norm and gate between the recurrence and the output projection."""

from __future__ import annotations

import torch


def gated_norm(o: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """o / sqrt(mean o² + epsilon) · weight · sigmoid(gate) along the last axis, unrounded.

    Args:
        o: [..., V]: one head's output; FP32 in a fused kernel, rounded to BF16 before where the steps are apart.
        gate: [..., V], raw.
        weight: [V].
        epsilon: above 0 where a row may be all zero.
    """
    scale = torch.rsqrt(o.square().mean(-1, keepdim=True) + epsilon)
    return o * scale * weight * torch.sigmoid(gate)
