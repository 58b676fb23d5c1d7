"""Verification of draft tokens and the fold of an accepted prefix, in torch: the definition that all forms must equal.

A request verifies T tokens at once, and how many of them are accepted is known only afterwards. Its state cannot be
cut back, so verification leaves it alone and keeps either the state after every token (snapshots) or what the tokens
were (a ring of k, v, g and beta), from which `folded` makes the state of any prefix.

Axes: B requests, T tokens, H query and key heads, HV value heads, K and V channels, C = 2·H·K + HV·V channels of a row.
Float results have the dtype that is asked for; values that a kernel rounds to BF16 on the way are rounded here too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.convolution import convolve
from kda_lab.ops.kda.gate import beta, log_decay
from kda_lab.ops.kda.geometry import ROOM, query_head
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, step

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Heads:
    """Extents that the shapes of a call imply."""

    H: int
    HV: int
    K: int
    V: int

    @property
    def width(self) -> int:
        """Channels of a row of q, k and v."""
        return 2 * self.H * self.K + self.HV * self.V


@dataclass(frozen=True)
class Draft:
    """What the recurrence reads of T draft tokens; all of a request without a slot is zero."""

    q: torch.Tensor
    """[B, T, H, K] after the convolution, rounded to BF16, before normalisation."""
    k: torch.Tensor
    v: torch.Tensor
    """[B, T, HV, V]."""
    g: torch.Tensor
    """[B, T, HV, K] log-decay."""
    beta: torch.Tensor
    """[B, T, HV]."""
    windows: torch.Tensor
    """[B, T, 3, C] in the dtype of the convolution's state: its window after each token."""


def heads_of(width: int, state: torch.Tensor) -> Heads:
    """H, HV, K, V of rows of `width` channels beside a state [..., HV, V, K].

    Raises:
        ParameterError: what the values leave of a row is no whole number of query and key heads that divides HV.
    """
    HV, V, K = state.shape[-3:]
    H = (width - HV * V) // (2 * K)
    if H < 1 or width != 2 * H * K + HV * V or HV % H:
        allowed = f"2·H·{K} + {HV}·{V} with H dividing {HV}"
        raise ParameterError(ROOM, [Reason("mixed_qkv.shape[-1]", repr(width), allowed)])
    return Heads(H, HV, K, V)


def split_heads(rows: torch.Tensor, heads: Heads) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q and k [..., H, K] and v [..., HV, V] of rows [..., C]."""
    keys = heads.H * heads.K
    q, k, v = rows.split([keys, keys, heads.HV * heads.V], -1)
    return (
        q.unflatten(-1, (heads.H, heads.K)),
        k.unflatten(-1, (heads.H, heads.K)),
        v.unflatten(-1, (heads.HV, heads.V)),
    )


def to_value_heads(x: torch.Tensor, heads: Heads, axis: int = -2) -> torch.Tensor:
    """Query heads repeated for the value heads that read them, along `axis`."""
    return x.index_select(axis, query_head(heads.HV, heads.H).to(x.device))


def drafted(inputs: Tensors, lower_bound: float | None, dtype: torch.dtype) -> Draft:
    """Convolution and gates of T tokens a request: the inputs of `kda.verify_ring`, by name."""
    heads = heads_of(inputs["mixed_qkv"].shape[-1], inputs["state"])
    index = inputs["state_indices"].long()
    live = index >= 0
    conv_state = inputs["conv_state"][index.clamp(min=0)]
    qkv = inputs["mixed_qkv"]
    y, _ = convolve(qkv.to(dtype), inputs["conv_weight"].to(dtype), conv_state.to(dtype))
    padded = torch.cat([conv_state, qkv], 1)
    windows = torch.stack([padded[:, 1 + j : 1 + j + qkv.shape[1]] for j in range(3)], 2)
    q, k, v = split_heads(y.bfloat16().to(dtype), heads)
    g = log_decay(inputs["a"].to(dtype), inputs["a_log"].to(dtype), inputs["dt_bias"].to(dtype), lower_bound)
    strength = beta(inputs["b"].to(dtype))
    return Draft(*(masked(x, live) for x in (q, k, v, g, strength, windows)))


def masked(x: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """x [B, ...] with the requests that are not live set to zero."""
    return torch.where(live.view(-1, *[1] * (x.dim() - 1)), x, torch.zeros_like(x))


def states_of(pool: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """[B, ...] states of the requests, copied; zero for a request without a slot."""
    return masked(pool[indices.long().clamp(min=0)], indices >= 0)


def verified(draft: Draft, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the tokens from `state` [B, HV, V, K].

    Returns:
        Outputs [B, T, HV, V], unrounded, and the state after each token [B, T, HV, V, K].
    """
    heads = Heads(draft.k.shape[2], draft.v.shape[2], draft.k.shape[3], draft.v.shape[3])
    outs, states = [], []
    for t in range(draft.k.shape[1]):
        q = to_value_heads(normalise_q(draft.q[:, t]), heads)
        k = to_value_heads(normalise_k(draft.k[:, t]), heads)
        out, state = step(state, q, k, draft.v[:, t], draft.g[:, t], draft.beta[:, t])
        outs.append(out)
        states.append(state)
    return torch.stack(outs, 1), torch.stack(states, 1)


def prefix_states(ring: Tensors, state: torch.Tensor) -> torch.Tensor:
    """[T + 1, B, HV, V, K]: the state before the first token of a ring, and after each of them.

    Args:
        ring: `ring_k` [B, T, H, K], `ring_v`, `ring_g` and `ring_beta`, in the dtype of `state`.
        state: [B, HV, V, K].
    """
    k, v = ring["ring_k"], ring["ring_v"]
    heads = Heads(k.shape[-2], v.shape[-2], k.shape[-1], v.shape[-1])
    states = [state]
    for t in range(k.shape[1]):
        key = to_value_heads(normalise_k(k[:, t]), heads)
        decayed = states[-1] * ring["ring_g"][:, t].exp()[..., None, :]
        delta = ring["ring_beta"][:, t, :, None] * (v[:, t] - (decayed * key[..., None, :]).sum(-1))
        states.append(decayed + delta[..., None] * key[..., None, :])
    return torch.stack(states)


def folded(ring: Tensors, pool: torch.Tensor, indices: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
    """The pool [slots, HV, V, K] after the first `accepted[b]` tokens of each request: a new tensor.

    What lies behind a request's accepted tokens may be anything; slots that take no token keep their bits.
    """
    live = (indices >= 0) & (accepted > 0)
    tokens = ring["ring_k"].shape[1]
    taken = torch.arange(tokens, device=pool.device)[None] < torch.where(live, accepted, 0)[:, None]
    clean = {n: torch.where(taken.view(*taken.shape, *[1] * (t.dim() - 2)), t, 0) for n, t in ring.items()}
    states = prefix_states({n: t.to(pool.dtype) for n, t in clean.items()}, states_of(pool, indices))
    out = pool.clone()
    for b in live.nonzero()[:, 0].tolist():
        out[indices[b].long()] = states[int(accepted[b].clamp(max=tokens)), b]
    return out


def outputs_of(draft: Draft, state: torch.Tensor) -> Tensors:
    """Everything that either verify op writes, by name, from states [B, HV, V, K]; nothing is rounded further."""
    out, snapshots = verified(draft, state)
    ring = {"ring_k": draft.k, "ring_v": draft.v, "ring_g": draft.g, "ring_beta": draft.beta}
    return {"out": out, "windows": draft.windows.to(out.dtype), "snapshots": snapshots, **ring}
