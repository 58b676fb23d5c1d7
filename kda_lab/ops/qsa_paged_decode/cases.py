"""Calls of `qsa.paged_decode`: benchmark rows, synthetic tensors, guard rows, changed contents, edge cases.

Axes: B rows, HQ query heads, HKV key heads, D = 256, W columns, S pool slots, R requests, L columns of the slot table.
q and out [B, HQ, D], k_pool and v_pool [S, HKV, D], all BF16; tokens [B, W], lengths [B], requests [B] and
req_to_slot [R, L], all int32. Pool slots that no row names hold NaN. The selections are drawn on the CPU and are the
same on every device; q, k and v depend on the device type too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.qsa_packed_decode import cases as packed
from kda_lab.ops.qsa_paged_decode import layouts
from kda_lab.ops.qsa_paged_decode.calls import (
    facts_of,
    generator_of,
    paged_call,
    refusal,
    reordered,
    scattered,
    weightiest_last,
)
from kda_lab.ops.qsa_paged_decode.layouts import DRAFT_WIDTH, TARGET_WIDTH, Room
from kda_lab.ops.qsa_paged_decode.oracle import geometry
from kda_lab.ops.qsa_paged_decode.spec import SPEC

WIDTH = packed.WIDTH
TOPOLOGIES = packed.TOPOLOGIES
BATCHES = packed.BATCHES
KINDS = ("short", "medium", "saturated", "mixed", "draft", "verify", "published")
DRAFT_CYCLE = (6, 72, 2055, 518, 2, 1301, 2052, 257)
"""Valid columns of draft rows: those of a frozen selection, and 1 to 4 newer ones."""
VERIFY_BASES = (63, 2047, 510, 1)
"""Tokens before the draft tokens of a request that the target model verifies: its rows select one more each."""
VERIFY_ROWS = 4
INDEX_SETS = 8
"""Distinct selections among the input sets of a timed row: drawing one for each of hundreds would take minutes."""


def lengths(kind: str, batch: int) -> tuple[int, ...]:
    """Valid columns of each of `batch` rows.

    short, medium, saturated, mixed and published are those of `qsa.packed_decode`; draft cycles through rows with
    holes between valid columns, verify through requests of four rows that select their whole prefix.

    Raises:
        ParameterError: unknown kind, a batch below 1, or a batch without published lengths.
    """
    if kind in ("draft", "verify") and batch >= 1:
        if kind == "draft":
            return tuple(DRAFT_CYCLE[r % len(DRAFT_CYCLE)] for r in range(batch))
        bases = tuple(VERIFY_BASES[r // VERIFY_ROWS % len(VERIFY_BASES)] for r in range(batch))
        return tuple(base + 1 + r % VERIFY_ROWS for r, base in enumerate(bases))
    if kind not in KINDS:
        raise refusal("kind", kind, ", ".join(map(repr, KINDS)))
    try:
        return packed.lengths(kind, batch)
    except ParameterError as error:
        raise ParameterError(SPEC.name, error.reasons) from error


def rows(
    topologies: Sequence[str] = ("tp1", "tp2"),
    batches: Sequence[int] = BATCHES,
    kinds: Sequence[str] = ("short", "medium", "saturated"),
) -> list[Row]:
    """Benchmark rows, one for each topology, batch and kind, in that order: `tp1-B4-saturated`."""
    found = []
    for topology in topologies:
        if topology not in TOPOLOGIES:
            raise refusal("topology", topology, ", ".join(map(repr, TOPOLOGIES)))
        HQ, HKV = TOPOLOGIES[topology]
        for batch in batches:
            for kind in kinds:
                lengths(kind, batch)
                parameters = {"HQ": HQ, "HKV": HKV, "B": batch, "W": _width(kind), "lengths": kind}
                found.append(Row(SPEC.name, f"{topology}-B{batch}-{kind}", parameters))
    return found


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call with peaky scores, as real ones are: each query leans towards four of its keys, the last column's included.

    Another is token 0 where the row selected it, so that a hole taken for token 0 is seen. V has a mean of its own in
    each channel, since attention over V without a mean nearly cancels out.
    """
    axes = row.parameters
    kind = axes["lengths"]
    heads, counts = (axes["HQ"], axes["HKV"]), lengths(kind, axes["B"])
    return drawn(row.label, heads, counts, kind, seed, device)


