"""Decode from a checkpoint and a ring of records, in torch: a state that is written every L tokens only.

With records j = 0 .. n-1 of (d_j, k̂_j, g_j) since the checkpoint S0, E_j = g_0 + ... + g_j and E = E_{n-1}, the state is

    S = S0 · exp(E) + sum_j d_j (exp(E - E_j) · k̂_j)ᵀ

A token appends its record where there is room. A ring has L places, of which L - 1 hold records: at write position L - 1
the call flushes. A full flush writes the state with the token in it and leaves the ring empty. A circular one writes the
state before the token, which becomes record 0; a forced flush is always full, and so is every flush of a ring of one
place. Pre-decayed rings hold exp(-E_j) · k̂_j for k̂_j and E_j for g_j.

Axes: HV value heads, L places, K and V channels; every function is about one request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.geometry import ROOM
from kda_lab.ops.kda.recurrence import step

MOST_PREDECAYED = 16
"""Longest ring with pre-decayed keys."""
MOST_DECAY = 80.0
"""Largest (L - 1)·|lower_bound| of them: exp(80) times a key fits into FP32 and BF16, and a token more does not harm."""


@dataclass(frozen=True)
class Modes:
    """The op's flags."""

    circular: bool = False
    predecayed: bool = False
    force_flush: bool = False


@dataclass(frozen=True)
class Memory:
    """Checkpoint and ring of one request."""

    state: torch.Tensor
    """[HV, V, K]."""
    d: torch.Tensor
    """[HV, L, V]."""
    k: torch.Tensor
    """[HV, L, K]; of the value heads, also where the op keeps one key for several of them."""
    g: torch.Tensor
    """[HV, L, K]."""
    position: int
    """Records in the ring."""

    @property
    def length(self) -> int:
        """Places of the ring."""
        return self.d.shape[1]


@dataclass(frozen=True)
class Token:
    """One token of one request, in value heads."""

    q: torch.Tensor
    """[HV, K], normalised and scaled."""
    k: torch.Tensor
    """[HV, K], normalised."""
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    """[HV]."""


def require_predecay(length: int, lower_bound: float | None, heads: tuple[int, int]) -> None:
    """Refuse pre-decayed keys where exp(-E) could leave its range, or a record would not belong to one value head.

    Args:
        heads: H and HV.

    Raises:
        ParameterError: L is not 2 to 16, (L - 1)·|lower_bound| is above 80 or there is no bound, or H is not HV.
    """
    found = []
    if not 2 <= length <= MOST_PREDECAYED:
        found.append(Reason("L", repr(length), f"2 to {MOST_PREDECAYED} with predecayed keys"))
    if lower_bound is None or (length - 1) * abs(lower_bound) > MOST_DECAY:
        allowed = f"(L - 1)·|lower_bound| of at most {MOST_DECAY:g} with predecayed keys; L is {length}"
        found.append(Reason("lower_bound", repr(lower_bound), allowed))
    if heads[0] != heads[1]:
        found.append(Reason("(H, HV)", repr(heads), "equal with predecayed keys"))
    if found:
        raise ParameterError(ROOM, found)


def present_state(memory: Memory, predecayed: bool = False) -> torch.Tensor:
    """[HV, V, K]: the state that checkpoint and records stand for."""
    n = memory.position
    if n == 0:
        return memory.state
    d, k, g = memory.d[:, :n], memory.k[:, :n], memory.g[:, :n]
    if predecayed:
        total = g[:, -1]
        return (memory.state + d.mT @ k) * total.exp()[:, None, :]
    sums = g.cumsum(1)
    total = sums[:, -1]
    return memory.state * total.exp()[:, None, :] + d.mT @ ((total[:, None] - sums).exp() * k)


def flushes(memory: Memory, modes: Modes) -> tuple[bool, bool]:
    """Whether this token's call writes the checkpoint, and whether it appends a record."""
    natural = memory.position >= memory.length - 1
    flush = natural or modes.force_flush
    history = modes.circular and natural and not modes.force_flush and memory.length > 1
    return flush, history or not flush


def decode(memory: Memory, token: Token, modes: Modes) -> tuple[torch.Tensor, Memory]:
    """One token.

    Returns:
        Output [HV, V], and checkpoint, ring and position after it. Nothing is written in place; places of the ring
        that get no record keep their bits.
    """
    before = present_state(memory, modes.predecayed)
    out, after = step(before, token.q, token.k, token.v, token.g, token.beta)
    flush, appends = flushes(memory, modes)
    if not appends:
        return out, replace(memory, state=after, position=0)
    decayed = before * token.g.exp()[:, None, :]
    d = token.beta[:, None] * (token.v - (decayed * token.k[:, None, :]).sum(-1))
    at = 0 if flush else memory.position
    earlier = memory.g[:, at - 1] if at and modes.predecayed else torch.zeros_like(token.g)
    total = earlier + token.g
    key = token.k * (-total).exp() if modes.predecayed else token.k
    records = {"d": d, "k": key, "g": total if modes.predecayed else token.g}
    rings = {n: _with_record(getattr(memory, n), at, value) for n, value in records.items()}
    return out, replace(memory, state=before if flush else memory.state, position=at + 1, **rings)


def _with_record(ring: torch.Tensor, at: int, value: torch.Tensor) -> torch.Tensor:
    ring = ring.clone()
    ring[:, at] = value
    return ring
