"""Building blocks of a call of `qsa.paged_decode`: its tensors and facts, and the reuse of real rows in it."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_paged_decode import layouts
from kda_lab.ops.qsa_paged_decode.layouts import TARGET_WIDTH, Layout, Room
from kda_lab.ops.qsa_paged_decode.oracle import geometry, valid_columns
from kda_lab.ops.qsa_paged_decode.spec import SPEC


def paged_call(label: str, tensors: dict[str, torch.Tensor], layout: Layout, kind: str) -> Call:
    """A call of q, k_pool and v_pool (any float dtype) with a layout's selection, all on the device of q."""
    inputs = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    q = inputs["q"]
    inputs |= {name: tensor.to(q.device) for name, tensor in layout.tensors().items()}
    facts = facts_of((q.shape[1], inputs["k_pool"].shape[1]), layout, kind)
    return Call(SPEC.name, inputs, {"softmax_scale": None}, {"out": torch.empty_like(q)}, label, facts)


def scattered(values: torch.Tensor, used: torch.Tensor, room: Room) -> torch.Tensor:
    """[S, HKV, D] bf16: `values` at the used slots, NaN elsewhere."""
    pool = torch.full((room.slots, *values.shape[1:]), float("nan"), dtype=torch.bfloat16, device=values.device)
    pool[used.to(values.device)] = values.to(torch.bfloat16)
    return pool


def from_packed(call: Call, seed: int) -> tuple[Call, Call]:
    """A packed call's rows scattered into a pool: the same attention as a target row, and in the draft form with holes.

    Row b is a sequence of its own that selects all of its tokens, in no order of its blocks; token t is packed row
    cu_seqlens_k[b] + t. Both calls have one pool and one slot table. What the packed call gives is right for both.

    Args:
        call: of `qsa.packed_decode`, on the CPU, of rows of at most 2051 tokens.
        seed: of pages, requests and the order of blocks.
    """
    ends = call.inputs["cu_seqlens_k"].tolist()
    counts = [end - start for start, end in itertools.pairwise(ends)]
    owners = range(len(counts))
    room = layouts.room_for(counts, owners, TARGET_WIDTH, spread=False)
    layout = layouts.draw(counts, owners, room, generator_of(call.label, seed, "cpu"), spread=False)
    used = torch.cat([layout.req_to_slot[r, :n] for r, n in zip(layout.requests, counts, strict=True)]).long()
    pools = {f"{n}_pool": torch.full((room.slots, *call.inputs[n].shape[1:]), float("nan")).bfloat16() for n in "kv"}
    for n in "kv":
        pools[f"{n}_pool"][used] = call.inputs[n][: ends[-1]]
    tensors, scalars = {"q": call.inputs["q"], **pools}, {"softmax_scale": call.scalars["softmax_scale"]}
    plain, holes = (
        replace(paged_call(label, tensors, form, "real"), scalars=scalars)
        for label, form in ((call.label, layout), (f"{call.label}-draft", layouts.with_holes(layout)))
    )
    return plain, holes


def reordered(source: Call, fresh: Call, seed: int) -> dict[str, torch.Tensor]:
    """q, k_pool and v_pool for the selection of `fresh`, made of the source's selected rows in a shuffled order."""
    taken, used = (torch.cat(geometry(call).slots).unique() for call in (source, fresh))
    if not len(taken):
        return {}
    shuffled = torch.randperm(len(taken), generator=generator_of(source.label, seed, "cpu"))
    at = taken[shuffled[torch.arange(len(used)) % len(taken)].to(taken.device)]
    pools = {}
    for name in ("k_pool", "v_pool"):
        pools[name] = torch.full_like(fresh.inputs[name], float("nan"))
        pools[name][used] = source.inputs[name][at]
    rows = (torch.arange(fresh.inputs["q"].shape[0]) + seed) % source.inputs["q"].shape[0]
    return {"q": source.inputs["q"][rows.to(taken.device)].flip(1), **pools}


def weightiest_last(call: Call) -> Call:
    """The call with the token of most weight moved to the last valid column of each row.

    A shuffle may leave the last columns of a row without weight, and then cutting them off changes nothing.
    """
    shape, tokens = geometry(call), call.inputs["tokens"].clone()
    valid = valid_columns(call)
    for b, slots in enumerate(shape.slots):
        if len(slots):
            q = call.inputs["q"][b].float().view(shape.HKV, shape.group, shape.D)
            keys = call.inputs["k_pool"][slots].float().permute(1, 2, 0)
            columns = valid[b].nonzero()[:, 0]
            most = columns[int((q @ keys * shape.scale).softmax(-1).sum((0, 1)).argmax())]
            tokens[b, [int(most), int(columns[-1])]] = tokens[b, [int(columns[-1]), int(most)]]
    return call.with_inputs(tokens=tokens)


def facts_of(heads: tuple[int, int], layout: Layout, kind: str) -> dict[str, Any]:
    """Host-side facts of a call: axes, valid columns of each row, kind, and the distinct slots its rows name."""
    counts = [len(columns) for columns in layout.columns]
    axes = {"B": len(counts), "HQ": heads[0], "HKV": heads[1], "W": layout.tokens.shape[1]}
    return {**axes, "lengths": counts, "kind": kind, "pool_rows": len(layout.used)}


def generator_of(label: str, seed: int, device: torch.device | str) -> torch.Generator:
    """A generator on a device that depends on the label and the seed alone."""
    digest = hashlib.sha256(f"{SPEC.name} {label} {seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))


def refusal(field: str, given: object, allowed: str, remedy: str = "") -> ParameterError:
    """The error of one field with a wrong value."""
    return ParameterError(SPEC.name, [Reason(field, repr(given), allowed, remedy)])
