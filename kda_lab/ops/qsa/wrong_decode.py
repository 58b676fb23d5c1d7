"""Attention of one query row a sequence with replaceable steps: what the mutants of both QSA decodes are made of.

Everything is FP32 on any device, and right with the defaults. A row is cut into splits of tiles, as the kernels cut
it, so that mistakes of the merge can be made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from kda_lab.ops.protocol import Call, Launcher
from kda_lab.ops.qsa.decode_shape import DecodeShape

TILE = 64
SPLITS = 8
MMA_ROWS = 16
"""Query rows of a tensor-core tile, of which a group of 12 heads fills 12."""

Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Maximum [G], sum [G] and accumulator [G, D] of one split, relative to that split's own maximum."""


def right_heads(shape: DecodeShape, g: int) -> list[int]:
    """Query heads of key head g: adjacent."""
    return list(range(g * shape.group, (g + 1) * shape.group))


def heads_modulo(shape: DecodeShape, g: int) -> list[int]:
    """The mistake h % HKV."""
    return list(range(g, shape.HQ, shape.HKV))


def right_merge(parts: list[Part]) -> torch.Tensor:
    """[G, D]: splits brought to one maximum, added and normalised."""
    top = torch.stack([m for m, _, _ in parts]).amax(0)
    weights = [torch.exp(m - top) for m, _, _ in parts]
    total = torch.stack([w * t for w, (_, t, _) in zip(weights, parts, strict=True)]).sum(0)
    acc = torch.stack([w[:, None] * a for w, (_, _, a) in zip(weights, parts, strict=True)]).sum(0)
    return acc / total[:, None]


def merge_without_rescale(parts: list[Part]) -> torch.Tensor:
    """The mistake of adding splits without their maxima."""
    total = torch.stack([t for _, t, _ in parts]).sum(0)
    return torch.stack([a for _, _, a in parts]).sum(0) / total[:, None]


def merge_first_only(parts: list[Part]) -> torch.Tensor:
    """The mistake of merging split 0 alone."""
    return parts[0][2] / parts[0][1][:, None]


@dataclass(frozen=True)
class Decode:
    """The op with replaceable steps; the defaults are right. A subclass says which rows each query row reads."""

    pools: ClassVar[tuple[str, str]]
    """Names of the tensors that hold K and V rows."""
    heads: Callable[[DecodeShape, int], list[int]] = right_heads
    """Query heads served by key head g."""
    factor: Callable[[float], float] = lambda scale: scale
    """From the call's scale to what multiplies the scores."""
    width: slice = field(default_factory=lambda: slice(None))
    """Part of D that the scores use."""
    merge: Callable[[list[Part]], torch.Tensor] = right_merge
    swapped: bool = False
    """K and V exchanged."""
    empty: float = 0.0
    """What a row without keys becomes."""

    def selected(self, call: Call) -> tuple[DecodeShape, Iterable[slice | torch.Tensor | None]]:
        """Axes of the call, and for each row what indexes its K and V rows; None where it has none."""
        raise NotImplementedError

    def output(self, call: Call) -> torch.Tensor:
        """[B, HQ, D] fp32."""
        shape, chosen = self.selected(call)
        names = reversed(self.pools) if self.swapped else self.pools
        q, (k, v) = call.inputs["q"], (call.inputs[name] for name in names)
        out = torch.full(q.shape, self.empty, dtype=torch.float32, device=q.device)
        for b, at in enumerate(chosen):
            if at is None:
                continue
            keys, values = k[at].float(), v[at].float()
            for g in range(shape.HKV):
                heads = self.heads(shape, g)
                scores = q[b, heads][:, self.width].float() @ keys[:, g, self.width].T * self.factor(shape.scale)
                out[b, heads] = self.merge(split(scores, values[:, g]))
        return out

    def __call__(self, call: Call) -> None:
        call.outputs["out"].copy_(self.output(call))

    def sixteen_heads(self, call: Call) -> None:
        """Store the padding rows of each group's tile too, over the heads that follow in memory."""
        shape, out = self.selected(call)[0], call.outputs["out"]
        right, start = self.output(call).to(out.dtype).view(-1, shape.D), out.storage_offset()
        room = (out.untyped_storage().nbytes() // out.element_size() - start) // shape.D
        memory = out.as_strided((room, shape.D), (shape.D, 1), start)
        for first in reversed(range(0, shape.B * shape.HQ, shape.group)):
            memory[first : first + shape.group] = right[first : first + shape.group]
            memory[first + shape.group : first + max(MMA_ROWS, shape.group)] = 0

    def half_output(self, call: Call) -> None:
        """Leave the second half of D unwritten."""
        half = call.outputs["out"].shape[2] // 2
        call.outputs["out"][:, :, :half] = self.output(call)[:, :, :half].to(call.outputs["out"].dtype)

    def counter_kept(self, call: Call) -> Launcher:
        """Each split counts up; the last arrival merges. Without a reset no later launch has a last arrival."""
        arrivals = 0

        def launch() -> None:
            nonlocal arrivals
            arrivals += SPLITS
            if arrivals == SPLITS:
                self(call)

        return launch


def split(scores: torch.Tensor, values: torch.Tensor) -> list[Part]:
    """The splits of one group: scores [G, L] and values [L, D], cut at tiles."""
    tiles = -(-scores.shape[1] // TILE)
    count = min(SPLITS, tiles)
    edges = [tiles * s // count * TILE for s in range(count)] + [scores.shape[1]]
    parts = []
    for first, last in itertools.pairwise(edges):
        top = scores[:, first:last].amax(1)
        p = torch.exp(scores[:, first:last] - top[:, None])
        parts.append((top, p.sum(1), p @ values[first:last]))
    return parts
