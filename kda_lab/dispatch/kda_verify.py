"""Speculative verification of Kimi Delta Attention in torch: T drafted tokens a request with snapshots or with a ring.

Both functions leave the pools as they are; `fold` then applies the accepted tokens of the ring to the state. They run
on any device, without reading device memory on the host, with copies of the state slots that the requests name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from kda_lab.dispatch.kda_recurrence import (
    BOUND,
    DECAY,
    advance,
    convolved,
    for_value_heads,
    log_decay,
    masked,
    normalised,
    read_slots,
    split_heads,
    step,
    write_slots,
)
from kda_lab.dispatch.torch_fallback import torch_fallback


@dataclass(frozen=True)
class _Token:
    """What one drafted token of every request left behind; first axis B."""

    out: torch.Tensor
    window: torch.Tensor
    state: torch.Tensor
    k: torch.Tensor
    """[B, H, K], behind the convolution, before normalisation."""
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor


@torch.no_grad()
def verify_snapshots(
    mixed_qkv: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    *,
    lower_bound: float | None,
    out: torch.Tensor | None = None,
    windows: torch.Tensor | None = None,
    snapshots: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The outputs of T tokens a request, and window and state behind each of them.

    Args:
        mixed_qkv: [B, T, C] bf16, raw, C = 2·H·K + HV·V.
        conv_state: [slots, 3, C] bf16. conv_weight: [4, C] bf16.
        a: [B, T, HV·K] bf16. b: [B, T, HV] bf16. a_log: [HV] fp32. dt_bias: [HV·K] fp32.
        state: [slots, HV, V, K] fp32.
        state_indices: [B] int32; negative is padding.
        lower_bound: of the log-decay; None for the softplus gate.
        out: [B, T, HV, V] bf16, written; allocated when None. So windows [B, T, 3, C] bf16 and
            snapshots [B, T, HV, V, K] fp32.

    Returns:
        out, windows, snapshots; rows of padding are exactly zero.
    """
    (B, T, C), (_, HV, V, K) = mixed_qkv.shape, state.shape
    out = mixed_qkv.new_empty(B, T, HV, V) if out is None else out
    windows = mixed_qkv.new_empty(B, T, 3, C) if windows is None else windows
    snapshots = state.new_empty(B, T, HV, V, K) if snapshots is None else snapshots
    inputs = (mixed_qkv, conv_state, conv_weight, a, b, a_log, dt_bias, state, state_indices)
    for t, token in enumerate(_tokens(inputs, lower_bound)):
        out[:, t], windows[:, t], snapshots[:, t] = token.out, token.window, token.state
    return out, windows, snapshots