def drawn(
    label: str, heads: tuple[int, int], counts: Sequence[int], kind: str, seed: int, device: torch.device | str = "cpu"
) -> Call:
    """A peaky call whose row b has `counts[b]` valid columns; the kind says the width and which rows share a request."""
    owners, width = _owners(kind, len(counts)), _width(kind)
    return _peaky(label, heads, (counts, owners, layouts.room_for(counts, owners, width)), kind, seed, device)


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing: one allocation a tensor, one draw, views as calls.

    Every view starts on a multiple of 16 bytes. Values have a real call's magnitude, not its structure; the sets take
    turns with `INDEX_SETS` selections, each on memory of its own, all with the row's counts of valid columns.
    """
    axes = row.parameters
    HQ, HKV, B, kind = axes["HQ"], axes["HKV"], axes["B"], axes["lengths"]
    counts, owners = lengths(kind, B), _owners(kind, B)
    room = layouts.room_for(counts, owners, _width(kind))
    generator, host = generator_of(row.label, seed, device), generator_of(row.label, seed, "cpu")
    drawn_layouts = [layouts.draw(counts, owners, room, host) for _ in range(min(count, INDEX_SETS))]
    bf16: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
    q = torch.empty(count, B, HQ, WIDTH, **bf16).normal_(0.0, 2.0, generator=generator)
    k = torch.empty(count, room.slots, HKV, WIDTH, **bf16).normal_(generator=generator)
    v = torch.empty(count, room.slots, HKV, WIDTH, **bf16).normal_(0.5, 1.0, generator=generator)
    out = torch.empty(count, B, HQ, WIDTH, **bf16)
    names = drawn_layouts[0].tensors()
    indices = {n: _copies([x.tensors()[n] for x in drawn_layouts], count, device) for n in names}
    facts = facts_of((HQ, HKV), drawn_layouts[0], kind)
    return [
        Call(
            SPEC.name,
            {"q": q[i], "k_pool": k[i], "v_pool": v[i], **{n: views[i] for n, views in indices.items()}},
            {"softmax_scale": None},
            {"out": out[i]},
            row.label,
            facts,
        )
        for i in range(count)
    ]


def with_guard_rows(call: Call, count: int) -> Call:
    """The call with `count` more slots at the end of the pools; slots that no row names hold NaN, wherever they are."""
    used = torch.cat(geometry(call).slots).unique()
    grown = {}
    for name in ("k_pool", "v_pool"):
        old = call.inputs[name]
        grown[name] = torch.full(
            (old.shape[0] + count, *old.shape[1:]), float("nan"), dtype=old.dtype, device=old.device
        )
        grown[name][used] = old[used]
    return call.with_inputs(**grown)


def changed(call: Call, lengths: str | Sequence[int], seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers, with other selections, pages and requests: copy them into `call.inputs`.

    Args:
        lengths: `shorter`, `longer`, or the new count of valid columns of each row.
        source: a call of the same heads whose selected pool rows are reused in another order, so that what a real
            capture looks like is kept; None draws peaky synthetic contents.

    Returns:
        Every input, shaped as in `call`; pool slots that no row names hold NaN.

    Raises:
        ParameterError: the new rows do not fit in the buffers (`with_guard_rows` makes room), or the source has other heads.
    """
    i = call.inputs
    heads = i["q"].shape[1], i["k_pool"].shape[1]
    counts, (owners, room) = new_counts(call, lengths), _shape_of(call)
    label = f"{call.label}-changed"
    fresh = _peaky(label, heads, (counts, owners, room), "changed", seed, call.device)
    if source is not None:
        given = source.inputs["q"].shape[1], source.inputs["k_pool"].shape[1]
        if given != heads:
            raise refusal("source", given, f"the call's heads, {heads}")
        fresh = weightiest_last(fresh.with_inputs(**reordered(source, fresh, seed)))
    return dict(fresh.inputs)


