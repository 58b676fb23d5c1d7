"""The arms: five GEMMs one after another, three fused ones, and three of which two run on a side stream.

Results of the fused arms are views of wider rows: qkv and gate with row stride 4P, b with that of the small GEMM. What
reads them has to take a row stride.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import linear

from kda_lab.projection.policy import uses_side_stream
from kda_lab.projection.weights import FiveWeights, FusedWeights, LowRankWeights

OUTPUTS = ("qkv", "gate", "b", "a")
FIVE, THREE, SIDE = "five", "three", "three_side"
CONTROL = "five_again"
"""The unfused arm once more, for the A/A control."""
GEMMS = {FIVE: 5, THREE: 3, SIDE: 3, CONTROL: 5}


@dataclass(frozen=True)
class Projected:
    """Results for M tokens, BF16; each may be a view with a row stride."""

    qkv: torch.Tensor
    """[M, 3P]"""
    gate: torch.Tensor
    """[M, P]"""
    b: torch.Tensor
    """[M, H]"""
    a: torch.Tensor
    """[M, P]"""


class SideStream(Protocol):
    """A second stream beside the current one."""

    def fork(self) -> None:
        """Make the side stream wait for what the main stream has enqueued."""
        ...

    def on_side(self) -> AbstractContextManager[object]:
        """What is launched inside goes to the side stream."""
        ...

    def join(self) -> None:
        """Make the main stream wait for the side stream."""
        ...


class CudaSideStream:
    """A side stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def fork(self) -> None:
        """See `SideStream.fork`."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def on_side(self) -> AbstractContextManager[object]:
        """See `SideStream.on_side`."""
        return torch.cuda.stream(self.stream)

    def join(self) -> None:
        """See `SideStream.join`."""
        torch.cuda.current_stream(self.device).wait_stream(self.stream)


@dataclass(frozen=True)
class SideRule:
    """A side stream and when it is used."""

    side: SideStream | None
    limit: int
    """Most tokens, from `policy.side_token_limit`."""
    capturing: Callable[[], bool]

    def applies(self, tokens: int) -> bool:
        """Whether a launch of so many tokens uses the side stream now."""
        return uses_side_stream(tokens, present=self.side is not None, capturing=self.capturing(), limit=self.limit)


def capturing() -> bool:
    """Whether the current stream is being captured; False without CUDA."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def five(x: torch.Tensor, weights: FiveWeights) -> Projected:
    """Five GEMMs; `x` is [M, D] bf16. Between the two of the decay gate the result is rounded to BF16."""
    qkv = linear(x, weights.qkv)
    b = linear(x, weights.b)
    a = linear(linear(x, weights.f_a), weights.f_b)
    return Projected(qkv, linear(x, weights.gate), b, a)


def three(x: torch.Tensor, weights: FusedWeights) -> Projected:
    """Three GEMMs, one after another."""
    qkv, gate = _large(x, weights)
    return Projected(qkv, gate, *_small(x, weights))


def three_side(x: torch.Tensor, weights: FusedWeights, rule: SideRule) -> Projected:
    """Three GEMMs, the two small ones beside the large one where the rule says so; else `three`.

    The large one is enqueued first. Both streams meet again before the results are handed out.
    """
    side = rule.side
    if side is None or not rule.applies(x.shape[0]):
        return three(x, weights)
    side.fork()
    qkv, gate = _large(x, weights)
    with side.on_side():
        b, a = _small(x, weights)
    side.join()
    return Projected(qkv, gate, b, a)


def low_rank(x: torch.Tensor, weights: LowRankWeights) -> Projected:
    """One GEMM and a batch of two: the form of checkpoints whose output gate is a product of two weights."""
    qkv, b, inner = linear(x, weights.first).split(weights.rows, dim=1)
    pairs = inner.unflatten(1, (2, -1)).transpose(0, 1)  # [2, M, r]
    a, gate = torch.bmm(pairs, weights.second.transpose(1, 2)).unbind(0)
    return Projected(qkv, gate, b, a)


def exact(x: torch.Tensor, weights: FiveWeights) -> Projected:
    """The results in FP64, the BF16 rounding inside the decay gate left out."""
    wide = x.double()
    qkv, gate, b = (wide @ w.double().T for w in (weights.qkv, weights.gate, weights.b))
    return Projected(qkv, gate, b, wide @ weights.f_a.double().T @ weights.f_b.double().T)


def _large(x: torch.Tensor, weights: FusedWeights) -> tuple[torch.Tensor, torch.Tensor]:
    whole = linear(x, weights.qkvg)
    qkv = 3 * (whole.shape[1] // 4)
    return whole[:, :qkv], whole[:, qkv:]


def _small(x: torch.Tensor, weights: FusedWeights) -> tuple[torch.Tensor, torch.Tensor]:
    f_a, b, _ = linear(x, weights.bfa.buffer).split(weights.bfa.rows, dim=1)
    return b, linear(f_a, weights.f_b)
