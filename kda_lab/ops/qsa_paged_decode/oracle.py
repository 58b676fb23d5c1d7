"""What `qsa.paged_decode` must compute: two trusted references, one independent check, one emulation.

A column c of row b is valid where 0 <= tokens[b, c] < lengths[b]; -1 marks a hole, wherever it stands. Its slot is
s = req_to_slot[requests[b], tokens[b, c]], and over the valid columns

    out[b, h] = sum_c softmax_c(scale · q[b, h] · k_pool[s_c, g]) · v_pool[s_c, g],   g = h // (HQ // HKV)

A row without a valid column gives exactly 0; a token that is named twice counts twice. Axes: B rows, HQ query heads,
HKV key heads, D width, W columns, S pool slots, R requests. Slots that no valid column names may hold NaN.
All functions read the selection on the host, so none of them may run inside graph capture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.precision import full_fp32
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa.decode_shape import DecodeShape

ROOM = "qsa.paged_decode"


@dataclass(frozen=True)
class Geometry(DecodeShape):
    """Facts of a call, read from its tensors."""

    slots: tuple[torch.Tensor, ...]
    """For each row the slots of its valid columns, int64 on the call's device, in the order of the columns."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Valid columns of each row."""
        return tuple(len(found) for found in self.slots)


def valid_columns(call: Call) -> torch.Tensor:
    """[B, W] bool: the columns that name a token of their row's sequence."""
    tokens = call.inputs["tokens"]
    return (tokens >= 0) & (tokens < call.inputs["lengths"][:, None])


def slots_of(call: Call, valid: torch.Tensor) -> torch.Tensor:
    """[B, W] int64: each column's pool slot; 0 where the column is not valid."""
    tokens = torch.where(valid, call.inputs["tokens"], 0).long()
    found = call.inputs["req_to_slot"][call.inputs["requests"].long()[:, None], tokens].long()
    return torch.where(valid, found, 0)


def geometry(call: Call) -> Geometry:
    """Axes, slots and scale of a call; reads the selection on the host.

    Raises:
        ParameterError: the head counts do not divide, or a valid column leaves the table or the pool.
    """
    q, k_pool, table = call.inputs["q"], call.inputs["k_pool"], call.inputs["req_to_slot"]
    valid, reasons = valid_columns(call), []
    heads, kv_heads, width = q.shape[1], k_pool.shape[1], q.shape[2]
    if heads % kv_heads:
        reasons.append(Reason("q.shape[1]", repr(heads), f"a multiple of k_pool.shape[1], {kv_heads}"))
    rows, longest = call.inputs["requests"], int(torch.where(valid, call.inputs["tokens"], 0).max())
    if int(rows.min()) < 0 or int(rows.max()) >= table.shape[0]:
        reasons.append(Reason("requests", repr(rows.tolist()), f"0 to {table.shape[0] - 1}, the rows of req_to_slot"))
    if longest >= table.shape[1]:
        reasons.append(Reason("tokens", repr(longest), f"below {table.shape[1]}, the columns of req_to_slot"))
    if reasons:
        raise ParameterError(ROOM, reasons)
    slots = slots_of(call, valid)
    if int(slots.min()) < 0 or int(slots.max()) >= k_pool.shape[0]:
        given = f"{int(slots.min())} to {int(slots.max())}"
        raise ParameterError(ROOM, [Reason("req_to_slot", given, f"0 to {k_pool.shape[0] - 1}, the slots of the pool")])
    given_scale = call.scalars.get("softmax_scale")
    scale = width**-0.5 if given_scale is None else float(given_scale)
    return Geometry(q.shape[0], heads, kv_heads, width, scale, tuple(slots[b][valid[b]] for b in range(q.shape[0])))


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
    """The same in FP64 by another road: every query against every slot of the pool under a boolean mask.

    Independent of compaction, of the order of the columns and of any offset. O(B · HQ · S) memory, and each slot
    counts once: for small calls whose rows name no token twice.
    """
    q, k_pool, v_pool = (call.inputs[name].double() for name in ("q", "k_pool", "v_pool"))
    tokens, table = call.inputs["tokens"].long(), call.inputs["req_to_slot"].long()
    batch, group = q.shape[0], q.shape[1] // k_pool.shape[1]
    # Column T of a token that is not valid is cut off: a scatter may write it without harm.
    chosen = torch.zeros(batch, table.shape[1] + 1, dtype=torch.bool, device=q.device)
    dead = (tokens < 0) | (tokens >= call.inputs["lengths"].long()[:, None])
    chosen.scatter_(1, tokens.masked_fill(dead, table.shape[1]), True)
    mine = torch.zeros(batch, k_pool.shape[0], dtype=torch.bool, device=q.device)
    for b, request in enumerate(call.inputs["requests"].tolist()):
        mine[b, table[request][chosen[b, :-1]]] = True
    live = mine.any(0)[:, None, None]
    # Slots that no row names may hold NaN, which a zero weight would not silence.
    k = torch.where(live, k_pool, 0.0).repeat_interleave(group, dim=1)
    v = torch.where(live, v_pool, 0.0).repeat_interleave(group, dim=1)
    given = call.scalars.get("softmax_scale")
    scores = torch.einsum("bhd,shd->bhs", q, k) * (q.shape[2] ** -0.5 if given is None else float(given))
    weights = scores.masked_fill(~mine[:, None, :], float("-inf")).softmax(-1)
    return {"out": torch.einsum("bhs,shd->bhd", weights.nan_to_num(0.0), v)}


