"""What `qsa.compact_kv` must give: row by row in Python, by one boolean selection, and by ranks and scattered copies.

Nothing is rounded, so all three have the same bits; copies come back in the pools' BF16, offsets as int32.
Inputs are read on the host: none of these may run inside graph capture.
Axes: B rows, W columns, S slots, N packed rows.
"""

from __future__ import annotations

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Call

ROOM = "qsa.compact_kv"
POOLS = {"packed_k": "k_pool", "packed_v": "v_pool"}


def is_valid(call: Call) -> torch.Tensor:
    """[B, W] bool: which columns name a token of their row's request."""
    tokens = call.inputs["tokens"]
    return (tokens >= 0) & (tokens < call.inputs["lengths"][:, None])


def live_counts(call: Call) -> list[int]:
    """Valid columns of each row, on the host."""
    return [int(count) for count in is_valid(call).sum(1).tolist()]


def oracle_fp32(call: Call) -> dict[str, torch.Tensor]:
    """Row by row, token by token: `{"packed_k", "packed_v": [N, HKV, 256] bf16, "cu_seqlens_k": [B+1] int32}`.

    Raises:
        ParameterError: more valid tokens than packed rows, or a table entry outside the pools.
    """
    tokens, lengths, requests = (call.inputs[name].tolist() for name in ("tokens", "lengths", "requests"))
    slots, ends = [], [0]
    for row, length, request in zip(tokens, lengths, requests, strict=True):
        wanted = [token for token in row if 0 <= token < length]
        slots += call.inputs["req_to_slot"][request, torch.tensor(wanted, dtype=torch.long)].tolist()
        ends.append(len(slots))
    _require_room(call, slots)
    at = torch.tensor(slots, dtype=torch.long, device=call.device)
    found = {name: torch.zeros_like(call.outputs[name]) for name in POOLS}
    for name, pool in POOLS.items():
        found[name][: len(slots)] = call.inputs[pool][at]
    return {**found, "cu_seqlens_k": torch.tensor(ends, dtype=torch.int32, device=call.device)}


def oracle_fp64(call: Call) -> dict[str, torch.Tensor]:
    """By selection: the valid columns of the whole table in row-major order are the packed order. Same outputs."""
    valid = is_valid(call)
    row = valid.nonzero()[:, 0]
    slots = call.inputs["req_to_slot"][call.inputs["requests"].long()[row], call.inputs["tokens"][valid].long()]
    found = {}
    for name, pool in POOLS.items():
        live = call.inputs[pool].index_select(0, slots.long())
        rest = call.outputs[name].shape[0] - live.shape[0]
        found[name] = torch.cat([live, live.new_zeros(rest, *live.shape[1:])])
    counts = torch.bincount(row, minlength=valid.shape[0])
    return {**found, "cu_seqlens_k": torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(torch.int32)}


def emulate(call: Call) -> dict[str, torch.Tensor]:
    """As a kernel does it: each valid column's rank within its row, its row's start, one copy a column. Same outputs."""
    valid = is_valid(call)
    counts = valid.sum(1)
    ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    place = (ends[:-1, None] + valid.cumsum(1) - 1)[valid]
    slots = call.inputs["req_to_slot"][call.inputs["requests"].long()]
    slots = slots.gather(1, call.inputs["tokens"].long().clamp(0, slots.shape[1] - 1))[valid].long()
    found = {name: torch.zeros_like(call.outputs[name]) for name in POOLS}
    for name, pool in POOLS.items():
        found[name].index_copy_(0, place, call.inputs[pool][slots])
    return {**found, "cu_seqlens_k": ends.to(torch.int32)}


def _require_room(call: Call, slots: list[int]) -> None:
    capacity, pool = call.outputs["packed_k"].shape[0], call.inputs["k_pool"].shape[0]
    reasons = []
    if len(slots) > capacity:
        reasons.append(Reason("packed_k.shape[0]", repr(capacity), f"{len(slots)} or more, the valid tokens"))
    if slots and not (min(slots) >= 0 and max(slots) < pool):
        given = f"{min(slots)} to {max(slots)}"
        reasons.append(Reason("req_to_slot at the valid tokens", given, f"0 to {pool - 1}, the slots of k_pool"))
    if reasons:
        raise ParameterError(ROOM, reasons)
