"""Calls of `qsa.packed_decode`: benchmark rows, synthetic tensors, guard rows, changed contents, edge cases.

Axes: B rows, HQ query heads, HKV key heads, D = 256, N packed rows. q [B, HQ, D], k and v [N, HKV, D],
out [B, HQ, D], all BF16; cu_seqlens_q and cu_seqlens_k [B+1] int32.
Synthetic tensors depend on (label, seed) and on the device type: CPU and CUDA draw different numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.qsa.geometry import DRAFT_WIDTH, TARGET_WIDTH
from kda_lab.ops.qsa.geometry import HEAD_DIM as WIDTH
from kda_lab.ops.qsa_packed_decode.spec import SPEC

TOPOLOGIES = {"tp1": (24, 2), "tp2": (12, 1)}
"""Name to (HQ, HKV): the whole model on one rank, or half of it on each of two."""
MIXED_CYCLE = (1, 0, 2051, 64, 65, 1537, 511, 2048)
PUBLISHED = {1: (858,), 3: (113, 511, 908), 4: (64, 861, 1307, 2051)}
PUBLISHED[12] = (97, 211, 389, 511, 607, 701, 809, 857, 881, 893, 907, 911)
"""Row count to the lengths of the calls that the source thread recorded (sglang PR 36845)."""
SIZES = {"large": ("q4-saturated", "q12"), "small": ("q1", "q3", "q4-short")}
"""Sizes that the source thread's geomeans tell apart, with the classes of captures each holds.

Which capture counts as large is inferred: of all splits into whole classes only this one, six captures and nine,
agrees with the thread's three published geomeans (all, large, small).
"""
KINDS = ("short", "medium", "saturated", "mixed", "published", "draft")
BATCHES = (1, 2, 4, 8, 12, 16, 32, 64, 128)
SWEEPS: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...] = (
    (tuple(range(1, 17)), ("short", "saturated")),
    ((17, 24, 32, 48, 64, 96, 128), ("short", "medium", "saturated")),
)
"""Batches and kinds of the source thread's two sweeps: 64 and 42 rows over both topologies (sglang PR 36845)."""


def lengths(kind: str, batch: int) -> tuple[int, ...]:
    """Live KV rows of each of `batch` rows.

    short 17 to 227, medium 512 to 1280, saturated 2051 each, mixed cycles through eight lengths with
    a zero and a one, published the recorded ones (batch 1, 3, 4 or 12), draft 2055 each.

    Raises:
        ParameterError: unknown kind, a batch below 1, or a batch without published lengths.
    """
    if batch < 1:
        raise _refusal("batch", batch, "1 or more")
    if kind == "short":
        return tuple(17 + 37 * r % 211 for r in range(batch))
    if kind == "medium":
        return tuple(512 + 97 * r % 769 for r in range(batch))
    if kind == "saturated":
        return (TARGET_WIDTH,) * batch
    if kind == "draft":
        return (DRAFT_WIDTH,) * batch
    if kind == "mixed":
        return tuple(MIXED_CYCLE[r % len(MIXED_CYCLE)] for r in range(batch))
    if kind == "published":
        if batch not in PUBLISHED:
            raise _refusal("batch", batch, f"{', '.join(map(str, PUBLISHED))} for published lengths")
        return PUBLISHED[batch]
    raise _refusal("kind", kind, ", ".join(map(repr, KINDS)))


def rows(
    topologies: Sequence[str] = ("tp1", "tp2"),
    batches: Sequence[int] = BATCHES,
    kinds: Sequence[str] = ("short", "medium", "saturated"),
) -> list[Row]:
    """Benchmark rows, one for each topology, batch and kind, in that order: `tp1-B4-saturated`."""
    found = []
    for topology in topologies:
        if topology not in TOPOLOGIES:
            raise _refusal("topology", topology, ", ".join(map(repr, TOPOLOGIES)))
        HQ, HKV = TOPOLOGIES[topology]
        for batch in batches:
            for kind in kinds:
                lengths(kind, batch)
                parameters = {"HQ": HQ, "HKV": HKV, "B": batch, "lengths": kind}
                found.append(Row(SPEC.name, f"{topology}-B{batch}-{kind}", parameters))
    return found


def published() -> list[Row]:
    """The 106 rows of the source thread's two sweeps; it names batches and classes, the exact lengths are ours."""
    return [row for batches, kinds in SWEEPS for row in rows(batches=batches, kinds=kinds)]


