"""What `qsa.packed_decode` must compute: two trusted references, one independent check, one emulation.

out[b, h] = sum_i softmax_i(scale · q[b, h] · k[i, g]) · v[i, g],   i in [cu_k[b], cu_k[b+1]),  g = h // (HQ // HKV)

A row without keys gives exactly 0. Axes: B rows, HQ query heads, HKV key heads, D width, N packed rows.
All functions read the lengths on the host, so none of them may run inside graph capture.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.precision import full_fp32
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa.decode_shape import DecodeShape

ROOM = "qsa.packed_decode"


@dataclass(frozen=True)
class Geometry(DecodeShape):
    """Host-side facts of a call, read from its tensors."""

    starts: tuple[int, ...]
    """[B+1] row offsets: row b owns the packed rows starts[b] to starts[b+1] - 1."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(end - start for start, end in itertools.pairwise(self.starts))


def geometry(call: Call) -> Geometry:
    """Axes, row offsets and scale of a call; reads `cu_seqlens_k` on the host.

    Raises:
        ParameterError: the head counts do not divide, or the offsets leave the K and V buffers.
    """
    q, k = call.inputs["q"], call.inputs["k"]
    starts = tuple(int(at) for at in call.inputs["cu_seqlens_k"].tolist())
    heads, kv_heads, width = q.shape[1], k.shape[1], q.shape[2]
    reasons = []
    if heads % kv_heads:
        reasons.append(Reason("q.shape[1]", repr(heads), f"a multiple of k.shape[1], {kv_heads}"))
    if list(starts) != sorted(starts) or starts[0] < 0 or starts[-1] > k.shape[0]:
        reasons.append(Reason("cu_seqlens_k", repr(starts[-1]), f"ascending offsets up to {k.shape[0]}, the rows of k"))
    if reasons:
        raise ParameterError(ROOM, reasons)
    given = call.scalars.get("softmax_scale")
    scale = width**-0.5 if given is None else float(given)
    return Geometry(len(starts) - 1, heads, kv_heads, width, scale, starts)


def oracle_fp32(call: Call) -> dict[str, torch.Tensor]:
    """The op in FP32 throughout, unrounded: `{"out": [B, HQ, D] fp32}` on the call's device.

    TF32 is switched off for its matrix products whatever the process has set.
    """
    with full_fp32():
        return {"out": _attend(call, torch.float32)}


def oracle_fp64(call: Call) -> dict[str, torch.Tensor]:
    """The op in FP64 throughout, the arbiter: `{"out": [B, HQ, D] fp64}` on the call's device."""
    return {"out": _attend(call, torch.float64)}


def oracle_masked(call: Call) -> dict[str, torch.Tensor]:
    """The same in FP64 by another road: every query against every packed row under a boolean mask.

    Independent of slicing and of the per-row loop, but O(B · HQ · N) memory: for small calls.
    """
    shape = geometry(call)
    q = call.inputs["q"].double()
    rows = torch.arange(call.inputs["k"].shape[0], device=q.device)
    starts = call.inputs["cu_seqlens_k"].long()
    mine = (rows >= starts[:-1, None]) & (rows < starts[1:, None])
    live = mine.any(0)[:, None, None]
    # Rows behind the live end may hold NaN, which a zero weight would not silence.
    k = torch.where(live, call.inputs["k"].double(), 0.0).repeat_interleave(shape.group, dim=1)
    v = torch.where(live, call.inputs["v"].double(), 0.0).repeat_interleave(shape.group, dim=1)
    scores = torch.einsum("bhd,nhd->bhn", q, k) * shape.scale
    weights = scores.masked_fill(~mine[:, None, :], float("-inf")).softmax(-1)
    out = torch.einsum("bhn,nhd->bhd", weights.nan_to_num(0.0), v)
    return {"out": out}


def emulate(call: Call, splits: int = 1, tile: int = 64) -> dict[str, torch.Tensor]:
    """What a correct BF16 tensor-core kernel returns: `{"out": [B, HQ, D] bf16}`.

    Base-2 online softmax over tiles; P is rounded to BF16 against the running maximum of its tile, the
    sum adds the unrounded P, every accumulation is FP32, splits are merged by their maxima, and one
    rounding to BF16 ends it. Its distance to `oracle_fp64` is the floor below which no such kernel gets.

    Args:
        splits: into how many parts the tiles of a row are cut (fewer where a row has fewer tiles).
        tile: packed rows a tile.
    """
    shape = geometry(call)
    out = torch.zeros_like(call.inputs["q"])
    with full_fp32():
        for b, (start, end) in enumerate(itertools.pairwise(shape.starts)):
            if end > start:
                out[b] = _emulate_row(call, shape, b, splits, tile).to(out.dtype)
    return {"out": out}


def _attend(call: Call, dtype: torch.dtype) -> torch.Tensor:
    shape = geometry(call)
    q = call.inputs["q"].to(dtype).view(-1, shape.HKV, shape.group, shape.D)
    out = torch.zeros_like(q)
    for b, (start, end) in enumerate(itertools.pairwise(shape.starts)):
        if end > start:
            k = call.inputs["k"][start:end].to(dtype).permute(1, 2, 0)  # [HKV, D, L]
            v = call.inputs["v"][start:end].to(dtype).transpose(0, 1)  # [HKV, L, D]
            out[b] = torch.softmax(q[b] @ k * shape.scale, dim=-1) @ v
    return out.view(-1, shape.HQ, shape.D)


def _emulate_row(call: Call, shape: Geometry, b: int, splits: int, tile: int) -> torch.Tensor:
    start, end = shape.starts[b], shape.starts[b + 1]
    tiles = -(-(end - start) // tile)
    padded = torch.nn.functional.pad
    fill = tiles * tile - (end - start)
    q = call.inputs["q"][b].float().view(shape.HKV, shape.group, shape.D)
    k = call.inputs["k"][start:end].float().permute(1, 2, 0)
    v = padded(call.inputs["v"][start:end].float(), (0, 0, 0, 0, 0, fill))
    v = v.view(tiles, tile, shape.HKV, shape.D).permute(2, 0, 1, 3)  # [HKV, tiles, tile, D]
    scores = padded(q @ k * (shape.scale * math.log2(math.e)), (0, fill), value=float("-inf"))
    scores = scores.view(shape.HKV, shape.group, tiles, tile)
    parts = []
    for first, last in _cut(tiles, splits):
        part = scores[:, :, first:last]
        running = part.amax(-1).cummax(-1).values  # [HKV, group, tiles]
        p = torch.exp2(part - running[..., None])
        rescale = torch.exp2(running - running[..., -1:])
        total = (p.sum(-1) * rescale).sum(-1)
        pv = p.bfloat16().float().transpose(1, 2) @ v[:, first:last]  # [HKV, tiles, group, D]
        parts.append((running[..., -1], total, (pv.transpose(1, 2) * rescale[..., None]).sum(2)))
    top = torch.stack([m for m, _, _ in parts]).amax(0)
    weights = [torch.exp2(m - top) for m, _, _ in parts]
    total = torch.stack([w * t for w, (_, t, _) in zip(weights, parts, strict=True)]).sum(0)
    acc = torch.stack([w[..., None] * a for w, (_, _, a) in zip(weights, parts, strict=True)]).sum(0)
    return (acc / total[..., None]).view(shape.HQ, shape.D)


def _cut(tiles: int, splits: int) -> list[tuple[int, int]]:
    splits = max(1, min(splits, tiles))
    return [(tiles * s // splits, tiles * (s + 1) // splits) for s in range(splits)]
