"""Calls of `qsa.block_scores`: benchmark rows, synthetic tensors, guard rows, changed contents, edge cases.

Axes: B rows, HI index heads, N scores a row (16 a page), S pool entries. Tensors as `spec.py` lists them.
Synthetic tensors depend on (label, seed) and on the device type: CPU and CUDA draw different numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.qsa.geometry import INDEX_DIM, INDEX_HEADS, PAGE_ENTRIES
from kda_lab.ops.qsa_block_scores.spec import SPEC

LENGTHS = (512, 4096, 65536)
"""Compressed keys of the timed rows: 2048, 16384 and 262144 tokens."""
BATCHES = (1, 4, 16, 64)
KINDS = ("uniform", "ragged")
RAGGED_SHARES = (1.0, 0.0, 0.53, 0.02, 0.31, 0.98, 0.11, 0.72)
"""Of N, in turn over the rows of a ragged call: full, empty, and lengths that end within a page."""


def lengths(kind: str, batch: int, capacity: int) -> tuple[int, ...]:
    """Compressed keys of each row: all of `capacity`, or ragged shares of it with a full and an empty row.

    Raises:
        ParameterError: unknown kind, a batch below 1, or a capacity that is no positive multiple of 16.
    """
    reasons = []
    if kind not in KINDS:
        reasons.append(Reason("kind", repr(kind), ", ".join(map(repr, KINDS))))
    if batch < 1:
        reasons.append(Reason("batch", repr(batch), "1 or more"))
    if capacity < 1 or capacity % PAGE_ENTRIES:
        reasons.append(Reason("capacity", repr(capacity), f"a positive multiple of {PAGE_ENTRIES}"))
    if reasons:
        raise ParameterError(SPEC.name, reasons)
    if kind == "uniform":
        return (capacity,) * batch
    return tuple(int(RAGGED_SHARES[b % len(RAGGED_SHARES)] * capacity) for b in range(batch))


def rows(
    capacities: Sequence[int] = LENGTHS,
    batches: Sequence[int] = BATCHES,
    kinds: Sequence[str] = ("uniform",),
    heads: int = INDEX_HEADS,
) -> list[Row]:
    """Benchmark rows, one for each capacity, batch and kind, in that order: `B4-N4096-uniform`."""
    found = []
    for capacity in capacities:
        for batch in batches:
            for kind in kinds:
                lengths(kind, batch, capacity)
                parameters = {"B": batch, "N": capacity, "HI": heads, "kind": kind}
                found.append(Row(SPEC.name, f"B{batch}-N{capacity}-{kind}", parameters))
    return found


def capture_rows() -> list[Row]:
    """The rows of the committed captures: small, with full, empty and ragged lengths; drawn from seed 0."""
    return rows((512,), (1,)) + rows((48,), (2,)) + rows((64,), (3,), ("ragged",)) + rows((256,), (4,), ("ragged",))


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row: normal queries, keys and queries with a direction in common, so that a ReLU keeps most of it.

    Pages are a random permutation of the pool's; dead pages are -1 and dead entries stale numbers.
    """
    axes = row.parameters
    live = lengths(axes["kind"], axes["B"], axes["N"])
    return _draw(row.label, (axes["HI"], axes["N"]), live, axes["kind"], _generator(row.label, seed, device))


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing; every tensor is an allocation of its own."""
    axes = row.parameters
    live = lengths(axes["kind"], axes["B"], axes["N"])
    generator = _generator(row.label, seed, device)
    return [_draw(row.label, (axes["HI"], axes["N"]), live, axes["kind"], generator) for _ in range(count)]


def with_guard_rows(call: Call, count: int) -> Call:
    """The call with pages for `count` more entries behind its pool; every entry that no row has holds NaN."""
    keys = call.inputs["keys"]
    more = -(-count // PAGE_ENTRIES) * PAGE_ENTRIES
    grown = torch.full((keys.shape[0] + more, keys.shape[1]), float("nan"), dtype=keys.dtype, device=keys.device)
    live = torch.zeros(keys.shape[0], dtype=torch.bool, device=keys.device)
    live[_live_entries(call)] = True
    grown[: keys.shape[0]][live] = keys[live]
    return call.with_inputs(keys=grown)


def changed(call: Call, which: str | Sequence[int], seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers, with other live lengths: copy them into `call.inputs` in place.

    Args:
        which: `shorter`, `longer`, or the new length of each row.
        source: a call of the same width and heads whose queries and live keys are reused in another order, so that
            what a real capture looks like is kept; None draws synthetic ones.

    Returns:
        All four inputs, shaped as in `call`; rows share pages where the pool has too few. Dead entries hold NaN.

    Raises:
        ParameterError: lengths outside 0 to N, an unknown word, or no row that could become longer.
    """
    batch, heads, _ = call.inputs["q_index"].shape
    capacity = call.inputs["pages"].shape[1] * PAGE_ENTRIES
    live = _new_lengths(call, which)
    generator = _generator(f"{call.label}-changed", seed, call.device)
    fresh = _draw(call.label, (heads, capacity), live, "changed", generator, call.inputs["keys"].shape[0])
    if source is not None:
        old = source.inputs["keys"][_live_entries(source).unique()]
        order = torch.randperm(max(1, old.shape[0]), generator=generator, device=call.device)
        if old.shape[0]:
            again = order.repeat(-(-fresh.inputs["keys"].shape[0] // old.shape[0]))[: fresh.inputs["keys"].shape[0]]
            fresh = fresh.with_inputs(keys=old[again])
        turned = source.inputs["q_index"].roll(1, 0).flip(1)
        fresh = fresh.with_inputs(q_index=turned[torch.arange(batch, device=call.device) % turned.shape[0]])
    return dict(with_guard_rows(fresh, 0).inputs)


def shuffled(call: Call, seed: int) -> dict[str, torch.Tensor]:
    """Contents for a timing copy of a recorded call: its pool's pages in another order, its queries turned."""
    keys, pages = call.inputs["keys"], call.inputs["pages"]
    order = torch.randperm(keys.shape[0] // PAGE_ENTRIES, generator=_generator(call.label, seed, "cpu")).to(keys.device)
    place = torch.argsort(order).to(torch.int32)
    moved = keys.view(-1, PAGE_ENTRIES, keys.shape[1])[order].reshape(keys.shape)
    renamed = torch.where(pages >= 0, place[pages.clamp(min=0).long()], pages)
    return {
        "q_index": call.inputs["q_index"].flip(1),
        "keys": moved,
        "pages": renamed,
        "lengths": call.inputs["lengths"].clone(),
    }


def edge_calls(seed: int, device: torch.device | str = "cpu") -> dict[str, Call]:
    """Small calls at the edges of the definition, by name; 4 heads, 64 scores a row.

    empty_rows (the first and last row, and all rows), one_block, page_edges (15, 16, 17 and 32 blocks), equal_keys (every
    live score of a row is the same), all_negative (every product is below 0: all live scores are 0), shared_pages (all
    rows read the same pages), eight_heads.
    """

    def make(name: str, live: Sequence[int], heads: int = INDEX_HEADS) -> Call:
        return _draw(f"edge-{name}", (heads, 64), live, "edge", _generator(name, seed, device))

    equal, negative, shared = make("equal_keys", (33, 64)), make("all_negative", (20, 64)), make("shared", (40, 64, 7))
    key = equal.inputs["keys"][:1]
    pages = shared.inputs["pages"][1:2].expand(3, -1).contiguous()
    return {
        "empty_rows": make("empty_rows", (0, 30, 0)),
        "all_empty": make("all_empty", (0, 0)),
        "one_block": make("one_block", (1, 1)),
        "page_edges": make("page_edges", (15, 16, 17, 32)),
        "equal_keys": equal.with_inputs(keys=key.expand(equal.inputs["keys"].shape).contiguous()),
        "all_negative": negative.with_inputs(
            q_index=-negative.inputs["q_index"].abs(), keys=negative.inputs["keys"].abs()
        ),
        "shared_pages": shared.with_inputs(pages=pages),
        "eight_heads": make("eight_heads", (64, 50), 8),
    }


def _new_lengths(call: Call, wanted: str | Sequence[int]) -> tuple[int, ...]:
    old = [int(n) for n in call.inputs["lengths"].tolist()]
    capacity = call.inputs["pages"].shape[1] * PAGE_ENTRIES
    if wanted == "shorter":
        return tuple(max(1, n * 2 // 5) if n else 0 for n in old)
    if wanted == "longer":
        if min(old) >= capacity:
            raise _refusal("lengths", wanted, f"'shorter', since every row has all of its {capacity} blocks")
        return tuple(min(capacity, n + max(1, (capacity - n) * 3 // 4)) for n in old)
    if isinstance(wanted, str):
        raise _refusal("lengths", wanted, "'shorter', 'longer' or one length a row")
    live = tuple(int(n) for n in wanted)
    if len(live) != len(old) or min(live) < 0 or max(live) > capacity:
        raise _refusal("lengths", live, f"{len(old)} lengths of 0 to {capacity}")
    return live


def _live_entries(call: Call) -> torch.Tensor:
    """Pool entries that some row has, a row's after the other's; int64."""
    pages, n_c = call.inputs["pages"].long(), call.inputs["lengths"][:, None]
    n = torch.arange(pages.shape[1] * PAGE_ENTRIES, device=pages.device)
    entries = pages.clamp(min=0).repeat_interleave(PAGE_ENTRIES, 1) * PAGE_ENTRIES + n % PAGE_ENTRIES
    return entries[n[None, :] < n_c]


def _draw(
    label: str,
    shape: tuple[int, int],
    live: Sequence[int],
    kind: str,
    generator: torch.Generator,
    pool: int | None = None,
) -> Call:
    """A call with this many heads and scores a row; `pool` entries, or as many pages as the rows need and two more."""
    (heads, capacity), device = shape, generator.device
    draw: dict[str, Any] = {"generator": generator, "device": device}
    need = [-(-n // PAGE_ENTRIES) for n in live]
    count = sum(need) + 2 if pool is None else pool // PAGE_ENTRIES
    # Drawn in BF16: FP32 numbers of a gigabyte pool would need two more of its size.
    keys = torch.empty(count * PAGE_ENTRIES, INDEX_DIM, dtype=torch.bfloat16, device=device)
    keys.normal_(generator=generator)
    common = torch.randn(INDEX_DIM, **draw)
    keys += (0.25 * common).bfloat16()
    q = torch.randn(len(live), heads, INDEX_DIM, **draw) + 0.25 * common
    order = torch.randperm(count, **draw).to(torch.int32)
    pages = torch.full((len(live), capacity // PAGE_ENTRIES), -1, dtype=torch.int32, device=device)
    start = 0
    for b, used in enumerate(need):
        pages[b, :used] = order[(start + torch.arange(used, device=device)) % count]
        start += used
    inputs = {
        "q_index": q.to(torch.bfloat16),
        "keys": keys,
        "pages": pages,
        "lengths": torch.tensor(live, dtype=torch.int32, device=device),
    }
    facts = {"B": len(live), "HI": heads, "N": capacity, "lengths": list(live), "kind": kind}
    out = torch.empty(len(live), capacity, dtype=torch.float32, device=device)
    return Call(SPEC.name, inputs, {}, {"scores": out}, label, facts)


def _generator(label: str, seed: int, device: torch.device | str) -> torch.Generator:
    digest = hashlib.sha256(f"{SPEC.name} {label} {seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))


def _refusal(field: str, given: object, allowed: str) -> ParameterError:
    return ParameterError(SPEC.name, [Reason(field, repr(given), allowed)])