def call_of(
    live: Sequence[int], heads: tuple[int, int], seed: int, device: torch.device | str = "cpu", label: str = "call"
) -> Call:
    """A call of these very lengths, with contents as those of `synthesise`.

    Args:
        live: KV rows of each query row, 0 or more.
        heads: (HQ, HKV).
        seed: with the label, of the contents.
        label: of the call.
    """
    return _peaky(label, heads, live, "listed", seed, device)


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call with peaky scores, as real ones are: each query leans towards four of its keys, the last included.

    V has a mean of its own in each channel, since attention over V without a mean nearly cancels out
    and makes relative errors look larger than on real tensors.
    """
    axes = row.parameters
    return _peaky(
        row.label, (axes["HQ"], axes["HKV"]), lengths(axes["lengths"], axes["B"]), axes["lengths"], seed, device
    )


def _peaky(
    label: str, heads: tuple[int, int], live: Sequence[int], kind: str, seed: int, device: torch.device | str
) -> Call:
    generator = _generator(label, seed, device)
    (HQ, HKV), B, N = heads, len(live), sum(live)
    draw: dict[str, Any] = {"generator": generator, "device": device}
    k = torch.randn(N, HKV, WIDTH, **draw)
    v = torch.randn(N, HKV, WIDTH, **draw) + torch.randn(1, HKV, WIDTH, **draw)
    q = 1.5 * torch.randn(B, HKV, HQ // HKV, WIDTH, **draw)
    starts, counts = _offsets(live, device)[:-1].long(), torch.tensor(live, device=device)
    at = (torch.rand(B, 4, **draw) * counts[:, None]).long()
    at[:, 0] = counts - 1
    if N:
        chosen = k[(starts[:, None] + at).clamp(0, N - 1)].permute(0, 2, 1, 3)  # [B, HKV, 4, D]
        # q = c·k scores 16·c against k, and the other keys of a row together weigh about 4 times its length: so
        # each chosen key gets 3 to 20 % of the weight however long the row is, and none can be left out unseen.
        most = counts.clamp(min=1).log()[:, None, None, None]
        lean = (most - 2 * torch.rand(B, HKV, HQ // HKV, 4, **draw)).clamp(min=0) / 16
        q = q + lean @ chosen
    return _call(label, {"q": q.view(B, HQ, WIDTH), "k": k, "v": v}, live, kind)


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing: one allocation a tensor, one draw, views as calls.

    Every view starts on a multiple of 16 bytes. Values have a real call's magnitude, not its structure.
    """
    axes = row.parameters
    HQ, HKV, B = axes["HQ"], axes["HKV"], axes["B"]
    live = lengths(axes["lengths"], B)
    generator = _generator(row.label, seed, device)
    bf16: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
    q = torch.empty(count, B, HQ, WIDTH, **bf16).normal_(0.0, 2.0, generator=generator)
    k = torch.empty(count, sum(live), HKV, WIDTH, **bf16).normal_(generator=generator)
    v = torch.empty(count, sum(live), HKV, WIDTH, **bf16).normal_(0.5, 1.0, generator=generator)
    out = torch.empty(count, B, HQ, WIDTH, **bf16)
    # Offsets are padded to 16 bytes a set, so that those of every set are as aligned as those of the first.
    padded = torch.zeros(2, count, (B + 4) // 4 * 4, dtype=torch.int32, device=device)
    padded[0, :, : B + 1], padded[1, :, : B + 1] = torch.arange(B + 1), _offsets(live, "cpu")
    scalars, facts = _scalars(live), _facts(HQ, HKV, live, axes["lengths"])
    return [
        Call(
            SPEC.name,
            {
                "q": q[i],
                "k": k[i],
                "v": v[i],
                "cu_seqlens_q": padded[0, i, : B + 1],
                "cu_seqlens_k": padded[1, i, : B + 1],
            },
            scalars,
            {"out": out[i]},
            row.label,
            facts,
        )
        for i in range(count)
    ]


def with_capacity(call: Call, capacity: int) -> Call:
    """The call with K and V copied into buffers of `capacity` rows; rows behind the live end hold NaN.

    Raises:
        ParameterError: fewer rows than are live.
    """
    live = int(call.inputs["cu_seqlens_k"][-1])
    if capacity < live:
        raise _refusal("capacity", capacity, f"at least the {live} live rows")
    grown = {}
    for name in ("k", "v"):
        old = call.inputs[name]
        grown[name] = torch.full((capacity, *old.shape[1:]), float("nan"), dtype=old.dtype, device=old.device)
        grown[name][:live] = old[:live]
    return call.with_inputs(**grown)


def with_guard_rows(call: Call, count: int) -> Call:
    """The call with `count` more KV rows at the end of the buffers; all rows behind the live end hold NaN."""
    return with_capacity(call, call.inputs["k"].shape[0] + count)


def changed(call: Call, lengths: str | Sequence[int], seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers, with other live lengths: copy them into `call.inputs` in place.

    Args:
        lengths: `shorter`, `longer`, or the new live length of each row.
        source: a call of the same heads whose live rows are reused in another order, so that what a real
            capture looks like is kept; None draws peaky synthetic contents.

    Returns:
        q, k, v and cu_seqlens_k, shaped as in `call`; K and V rows behind the new live end hold NaN.

    Raises:
        ParameterError: the new rows do not fit in the buffers (`with_capacity` makes room) or exceed max_seqlen_k.
    """
    capacity, HQ, HKV = call.inputs["k"].shape[0], call.inputs["q"].shape[1], call.inputs["k"].shape[1]
    live = _new_lengths(call, lengths)
    fresh = _peaky(f"{call.label}-changed", (HQ, HKV), live, "changed", seed, call.device)
    if source is not None:
        heads = source.inputs["q"].shape[1], source.inputs["k"].shape[1]
        if heads != (HQ, HKV):
            raise _refusal("source", heads, f"the call's heads, {(HQ, HKV)}")
        fresh = _weightiest_last(fresh.with_inputs(**_reordered(source, len(live), sum(live), seed)), live)
    grown = with_capacity(fresh, capacity)
    return {name: grown.inputs[name] for name in ("q", "k", "v", "cu_seqlens_k")}


def longer_lengths(call: Call) -> tuple[int, ...]:
    """The lengths that `changed(call, "longer", ...)` gives: what the buffers and max_seqlen_k leave room for.

    Three quarters of the free rows go to the shortest row, so that it gains whole tiles; the others share the
    rest. Where every row is as long as max_seqlen_k already, the lengths stay.

    Raises:
        ParameterError: a row could grow, but the buffers have no free row.
    """
    old, capacity, widest = _bounds(call)
    room = capacity - sum(old)
    if room == 0 and min(old) < widest:
        raise _refusal("lengths", "longer", f"'shorter', since the {capacity} rows of k are all live", _GROW)
    shortest = old.index(min(old))
    share = max(1, room // 4 // max(1, len(old) - 1))
    longer = list(old)
    for b in (shortest, *(b for b in range(len(old)) if b != shortest)):
        wanted = max(1, room * 3 // 4) if b == shortest else share
        longer[b] += min(wanted, widest - old[b], capacity - sum(longer))
    return tuple(longer)


def _new_lengths(call: Call, wanted: str | Sequence[int]) -> tuple[int, ...]:
    old, capacity, widest = _bounds(call)
    if wanted == "shorter":
        return tuple(max(1, n * 2 // 5) if n else 0 for n in old)
    if wanted == "longer":
        return longer_lengths(call)
    if isinstance(wanted, str):
        raise _refusal("lengths", wanted, "'shorter', 'longer' or one length a row")
    live = tuple(int(n) for n in wanted)
    if len(live) != len(old) or sum(live) > capacity or min(live) < 0 or max(live) > widest:
        raise _refusal("lengths", live, f"{len(old)} lengths of 0 to {widest}, {capacity} rows in all", _GROW)
    return live


def _bounds(call: Call) -> tuple[tuple[int, ...], int, int]:
    """Live lengths, rows of the K buffer, and the longest row that max_seqlen_k allows."""
    old = tuple(int(n) for n in call.inputs["cu_seqlens_k"].diff().tolist())
    return old, call.inputs["k"].shape[0], int(call.scalars.get("max_seqlen_k") or TARGET_WIDTH)


_GROW = "Use with_capacity() to make room."


def _reordered(source: Call, B: int, count: int, seed: int) -> dict[str, torch.Tensor]:
    """q, k and v made of the source's live rows in a shuffled order, so that every row meets other keys."""
    live = int(source.inputs["cu_seqlens_k"][-1])
    if not live:
        return {}
    shuffled = torch.randperm(live, generator=_generator(source.label, seed, "cpu"))
    at = shuffled[torch.arange(count) % live].to(source.device)
    rows = (torch.arange(B, device=source.device) + seed) % source.inputs["q"].shape[0]
    return {"q": source.inputs["q"][rows].flip(1), "k": source.inputs["k"][at], "v": source.inputs["v"][at]}


def _weightiest_last(call: Call, live: Sequence[int]) -> Call:
    """The call with the key of most weight moved to the end of each segment, a key head at a time.

    A shuffle may leave the last keys of a row without weight, and then cutting them off changes nothing.
    """
    q, k, v = call.inputs["q"], call.inputs["k"].clone(), call.inputs["v"].clone()
    group, start = q.shape[1] // k.shape[1], 0
    for b, n in enumerate(live):
        for g in range(k.shape[1]) if n else ():
            scores = q[b, g * group : (g + 1) * group].float() @ k[start : start + n, g].float().T
            most = start + int((scores / WIDTH**0.5).softmax(-1).sum(0).argmax())
            for tensor in (k, v):
                tensor[[most, start + n - 1], g] = tensor[[start + n - 1, most], g]
        start += n
    return call.with_inputs(k=k, v=v)


def edge_calls(seed: int, device: torch.device | str = "cpu") -> dict[str, Call]:
    """Small calls at the edges of the definition, by name; all of 24 query and 2 key heads but the last.

    zero_rows (first, middle and last row empty), all_zero_rows, length_one, zero_keys (output is the mean
    of V), dominant_key (score +60 at row 5 of each segment: output is that V row), big_scores (|score|
    about 1000), equal_values (V constant), draft_width (2055 rows, 12 query heads).
    """
    tp1, tp2 = TOPOLOGIES["tp1"], TOPOLOGIES["tp2"]

    def make(name: str, live: Sequence[int], heads: tuple[int, int] = tp1) -> Call:
        return _peaky(f"edge-{name}", heads, live, "edge", seed, device)

    zero_keys, dominant = make("zero_keys", (64, 65)), make("dominant_key", (33, 130))
    big, equal = make("big_scores", (129, 64)), make("equal_values", (7, 513))
    return {
        "zero_rows": make("zero_rows", (0, 65, 0, 17, 0)),
        "all_zero_rows": make("all_zero_rows", (0, 0)),
        "length_one": make("length_one", (1, 1, 1, 1)),
        "zero_keys": zero_keys.with_inputs(k=torch.zeros_like(zero_keys.inputs["k"])),
        "dominant_key": _with_dominant_key(dominant, 5),
        "big_scores": big.with_inputs(q=big.inputs["q"] * 200),
        "equal_values": equal.with_inputs(v=torch.full_like(equal.inputs["v"], 1.7109375)),
        "draft_width": make("draft_width", (2055, 2051), tp2),
    }


def _with_dominant_key(call: Call, at: int) -> Call:
    """All queries of a key head equal, and key `at` of each segment along them with a score of about +60."""
    q, k = call.inputs["q"].clone(), (call.inputs["k"] * 0.1).clone()
    HKV = k.shape[1]
    q.view(q.shape[0], HKV, -1, WIDTH)[:] = 1.0
    k[call.inputs["cu_seqlens_k"][:-1].long() + at] = 60 * 16 / WIDTH
    return call.with_inputs(q=q, k=k)


def _call(label: str, tensors: dict[str, torch.Tensor], live: Sequence[int], kind: str) -> Call:
    inputs = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    q, k = inputs["q"], inputs["k"]
    inputs["cu_seqlens_q"] = torch.arange(len(live) + 1, dtype=torch.int32, device=q.device)
    inputs["cu_seqlens_k"] = _offsets(live, q.device)
    facts = _facts(q.shape[1], k.shape[1], live, kind)
    return Call(SPEC.name, inputs, _scalars(live), {"out": torch.empty_like(q)}, label, facts)


def _offsets(live: Sequence[int], device: torch.device | str) -> torch.Tensor:
    return torch.tensor([0, *live], dtype=torch.int64).cumsum(0).to(torch.int32).to(device)


def _scalars(live: Sequence[int]) -> dict[str, Any]:
    widest = DRAFT_WIDTH if max(live) > TARGET_WIDTH else TARGET_WIDTH
    return {"max_seqlen_k": widest, "softmax_scale": None, "max_seqlen_q": 1}


def _facts(HQ: int, HKV: int, live: Sequence[int], kind: str) -> dict[str, Any]:
    return {"B": len(live), "HQ": HQ, "HKV": HKV, "lengths": list(live), "kind": kind}


def _generator(label: str, seed: int, device: torch.device | str) -> torch.Generator:
    digest = hashlib.sha256(f"{SPEC.name} {label} {seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))


def _refusal(field: str, given: object, allowed: str, remedy: str = "") -> ParameterError:
    return ParameterError(SPEC.name, [Reason(field, repr(given), allowed, remedy)])