@torch.no_grad()
def verify_ring(
    mixed_qkv: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    *,
    lower_bound: float | None,
    out: torch.Tensor | None = None,
    windows: torch.Tensor | None = None,
    ring_k: torch.Tensor | None = None,
    ring_v: torch.Tensor | None = None,
    ring_g: torch.Tensor | None = None,
    ring_beta: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `verify_snapshots`, with what `fold` needs to make the states again in the place of the states.

    Args:
        ring_k: [B, T, H, K] bf16 and ring_v: [B, T, HV, V] bf16, behind the convolution, before normalisation;
            written; allocated when None.
        ring_g: [B, T, HV, K] fp32, log-decay. ring_beta: [B, T, HV] fp32, behind the sigmoid.
        The others: as `verify_snapshots`.

    Returns:
        out, windows, ring_k, ring_v, ring_g, ring_beta; rows of padding are exactly zero.
    """
    (B, T, C), (_, HV, V, K) = mixed_qkv.shape, state.shape
    H = (C - HV * V) // (2 * K)
    out = mixed_qkv.new_empty(B, T, HV, V) if out is None else out
    windows = mixed_qkv.new_empty(B, T, 3, C) if windows is None else windows
    ring_k = mixed_qkv.new_empty(B, T, H, K) if ring_k is None else ring_k
    ring_v = mixed_qkv.new_empty(B, T, HV, V) if ring_v is None else ring_v
    ring_g = state.new_empty(B, T, HV, K) if ring_g is None else ring_g
    ring_beta = state.new_empty(B, T, HV) if ring_beta is None else ring_beta
    inputs = (mixed_qkv, conv_state, conv_weight, a, b, a_log, dt_bias, state, state_indices)
    for t, token in enumerate(_tokens(inputs, lower_bound)):
        out[:, t], windows[:, t] = token.out, token.window
        ring_k[:, t], ring_v[:, t], ring_g[:, t], ring_beta[:, t] = token.k, token.v, token.g, token.beta
    return out, windows, ring_k, ring_v, ring_g, ring_beta


@torch.no_grad()
def fold(
    ring_k: torch.Tensor,
    ring_v: torch.Tensor,
    ring_g: torch.Tensor,
    ring_beta: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    accepted: torch.Tensor,
) -> torch.Tensor:
    """Apply the first `accepted[b]` tokens of each request's ring to its state, in every layer, in place.

    Args:
        ring_k: [layers, B, T, H, K] bf16. ring_v: [layers, B, T, HV, V] bf16.
        ring_g: [layers, B, T, HV, K] fp32. ring_beta: [layers, B, T, HV] fp32.
        state: [layers, slots, HV, V, K] fp32, updated.
        state_indices: [B] int32; negative is padding.
        accepted: [B] int32, 0 to T; a request with 0 keeps the bits of its state.

    Returns:
        state.
    """
    HV, live = state.shape[2], state_indices >= 0
    for layer, pool in enumerate(state):
        now = read_slots(pool, state_indices)
        for t in range(ring_k.shape[2]):
            k = for_value_heads(normalised(ring_k[layer, :, t].float()), HV)
            after = advance(now, k, ring_v[layer, :, t].float(), ring_g[layer, :, t], ring_beta[layer, :, t])
            now = torch.where((t < accepted)[:, None, None, None], after, now)
        write_slots(pool, state_indices, now, live)
    return state


def _tokens(inputs: Sequence[torch.Tensor], lower_bound: float | None) -> Iterator[_Token]:
    """Token after token of all requests; zero in the rows of padding."""
    mixed_qkv, conv_state, conv_weight, a, b, a_log, dt_bias, state, indices = inputs
    _, HV, V, K = state.shape
    live, now = indices >= 0, read_slots(state, indices)
    window = conv_state[indices.clamp(min=0).long()]
    for t in range(mixed_qkv.shape[1]):
        mixed, window = convolved(mixed_qkv[:, t], window, conv_weight)
        q, k, v = split_heads(mixed, HV, V, K)
        g, beta = log_decay(a[:, t], a_log, dt_bias, lower_bound), torch.sigmoid(b[:, t].float())
        now, out = step(now, q, k, v, g, beta)
        yield _Token(*(masked(part, live) for part in (out, window, now, k, v, g, beta)))


_DRAFT = {
    "mixed_qkv": {"dtypes": ["bfloat16"], "shape": ["B", "T", "C"]},
    "conv_state": {"dtypes": ["bfloat16"], "shape": ["S", 3, "C"]},
    "conv_weight": {"dtypes": ["bfloat16", "float32"], "shape": [4, "C"]},
    "a": {"dtypes": ["bfloat16"], "shape": ["B", "T", "A"]},
    "b": {"dtypes": ["bfloat16"], "shape": ["B", "T", "HV"]},
    **DECAY,
    "state": {"dtypes": ["float32"], "shape": ["S", "HV", "V", "K"]},
    "state_indices": {"dtypes": ["int32"], "shape": ["B"]},
    "out": {"dtypes": ["bfloat16"], "shape": ["B", "T", "HV", "V"], "optional": True},
    "windows": {"dtypes": ["bfloat16"], "shape": ["B", "T", 3, "C"], "optional": True},
}
_RING = {
    "ring_k": {"dtypes": ["bfloat16"], "shape": ["B", "T", "H", "K"]},
    "ring_v": {"dtypes": ["bfloat16"], "shape": ["B", "T", "HV", "V"]},
    "ring_g": {"dtypes": ["float32"], "shape": ["B", "T", "HV", "K"]},
    "ring_beta": {"dtypes": ["float32"], "shape": ["B", "T", "HV"]},
}

VERIFY_SNAPSHOTS = torch_fallback(
    "kda.verify_snapshots",
    verify_snapshots,
    {**_DRAFT, "snapshots": {"dtypes": ["float32"], "shape": ["B", "T", "HV", "V", "K"], "optional": True}},
    BOUND,
)
VERIFY_RING = torch_fallback(
    "kda.verify_ring",
    verify_ring,
    {**_DRAFT, **{name: {**gate, "optional": True} for name, gate in _RING.items()}},
    BOUND,
)
FOLD = torch_fallback(
    "kda.fold",
    fold,
    {
        **{name: {**gate, "shape": ["layers", *gate["shape"]]} for name, gate in _RING.items()},
        "state": {"dtypes": ["float32"], "shape": ["layers", "S", "HV", "V", "K"]},
        "state_indices": {"dtypes": ["int32"], "shape": ["B"]},
        "accepted": {"dtypes": ["int32"], "shape": ["B"]},
    },
    {},
)