def emulate(call: Call, splits: int = 1, tile: int = 64) -> dict[str, torch.Tensor]:
    """What a correct BF16 tensor-core kernel returns: `{"out": [B, HQ, D] bf16}`.

    Base-2 online softmax over tiles of valid columns; P is rounded to BF16 against the running maximum of its tile,
    the sum adds the unrounded P, every accumulation is FP32, splits are merged by their maxima, and one rounding to
    BF16 ends it. Its distance to `oracle_fp64` is the floor below which no such kernel gets.

    Args:
        splits: into how many parts the tiles of a row are cut (fewer where a row has fewer tiles).
        tile: valid columns a tile.
    """
    shape = geometry(call)
    out = torch.zeros_like(call.inputs["q"])
    with full_fp32():
        for b, slots in enumerate(shape.slots):
            if len(slots):
                out[b] = _emulate_row(call, shape, b, splits, tile).to(out.dtype)
    return {"out": out}


def _attend(call: Call, dtype: torch.dtype) -> torch.Tensor:
    shape = geometry(call)
    q = call.inputs["q"].to(dtype).view(-1, shape.HKV, shape.group, shape.D)
    out = torch.zeros_like(q)
    for b, slots in enumerate(shape.slots):
        if len(slots):
            k = call.inputs["k_pool"][slots].to(dtype).permute(1, 2, 0)  # [HKV, D, n]
            v = call.inputs["v_pool"][slots].to(dtype).transpose(0, 1)  # [HKV, n, D]
            out[b] = torch.softmax(q[b] @ k * shape.scale, dim=-1) @ v
    return out.view(-1, shape.HQ, shape.D)


def _emulate_row(call: Call, shape: Geometry, b: int, splits: int, tile: int) -> torch.Tensor:
    slots = shape.slots[b]
    q = call.inputs["q"][b].float().view(shape.HKV, shape.group, shape.D)
    k = call.inputs["k_pool"][slots].float().permute(1, 2, 0)  # [HKV, D, n]
    v = call.inputs["v_pool"][slots].float().transpose(0, 1)  # [HKV, n, D]
    scores = q @ k * (shape.scale * math.log2(math.e))
    tiles = -(-len(slots) // tile)
    splits = max(1, min(splits, tiles))
    parts = []
    for s in range(splits):
        edges = range(tiles * s // splits * tile, tiles * (s + 1) // splits * tile, tile)
        parts.append(_online([(scores[..., at : at + tile], v[:, at : at + tile]) for at in edges]))
    top = torch.stack([m for m, _, _ in parts]).amax(0)
    weights = [torch.exp2(m - top) for m, _, _ in parts]
    total = torch.stack([w * t for w, (_, t, _) in zip(weights, parts, strict=True)]).sum(0)
    acc = torch.stack([w[..., None] * a for w, (_, _, a) in zip(weights, parts, strict=True)]).sum(0)
    return (acc / total[..., None]).view(shape.HQ, shape.D)


def _online(tiles: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Maximum and sum [HKV, group] and accumulator [HKV, group, D] of (scores in base 2, values) tiles."""
    scores, values = tiles[0]
    top = torch.full(scores.shape[:2], float("-inf"), device=scores.device)
    total, acc = torch.zeros_like(top), torch.zeros(*scores.shape[:2], values.shape[-1], device=scores.device)
    for scores, values in tiles:
        new_top = torch.maximum(top, scores.amax(-1))
        p, decay = torch.exp2(scores - new_top[..., None]), torch.exp2(top - new_top)
        total = total * decay + p.sum(-1)
        acc = acc * decay[..., None] + p.bfloat16().float() @ values
        top = new_top
    return top, total, acc
