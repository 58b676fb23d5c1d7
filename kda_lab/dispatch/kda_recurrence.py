"""What the torch functions of Kimi Delta Attention (KDA) share: slots of a pool, gate, convolution, one step of the state.

Nothing here reads device memory on the host, so that a call can be captured in a graph. All arithmetic is in FP32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

L2_EPSILON = 1e-6
"""Inside the root that normalises q and k."""
DECAY: dict[str, dict[str, Any]] = {
    "a_log": {"dtypes": ["float32"], "shape": ["HV"]},
    "dt_bias": {"dtypes": ["float32"], "shape": ["A"]},
}
"""Gates of the weights of the log-decay; A is HV·K."""
STEP: dict[str, dict[str, Any]] = {
    "a": {"dtypes": ["bfloat16"], "shape": ["B", "A"]},
    "b": {"dtypes": ["bfloat16"], "shape": ["B", "HV"]},
    **DECAY,
}
"""Gates of what the decay and β of one token a request are made of."""
BOUND: dict[str, dict[str, Any]] = {"lower_bound": {"kind": "float", "optional": True}}
"""Gate of the log-decay's bound."""


def read_slots(pool: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """A copy of the slots that `indices` name, in FP32; a negative index reads slot 0, for the caller to mask.

    Args:
        pool: [slots, …], any strides.
        indices: [B] int32.
    """
    return pool[indices.clamp(min=0).long()].float()


def write_slots(pool: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, where: torch.Tensor) -> None:
    """Write `values[b]` into slot `indices[b]` for the rows with `where[b]`; all other slots keep their bits.

    A row that may not write repeats the write of the first one that may, or the bits of its own slot where there is
    none: which rows write is known on the device only, and equal writes cannot race.

    Args:
        pool: [slots, …], any strides, written.
        indices: [B] int32, distinct where `where` holds.
        values: [B, …]; rounded to the dtype of the pool.
        where: [B] bool.
    """
    if indices.numel() == 0:
        return
    rows = torch.arange(indices.numel(), device=indices.device)
    chosen = torch.where(where, rows, where.int().argmax())
    target = indices[chosen].clamp(min=0).long()
    wide = where.any().view(-1, *[1] * (pool.dim() - 1))
    pool[target] = torch.where(wide, values.to(pool.dtype)[chosen], pool[target])


def masked(values: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """`values` [B, …], exactly zero in the rows without `where` [B]."""
    return torch.where(where.view(-1, *[1] * (values.dim() - 1)), values, 0.0)


def log_decay(a: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, lower_bound: float | None) -> torch.Tensor:
    """The logarithm of the decay, at most 0: [..., HV, K] FP32 of raw gates `a` [..., HV·K].

    -e^a_log · softplus(a + dt_bias); with a lower bound lb, lb · sigmoid(e^a_log · (a + dt_bias)).
    """
    x = (a.float() + dt_bias).unflatten(-1, (a_log.shape[0], -1))
    rate = a_log.exp()[:, None]
    # Softplus is its argument above 20, as torch has it.
    return -rate * functional.softplus(x) if lower_bound is None else lower_bound * torch.sigmoid(rate * x)


def normalised(x: torch.Tensor) -> torch.Tensor:
    """`x` over the root of the sum of its squares along the last axis plus `L2_EPSILON`."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPSILON)


def for_value_heads(x: torch.Tensor, count: int, axis: int = -2) -> torch.Tensor:
    """Query or key heads repeated for `count` value heads: value head h reads head h // (HV / H)."""
    return x.repeat_interleave(count // x.shape[axis], dim=axis)


def split_heads(
    mixed: torch.Tensor, value_heads: int, value_width: int, key_width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k [..., H, K] and v [..., HV, V] in FP32 of `mixed` [..., 2·H·K + HV·V]: q heads, k heads, v heads."""
    keys = (mixed.shape[-1] - value_heads * value_width) // 2
    q, k, v = mixed.float().split((keys, keys, value_heads * value_width), dim=-1)
    return (
        q.unflatten(-1, (-1, key_width)),
        k.unflatten(-1, (-1, key_width)),
        v.unflatten(-1, (value_heads, value_width)),
    )


def convolved(x: torch.Tensor, window: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The causal convolution of width 4 and SiLU of one token a request, rounded to BF16, and the window behind it.

    Args:
        x: [B, C] bf16, raw.
        window: [B, 3, C], the three tokens before, oldest first.
        weight: [4, C], oldest first.

    Returns:
        [B, C] bf16 and [B, 3, C] in the dtype of x.
    """
    taps = torch.cat([window.to(x.dtype), x[:, None]], dim=1)
    y = functional.silu((taps.float() * weight.float()).sum(1))
    return y.to(torch.bfloat16), taps[:, 1:]


def advance(state: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """The state [..., V, K] after a token: S ← S e^g; S ← S + β (v - S k̂) k̂ᵀ.

    Args:
        k, g: [..., K]; k is normalised.
        v: [..., V].
        beta: [...].
    """
    state = state * g.exp()[..., None, :]
    delta = beta[..., None] * (v - read_out(state, k))
    return state + delta[..., :, None] * k[..., None, :]


def read_out(state: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """S q: [..., V] of a state [..., V, K] and q [..., K]."""
    return (state @ q[..., None])[..., 0]


def step(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state [..., HV, V, K] after a token and what the token reads from it, [..., HV, V].

    Args:
        q, k: [..., H, K], before normalisation.
        v: [..., HV, V]. g: [..., HV, K]. beta: [..., HV].
    """
    HV, K = state.shape[-3], state.shape[-1]
    after = advance(state, for_value_heads(normalised(k), HV), v, g, beta)
    return after, read_out(after, for_value_heads(normalised(q), HV) * K**-0.5)
