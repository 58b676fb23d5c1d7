"""Calls of `qsa.compact_kv`: benchmark rows, synthetic selections over paged pools, guards, changed lengths, edges.

Axes: B rows, W columns, R requests, S slots in pages of 64, HKV key heads, D = 256. Tensors as `spec.py` lists them. Each
row is its own request but for kind `shared`; the pages of all requests lie scattered over the pools, and a slot that no
table entry names is a guard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.qsa.geometry import DRAFT_STEPS as STEPS
from kda_lab.ops.qsa.geometry import DRAFT_WIDTH, TARGET_WIDTH
from kda_lab.ops.qsa.geometry import HEAD_DIM as WIDTH
from kda_lab.ops.qsa.geometry import PAGE_TOKENS as PAGE
from kda_lab.ops.qsa_compact_kv.oracle import live_counts
from kda_lab.ops.qsa_compact_kv.spec import SPEC

TOPOLOGIES = {"tp1": 2, "tp2": 1}
"""Name to HKV: the whole model on one rank, or half of it on each of two."""
LENGTHS = ("short", "medium", "saturated", "mixed")
KINDS = ("target", "draft", "holes", "shared")
"""target: valid columns first, as expansion leaves them. draft: the last four columns hold newer tokens, with a hole
before them where the selection was short. holes: -1 and ids behind the length anywhere. shared: all rows of one request."""
BATCHES = (1, 4, 16, 64, 128)
FREE_PAGES = 2
_BOTH = ("k_pool", "v_pool")


def lengths(kind: str, B: int, W: int) -> tuple[int, ...]:
    """Tokens of each row's request: short 17 to 227, medium 512 to 1280, saturated W + 100, mixed edges with 0 and 1.

    Raises:
        ParameterError: unknown kind.
    """
    if kind == "short":
        return tuple(17 + 37 * b % 211 for b in range(B))
    if kind == "medium":
        return tuple(512 + 97 * b % 769 for b in range(B))
    if kind == "saturated":
        return (W + 100,) * B
    if kind == "mixed":
        cycle = (W + 29, 1, 0, 64, 65, W - 1, W // 2, W)
        return tuple(cycle[b % len(cycle)] for b in range(B))
    raise _refusal("lengths", kind, ", ".join(map(repr, LENGTHS)))


@dataclass(frozen=True)
class Shape:
    """What a call is drawn from."""

    HKV: int
    W: int
    kind: str
    live: tuple[int, ...]
    """Length of each row's request."""


def make_row(topology: str, B: int, kind: str = "target", live: str = "saturated", W: int | None = None) -> Row:
    """One row: `tp1-B4-target-saturated`, with `-w19` where W is not the width of the kind.

    Raises:
        ParameterError: an unknown topology, kind or class of lengths, a B below 1, or a W of no more than four columns.
    """
    if topology not in TOPOLOGIES:
        raise _refusal("topology", topology, ", ".join(map(repr, TOPOLOGIES)))
    if kind not in KINDS:
        raise _refusal("kind", kind, ", ".join(map(repr, KINDS)))
    default = DRAFT_WIDTH if kind == "draft" else TARGET_WIDTH
    width = default if W is None else W
    if B < 1 or width <= STEPS:
        raise _refusal("B and W", (B, width), f"1 or more, and {STEPS + 1} or more")
    lengths(live, B, width)
    label = f"{topology}-B{B}-{kind}-{live}" + ("" if width == default else f"-w{width}")
    axes = {"HKV": TOPOLOGIES[topology], "B": B, "W": width, "kind": kind, "lengths": live}
    return Row(SPEC.name, label, axes)


def rows(
    topologies: Sequence[str] = ("tp1", "tp2"),
    batches: Sequence[int] = BATCHES,
    kinds: Sequence[str] = ("target", "draft"),
    live: Sequence[str] = ("short", "medium", "saturated"),
) -> list[Row]:
    """Benchmark rows, one for each topology, batch, kind and class of lengths, in that order."""
    return [make_row(t, B, kind, which) for t in topologies for B in batches for kind in kinds for which in live]


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row, drawn on the CPU whatever the device."""
    return _drawn(row.label, _shape(row), seed).to(device)


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing: one selection, pools of their own, drawn where they lie."""
    frame = _frame(row.label, _shape(row), seed).to(device)
    return [frame.to(device).with_inputs(**_pools(frame, f"{row.label}-{i}", seed)) for i in range(count)]


