"""Builders of the projection weights: five plain ones, three fused ones on the same memory, the low-rank form.

Axes: D width of x, P features of one rank, H its heads, r rank of the decay gate. A weight is [rows, columns] as
`torch.nn.functional.linear` takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.projection.sizes import ROOM, ROW_MULTIPLE, Splits


@dataclass(frozen=True)
class FiveWeights:
    """What the unfused arm multiplies by."""

    qkv: torch.Tensor
    """[3P, D]"""
    b: torch.Tensor
    """[H, D]"""
    f_a: torch.Tensor
    """[r, D]"""
    f_b: torch.Tensor
    """[P, r]"""
    gate: torch.Tensor
    """[P, D]"""


@dataclass(frozen=True)
class MergedBfa:
    """The small fused weight, and the two it replaces as views of it."""

    buffer: torch.Tensor
    """[r + H padded to 8, D]; the padding is zero."""
    f_a: torch.Tensor
    b: torch.Tensor

    @property
    def rows(self) -> tuple[int, int, int]:
        """Rows of f_a, of b and of the padding: how a result is split."""
        return len(self.f_a), len(self.b), len(self.buffer) - len(self.f_a) - len(self.b)


@dataclass(frozen=True)
class FusedWeights:
    """What the fused arms multiply by."""

    qkvg: torch.Tensor
    """[4P, D]"""
    bfa: MergedBfa
    f_b: torch.Tensor
    """[P, r]"""

    @property
    def five(self) -> FiveWeights:
        """The unfused weights as views of these: both arms read the very same bytes."""
        qkv = 3 * (len(self.qkvg) // 4)
        return FiveWeights(self.qkvg[:qkv], self.bfa.b, self.bfa.f_a, self.f_b, self.qkvg[qkv:])


@dataclass(frozen=True)
class LowRankWeights:
    """Fused form where the output gate is a product of two weights too: one GEMM, then one batch of two."""

    first: torch.Tensor
    """[3P + H + 2r, D]: q, k, v, b, f_a, g_a; every rank of a group holds f_a and g_a whole."""
    second: torch.Tensor
    """[2, P, r]: f_b and g_b."""
    rows: tuple[int, int, int]
    """3P, H and 2r."""


def fuse_qkvg(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """[4P, D]: the rows of q, k, v and the output gate below each other.

    Raises:
        ParameterError: they are not of one shape and dtype.
    """
    parts = (q, k, v, gate)
    if len({(t.shape, t.dtype) for t in parts}) != 1 or q.dim() != 2:
        given = repr([(tuple(t.shape), str(t.dtype)) for t in parts])
        raise ParameterError(ROOM, [Reason("q, k, v, gate", given, "four matrices of one shape and dtype")])
    return torch.cat(parts)


def merge_bfa(b: torch.Tensor | None, f_a: torch.Tensor | None, f_b: torch.Tensor | None) -> MergedBfa | None:
    """f_a, then b, then zero rows up to a multiple of 8 in one buffer; None when any of the three weights is missing.

    The returned f_a and b share the buffer's memory, so that a later update in place of either reaches the fused GEMM.
    f_b is not merged; it is asked for because the fused path needs it.

    Raises:
        ParameterError: b and f_a differ in width or dtype.
    """
    if b is None or f_a is None or f_b is None:
        return None
    if b.shape[1:] != f_a.shape[1:] or b.dtype != f_a.dtype:
        given = f"{tuple(b.shape)} {b.dtype} and {tuple(f_a.shape)} {f_a.dtype}"
        raise ParameterError(ROOM, [Reason("b and f_a", given, "one width and dtype")])
    split = len(f_a)
    rows = split + len(b)
    buffer = torch.zeros(-(-rows // ROW_MULTIPLE) * ROW_MULTIPLE, b.shape[1], dtype=b.dtype, device=b.device)
    buffer[:split], buffer[split:rows] = f_a, b
    return MergedBfa(buffer, buffer[:split], buffer[split:rows])


def fuse_low_rank(
    qkvb: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    first: tuple[torch.Tensor, torch.Tensor],
    second: tuple[torch.Tensor, torch.Tensor],
) -> LowRankWeights:
    """The low-rank form.

    Args:
        qkvb: weights of q, k, v [P, D] and b [H, D].
        first: f_a and g_a [r, D].
        second: f_b and g_b [P, r].

    Raises:
        ParameterError: the two gates differ in shape.
    """
    if first[0].shape != first[1].shape or second[0].shape != second[1].shape:
        given = repr([tuple(t.shape) for t in (*first, *second)])
        raise ParameterError(ROOM, [Reason("f_a, g_a, f_b, g_b", given, "two pairs of one shape each")])
    qkv, heads = sum(len(t) for t in qkvb[:3]), len(qkvb[3])
    return LowRankWeights(torch.cat([*qkvb, *first]), torch.stack(second), (qkv, heads, 2 * len(first[0])))


def draw(size: Splits, seed: int, device: torch.device | str = "cpu") -> FusedWeights:
    """Random BF16 weights of one rank, normal, scaled so that results have the size of x.

    Random, since weights of one value would let any mix-up of rows pass and draw less power than real ones.
    """
    generator = torch.Generator(device).manual_seed(seed)
    fill: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}

    def normal(rows: int, columns: int) -> torch.Tensor:
        # In BF16 from the start: an FP32 draw of the large weight would take its size twice more.
        return torch.empty(rows, columns, **fill).normal_(0.0, columns**-0.5, generator=generator)

    hidden, rank = size.model.hidden, size.model.rank
    f_b = normal(size.projection, rank)
    merged = merge_bfa(normal(size.heads, hidden), normal(rank, hidden), f_b)
    if merged is None:
        raise ParameterError(ROOM, "weights are missing. Draw all of them.")
    return FusedWeights(normal(size.qkvg, hidden), merged, f_b)