def new_counts(call: Call, wanted: str | Sequence[int]) -> tuple[int, ...]:
    """Valid columns of each row that `changed` gives.

    `longer`: every row that has room in its columns gets half as many again and a tile more, as far as the pool has
    pages for it.

    Raises:
        ParameterError: an unknown word, or not one count a row.
    """
    old, width = geometry(call).counts, call.inputs["tokens"].shape[1]
    if wanted == "shorter":
        return tuple(max(1, n * 2 // 5) if n else 0 for n in old)
    if wanted == "longer":
        return _longer(call, old, min(width, call.inputs["req_to_slot"].shape[1]))
    if isinstance(wanted, str):
        raise refusal("lengths", wanted, "'shorter', 'longer' or one count a row")
    counts = tuple(int(n) for n in wanted)
    if len(counts) != len(old) or min(counts) < 0 or max(counts) > width:
        raise refusal("lengths", counts, f"{len(old)} counts of 0 to {width}")
    return counts


def _longer(call: Call, old: Sequence[int], widest: int) -> tuple[int, ...]:
    if min(old) >= widest:
        return tuple(old)
    (owners, room), longer = _shape_of(call), list(old)
    spare = room.slots // layouts.PAGE - 1
    # The shortest first: it gains whole tiles, so that a kernel that remembers tiles is seen.
    for b in sorted(range(len(old)), key=lambda b: old[b]):
        wanted = min(widest, old[b] + old[b] // 2 + 2 * layouts.PAGE)
        attempt = [*longer[:b], wanted, *longer[b + 1 :]]
        if layouts.pages_needed(attempt, owners) <= spare:
            longer = attempt
    if longer == list(old):
        raise refusal("lengths", "longer", "'shorter', since the pool has no free page", "Use with_guard_rows().")
    return tuple(longer)


def _shape_of(call: Call) -> tuple[tuple[int, ...], Room]:
    """Which rows share a request, numbered in the order of their first row, and the extents of the call's buffers."""
    i = call.inputs
    order = list(dict.fromkeys(i["requests"].tolist()))
    owners = tuple(order.index(request) for request in i["requests"].tolist())
    table = i["req_to_slot"].shape
    return owners, Room(i["tokens"].shape[1], (table[0], table[1]), i["k_pool"].shape[0])


def _peaky(
    label: str,
    heads: tuple[int, int],
    rows: tuple[Sequence[int], Sequence[int], Room],
    kind: str,
    seed: int,
    device: torch.device | str,
) -> Call:
    counts, owners, room = rows
    layout = layouts.draw(counts, owners, room, generator_of(label, seed, "cpu"))
    (HQ, HKV), used = heads, layout.used
    draw: dict[str, Any] = {"generator": generator_of(label, seed, device), "device": device}
    k = torch.randn(len(used), HKV, WIDTH, **draw)
    v = torch.randn(len(used), HKV, WIDTH, **draw) + torch.randn(1, HKV, WIDTH, **draw)
    q = 1.5 * torch.randn(len(counts), HKV, HQ // HKV, WIDTH, **draw)
    size = torch.tensor(counts)
    at = (torch.rand(len(counts), 4, generator=draw["generator"], device=device).cpu() * size[:, None]).long()
    at[:, 0] = size - 1
    for b, columns in enumerate(layout.columns):
        first = (layout.tokens[b, columns] == 0).nonzero()[:, 0]
        at[b, 1] = first[0] if len(first) else at[b, 1]
    if len(used):
        chosen = torch.stack(
            [s[a.clamp(min=0)] if len(s) else used[:1].expand(4) for s, a in zip(layout.slots, at, strict=True)]
        )
        keys = k[torch.searchsorted(used, chosen).to(device)].permute(0, 2, 1, 3)  # [B, HKV, 4, D]
        # q = c·k scores 16·c against k, and the other keys of a row together weigh about 4 times its count: so each
        # chosen key gets 3 to 20 % of the weight however long the row is, and none can be left out unseen.
        most = size.clamp(min=1).log()[:, None, None, None].to(device)
        q = q + (most - 2 * torch.rand(len(counts), HKV, HQ // HKV, 4, **draw)).clamp(min=0) / 16 @ keys
    tensors = {"q": q.view(-1, HQ, WIDTH), "k_pool": scattered(k, used, room), "v_pool": scattered(v, used, room)}
    return paged_call(label, tensors, layout, kind)


def edge_calls(seed: int, device: torch.device | str = "cpu") -> dict[str, Call]:
    """Small calls at the edges of the definition, by name; all of 24 query and 2 key heads but the last two.

    zero_rows (first, middle and last row empty), all_zero_rows, length_one, zero_keys (output is the mean of V),
    big_scores (|score| about 1000), equal_values (V constant), holes (draft rows), draft_width (2055 valid columns),
    shared_request (four rows of one request, across the end of a page).
    """
    tp1, tp2 = TOPOLOGIES["tp1"], TOPOLOGIES["tp2"]

    def make(name: str, counts: Sequence[int], heads: tuple[int, int] = tp1, kind: str = "mixed") -> Call:
        return drawn(f"edge-{name}", heads, counts, kind, seed, device)

    zero_keys, big, equal = make("zero_keys", (64, 65)), make("big_scores", (129, 64)), make("equal_values", (7, 130))
    return {
        "zero_rows": make("zero_rows", (0, 65, 0, 17, 0)),
        "all_zero_rows": make("all_zero_rows", (0, 0)),
        "length_one": make("length_one", (1, 1, 1, 1)),
        "zero_keys": zero_keys.with_inputs(k_pool=_live(zero_keys, "k_pool", 0.0)),
        "big_scores": big.with_inputs(q=big.inputs["q"] * 200),
        "equal_values": equal.with_inputs(v_pool=_live(equal, "v_pool", 1.7109375)),
        "holes": make("holes", (6, 72, 2, 131), kind="draft"),
        "draft_width": make("draft_width", (2055, 2051), tp2, "draft"),
        "shared_request": make("shared_request", (64, 65, 66, 67), tp2, "verify"),
    }


def _live(call: Call, name: str, value: float) -> torch.Tensor:
    """A pool with one value at every slot that holds numbers."""
    return torch.where(call.inputs[name].isnan(), call.inputs[name], value)


def _owners(kind: str, batch: int) -> tuple[int, ...]:
    return tuple(b // VERIFY_ROWS if kind == "verify" else b for b in range(batch))


def _width(kind: str) -> int:
    return DRAFT_WIDTH if kind == "draft" else TARGET_WIDTH


def _copies(tensors: Sequence[torch.Tensor], count: int, device: torch.device | str) -> torch.Tensor:
    """[count, …]: the tensors in turn, each copy on memory that starts on a multiple of 16 bytes."""
    first = tensors[0]
    padded = torch.zeros(count, -(-first.numel() // 4) * 4, dtype=first.dtype, device=device)
    source = torch.stack([tensor.flatten() for tensor in tensors]).to(device)
    padded[:, : first.numel()] = source[torch.arange(count, device=device) % len(tensors)]
    return padded.as_strided((count, *first.shape), (padded.shape[1], *first.stride()))
