"""A decode step of Kimi Delta Attention from a checkpoint and a ring of records, in torch.

It runs where no exported kernel may: on any device, without reading device memory on the host, with copies of the slots
that the requests name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kda_lab.dispatch.kda_recurrence import (
    BOUND,
    STEP,
    for_value_heads,
    log_decay,
    masked,
    normalised,
    read_out,
    read_slots,
    split_heads,
    write_slots,
)
from kda_lab.dispatch.torch_fallback import torch_fallback


@dataclass(frozen=True)
class _Rings:
    """The rings of the requests [B, …], FP32, with zeros where no record stands."""

    d: torch.Tensor
    """[B, HV, L, V]."""
    k: torch.Tensor
    """[B, HV, L, K]."""
    g: torch.Tensor
    last: torch.Tensor
    """[B, HV, K]: the entry of `g` behind the last record; 0 without records."""


@torch.no_grad()
def replay_decode(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    ring_d: torch.Tensor,
    ring_k: torch.Tensor,
    ring_g: torch.Tensor,
    write_positions: torch.Tensor,
    state_indices: torch.Tensor,
    *,
    lower_bound: float | None,
    circular: bool = False,
    predecayed: bool = False,
    force_flush: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token a request: its output, and a record in the ring or, where the ring is full, the state.

    Args:
        mixed_qkv, a, b, a_log, dt_bias, state_indices, lower_bound, out: as `kda.packed_decode`.
        state: [slots, HV, V, K] fp32, updated where a slot flushes.
        ring_d: [slots, HV, L, V] bf16, updated. ring_g: [slots, HV, L, K] fp32, updated: log-decays, or their sums so
            far with `predecayed`.
        ring_k: [slots, H, L, K], updated: normalised keys; [slots, HV, L, K] and divided by the decay with `predecayed`.
        write_positions: [slots] int32: records in the ring of a slot.
        circular: a full ring writes its history to the state and keeps this token as its first record.
        force_flush: every slot writes its state, this token included, and keeps no record.

    Returns:
        out; a row of padding is exactly zero.
    """
    (_, HV, V, K), L = state.shape, ring_d.shape[2]
    live = state_indices >= 0
    count = write_positions[state_indices.clamp(min=0).long()]
    rings = _read((ring_d, ring_k, ring_g), state_indices, count, HV)
    before = _present(read_slots(state, state_indices), rings, predecayed)
    q, k, v = split_heads(mixed_qkv, HV, V, K)
    g, key = log_decay(a, a_log, dt_bias, lower_bound), for_value_heads(normalised(k), HV)
    decayed = before * g.exp()[..., None, :]
    d = torch.sigmoid(b.float())[..., None] * (v - read_out(decayed, key))
    after = decayed + d[..., None] * key[..., None, :]
    shown = masked(read_out(after, for_value_heads(normalised(q), HV) * K**-0.5), live)

    full = count >= L - 1
    keeps_history = full & (circular and not force_flush and L > 1)
    flush = full | force_flush
    checkpoint = torch.where(keeps_history[:, None, None, None], before, after)
    place = torch.where(flush, 0, count)
    total = torch.where(flush[:, None, None], 0.0, rings.last) + g if predecayed else g
    record = key * (-total).exp() if predecayed else normalised(k)
    appends = live & (keeps_history | ~flush)
    records = ((ring_d, d), (ring_k, record), (ring_g, total))
    appended = [(ring, _appended(ring, state_indices, place, value)) for ring, value in records]
    # What is updated in place comes last: a call that fails before may be made again.
    out = (mixed_qkv.new_empty(len(shown), 1, HV, V) if out is None else out).copy_(shown[:, None])
    for ring, values in appended:
        write_slots(ring, state_indices, values, appends)
    write_slots(state, state_indices, checkpoint, live & flush)
    return out


def _read(
    rings: tuple[torch.Tensor, torch.Tensor, torch.Tensor], indices: torch.Tensor, count: torch.Tensor, HV: int
) -> _Rings:
    places = torch.arange(rings[0].shape[2], device=indices.device)
    held = (places < count[:, None])[:, None, :, None]
    d, k, g = (torch.where(held, read_slots(ring, indices), 0.0) for ring in rings)
    newest = (places == count[:, None] - 1)[:, None, :, None]
    return _Rings(d, for_value_heads(k, HV, axis=1), g, torch.where(newest, g, 0.0).sum(2))


def _present(state: torch.Tensor, rings: _Rings, predecayed: bool) -> torch.Tensor:
    """[B, HV, V, K]: the state that checkpoint and records stand for."""
    if predecayed:
        return (state + rings.d.mT @ rings.k) * rings.last.exp()[..., None, :]
    sums = rings.g.cumsum(2)
    total = sums[:, :, -1:]
    return state * total.exp() + rings.d.mT @ ((total - sums).exp() * rings.k)


def _appended(ring: torch.Tensor, indices: torch.Tensor, place: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Each request's ring [B, heads, L, width] with its value [B, heads, width] at its place [B]."""
    at = (torch.arange(ring.shape[2], device=ring.device) == place[:, None])[:, None, :, None]
    kept = ring[indices.clamp(min=0).long()]
    return torch.where(at, value[:, :, None].to(ring.dtype), kept)


_RING = {"dtypes": ["bfloat16"], "shape": ["S", "HV", "L", "V"]}

REPLAY_DECODE = torch_fallback(
    "kda.replay_decode",
    replay_decode,
    {
        "mixed_qkv": {"dtypes": ["bfloat16"], "shape": ["B", "C"]},
        **STEP,
        "state": {"dtypes": ["float32"], "shape": ["S", "HV", "V", "K"]},
        "ring_d": _RING,
        "ring_k": {"dtypes": ["bfloat16", "float32"], "shape": ["S", "H", "L", "K"]},
        "ring_g": {"dtypes": ["float32"], "shape": ["S", "HV", "L", "K"]},
        "write_positions": {"dtypes": ["int32"], "shape": ["S"]},
        "state_indices": {"dtypes": ["int32"], "shape": ["B"]},
        "out": {"dtypes": ["bfloat16"], "shape": ["B", 1, "HV", "V"], "optional": True},
    },
    {
        **BOUND,
        "circular": {"kind": "bool"},
        "predecayed": {"kind": "bool"},
        "force_flush": {"kind": "bool"},
    },
)