def with_guard_rows(call: Call, count: int) -> Call:
    """The call with up to a page more of slots, and NaN in every slot of the pools that no valid token names."""
    named = _named_slots(call)
    grown = {}
    for name in _BOTH:
        old = call.inputs[name]
        pool = old.new_full((old.shape[0] + min(count, PAGE), *old.shape[1:]), float("nan"))
        pool[named] = old[named]
        grown[name] = pool
    return call.with_inputs(**grown)


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers, with other lengths: copy them into `call.inputs` in place.

    Args:
        which: `shorter` (two fifths of each length) or `longer` (what the slot table leaves room for).
        source: a call whose KV rows are reused in another order; None draws new ones.

    Returns:
        All inputs; slots that no valid token names hold NaN.

    Raises:
        ParameterError: an unknown change, or `longer` where the table or the pools leave no room.
    """
    old = tuple(int(n) for n in call.inputs["lengths"].tolist())
    pool, table = call.inputs["k_pool"], call.inputs["req_to_slot"]
    kind = call.facts.get("kind", "target")
    if which == "shorter":
        live = tuple(n * 2 // 5 for n in old)
    elif which == "longer":
        live = _longer(old, table.shape[1], pool.shape[0], kind)
    else:
        raise _refusal("which", which, "'shorter', 'longer'")
    shape = Shape(pool.shape[1], call.inputs["tokens"].shape[1], kind, live)
    generator = _generator(f"{call.label}-{which}", seed)
    fresh = _indices(shape, generator, table.shape, pool.shape[0])
    if source is None:
        values = {name: torch.randn(pool.shape, generator=generator).to(pool.dtype) for name in _BOTH}
    else:
        values = _rows_of(source, pool.shape[0], seed)
    new = {name: tensor.to(call.device) for name, tensor in {**fresh, **values}.items()}
    return dict(with_guard_rows(call.with_inputs(**new), 0).inputs)


def shuffled(call: Call, seed: int) -> dict[str, torch.Tensor]:
    """The call with its slots in another order: other addresses and values, the same geometry and lengths."""
    slots = call.inputs["k_pool"].shape[0]
    order = torch.randperm(slots, generator=_generator(call.label, seed)).to(call.device)
    moved = {name: call.inputs[name][order] for name in _BOTH}
    table = order.argsort()[call.inputs["req_to_slot"].long()].to(torch.int32)
    return {**moved, "req_to_slot": table}


def edge_calls(seed: int, device: torch.device | str = "cpu") -> dict[str, Call]:
    """Small calls at the edges of the definition, by name: W = 23, and the two widths of the model.

    Every kind with mixed lengths; no_tokens (every row empty), first_and_last_empty, late_tokens (valid columns at the
    end only), target_width (2051, full), draft_width (2055, full, two heads), spare_rows (packed buffers larger than B·W).
    """
    found = {kind: synthesise(make_row("tp2", 8, kind, "mixed", 23), seed) for kind in KINDS}
    found["no_tokens"] = _drawn("edge-no_tokens", Shape(1, 23, "target", (0, 0)), seed)
    found["first_and_last_empty"] = _drawn("edge-first_and_last", Shape(2, 23, "holes", (0, 40, 9, 0)), seed)
    late = _drawn("edge-late", Shape(1, 23, "target", (9, 5)), seed)
    found["late_tokens"] = _counted(late.with_inputs(tokens=late.inputs["tokens"].flip(1)))
    found["target_width"] = _drawn("edge-target", Shape(1, TARGET_WIDTH, "target", (TARGET_WIDTH,)), seed)
    found["draft_width"] = _drawn("edge-draft", Shape(2, DRAFT_WIDTH, "draft", (DRAFT_WIDTH + 9,)), seed)
    spare = _drawn("edge-spare", Shape(1, 23, "holes", (30, 8)), seed)
    spare_rows = {name: torch.empty(70, 1, WIDTH, dtype=torch.bfloat16) for name in ("packed_k", "packed_v")}
    found["spare_rows"] = spare.with_outputs(**spare_rows)
    return {name: call.to(device) for name, call in found.items()}


def _shape(row: Row) -> Shape:
    axes = row.parameters
    live = lengths(axes["lengths"], axes["B"], axes["W"])
    return Shape(axes["HKV"], axes["W"], axes["kind"], live)


def _drawn(label: str, shape: Shape, seed: int) -> Call:
    """A call on the CPU; its requests may grow to the end of their pages, and by the free pages."""
    frame = _frame(label, shape, seed)
    return frame.with_inputs(**_pools(frame, f"{label}-pools", seed))


def _frame(label: str, shape: Shape, seed: int) -> Call:
    """A call on the CPU without values: its pools have the right shape and one row of memory."""
    B = len(shape.live)
    longest = max(-(-max(shape.live) // PAGE), 1) * PAGE
    shared = shape.kind == "shared"
    R = 2 if shared else B
    pages = sum(-(-n // PAGE) for n in ((max(shape.live),) * R if shared else shape.live)) + FREE_PAGES
    bf16: dict[str, Any] = {"dtype": torch.bfloat16}
    inputs = _indices(shape, _generator(label, seed), torch.Size((R, longest)), pages * PAGE)
    inputs |= {name: torch.zeros(1, shape.HKV, WIDTH, **bf16).expand(pages * PAGE, -1, -1) for name in _BOTH}
    outputs = {name: torch.empty(B * shape.W, shape.HKV, WIDTH, **bf16) for name in ("packed_k", "packed_v")}
    outputs["cu_seqlens_k"] = torch.empty(B + 1, dtype=torch.int32)
    facts = {"B": B, "HKV": shape.HKV, "W": shape.W, "kind": shape.kind, "lengths": list(shape.live)}
    inputs = {name: inputs[name] for name in SPEC.tensors}
    return _counted(Call(SPEC.name, inputs, {}, outputs, label, facts))


def _counted(call: Call) -> Call:
    return Call(call.op, call.inputs, {}, call.outputs, call.label, {**call.facts, "counts": live_counts(call)})


def _indices(shape: Shape, draw: torch.Generator, table: torch.Size, slots: int) -> dict[str, torch.Tensor]:
    """tokens, lengths, requests and req_to_slot [R, maxlen] over pages of the pools in random order."""
    B, (R, columns) = len(shape.live), table
    owner = [1] * B if shape.kind == "shared" else [(b + 1) % R for b in range(B)]
    needed = [0] * R
    for b, request in enumerate(owner):
        needed[request] = max(needed[request], shape.live[b])
    pages = torch.randperm(slots // PAGE, generator=draw)
    req_to_slot = torch.zeros(R, columns, dtype=torch.int32)
    taken = 0
    for request, n in enumerate(needed):
        mine = pages[taken : taken + -(-n // PAGE)]
        taken += mine.numel()
        own = (mine[:, None] * PAGE + torch.arange(PAGE)).flatten()[:n]
        req_to_slot[request, :n] = own.to(torch.int32)
    tokens = torch.stack([_columns(shape, n, draw) for n in shape.live])
    index = {"tokens": tokens, "lengths": torch.tensor(shape.live), "requests": torch.tensor(owner)}
    return {**{name: tensor.to(torch.int32) for name, tensor in index.items()}, "req_to_slot": req_to_slot}


def _columns(shape: Shape, n: int, draw: torch.Generator) -> torch.Tensor:
    """[W] tokens of one row of length n, each at most once, -1 where there is none."""
    steps = min(STEPS, n) if shape.kind == "draft" else 0
    width = shape.W - STEPS if shape.kind == "draft" else shape.W
    chosen = torch.randperm(n - steps, generator=draw)[:width]
    row = torch.full((shape.W,), -1, dtype=torch.int64)
    row[: chosen.numel()] = chosen
    row[width : width + steps] = torch.arange(n - steps, n)
    if shape.kind != "holes":
        return row
    drawn = torch.rand(shape.W, generator=draw)
    row[drawn < 0.2] = -1
    row[drawn > 0.9] = n + 3
    return row


def _longer(old: Sequence[int], columns: int, slots: int, kind: str) -> tuple[int, ...]:
    """Lengths grown within their pages and the table, then by one free page where there is one."""
    whole = [min(-(-n // PAGE) * PAGE, columns) for n in old]
    used = sum(-(-n // PAGE) for n in (old if kind != "shared" else [max(old)]))
    shortest = old.index(min(old))
    if used < slots // PAGE and whole[shortest] + PAGE <= columns:
        whole[shortest] += PAGE
    if whole == list(old):
        raise _refusal("which", "longer", f"'shorter', since {slots} slots and {columns} table columns are all in use")
    return tuple(whole)


def _named_slots(call: Call) -> torch.Tensor:
    """Slots that a valid token names, each once."""
    tokens, requests = call.inputs["tokens"].long(), call.inputs["requests"].long()
    valid = (tokens >= 0) & (tokens < call.inputs["lengths"][:, None])
    row = valid.nonzero()[:, 0]
    return call.inputs["req_to_slot"][requests[row], tokens[valid]].long().unique()


def _rows_of(source: Call, slots: int, seed: int) -> dict[str, torch.Tensor]:
    """Pools made of the source's named rows, in an order that depends on the seed."""
    named = _named_slots(source)
    if not named.numel():
        return {name: source.inputs[name].new_zeros(slots, *source.inputs[name].shape[1:]) for name in _BOTH}
    order = torch.randperm(named.numel(), generator=_generator(source.label, seed)).to(named.device)
    at = named[order][torch.arange(slots, device=named.device) % named.numel()]
    return {name: source.inputs[name][at] for name in _BOTH}


def _pools(call: Call, label: str, seed: int) -> dict[str, torch.Tensor]:
    """New contiguous pools of the call's shape, drawn on its device."""
    pool = call.inputs["k_pool"]
    draw = _generator(label, seed, pool.device)
    return {n: torch.empty(pool.shape, dtype=pool.dtype, device=pool.device).normal_(generator=draw) for n in _BOTH}


def _generator(label: str, seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    digest = hashlib.sha256(f"{SPEC.name} {label} {seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))


def _refusal(field: str, given: object, allowed: str) -> ParameterError:
    return ParameterError(SPEC.name, [Reason(field, repr(given), allowed)])
