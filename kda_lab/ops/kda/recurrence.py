"""The recurrence of Kimi Delta Attention, token by token: what every faster form must equal.

A state S of one value head is [V, K] with K contiguous. One token does, in this order,

    S <- S · exp(g)            every key channel decays by its own factor
    d  = beta · (v - S k̂)      what the state should hold for this key, less what it does
    S <- S + d k̂ᵀ
    o  = S q̂                   read after the update

Leading axes (requests, heads) are free, and so is the dtype: all arguments have one. Nothing is written in place.
"""

from __future__ import annotations

import torch

from kda_lab.ops.kda.geometry import L2_EPSILON


def normalise_k(k: torch.Tensor) -> torch.Tensor:
    """k / sqrt(sum k² + 1e-6) along the last axis: epsilon is inside the root, so a zero row stays zero."""
    return k * torch.rsqrt(k.square().sum(-1, keepdim=True) + L2_EPSILON)


def normalise_q(q: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """The same for queries, times `scale`; None is 1/sqrt(K)."""
    return normalise_k(q) * (q.shape[-1] ** -0.5 if scale is None else scale)


def step(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token.

    Args:
        state: [..., V, K].
        q: [..., K], normalised and scaled.
        k: [..., K], normalised.
        v: [..., V].
        g: [..., K] log-decay; [..., 1] for one factor a head.
        beta: [...].

    Returns:
        Output [..., V] and the new state [..., V, K].
    """
    decayed = state * g.exp()[..., None, :]
    delta = beta[..., None] * (v - (decayed * k[..., None, :]).sum(-1))
    state = decayed + delta[..., None] * k[..., None, :]
    return (state * q[..., None, :]).sum(-1), state


def recurrent(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`step` for each of T tokens, which stand on the first axis of all arguments but the state.

    Returns:
        Outputs [T, ..., V] and the state after the last token; without tokens, no outputs and the given state.
    """
    outputs = []
    for token in zip(q, k, v, g, beta, strict=True):
        out, state = step(state, *token)
        outputs.append(out)
    return (torch.stack(outputs) if outputs else v.new_zeros(v.shape)), state
