"""Calls of `qsa.expand_blocks`: benchmark rows, synthetic selections, changed lengths, edge cases.

Axes: B rows, k blocks a row, r = 4 tokens a block. blocks [B, k], lengths [B], positions [B], tokens [B, k·r + r - 1],
all int32. There is no free room in these buffers, so no guard rows: -1 columns are the room, and part of the op.
Drawn on the CPU whatever the device, from (label, seed): one content everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.qsa_expand_blocks.oracle import RATIO, valid_count
from kda_lab.ops.qsa_expand_blocks.spec import SPEC

TOPK_BLOCKS = 512
KINDS = ("decode", "prefill", "holes", "overrun")
"""decode: blocks of a row that is the last of its request, in the order of their scores. prefill: the row stands
anywhere in its request. holes: decode, with -1 among the blocks. overrun: decode, with blocks that begin or end behind
the length."""
LENGTHS = ("short", "saturated", "mixed")
BATCHES = (1, 4, 16, 128, 1024)
LONGEST = 262144


def lengths(kind: str, B: int, k: int) -> tuple[int, ...]:
    """Tokens of each row's request: short 17 to 227, saturated one to four times k blocks and a tail, mixed all edges.

    Raises:
        ParameterError: unknown kind.
    """
    full = k * RATIO
    if kind == "short":
        return tuple(17 + 37 * b % 211 for b in range(B))
    if kind == "saturated":
        return tuple(full * (1 + b % 4) + (3 + b) % 4 for b in range(B))
    if kind == "mixed":
        cycle = (full + 3, 1, 0, full - 1, 7, full, 4, full + 4, 3, full + 7, LONGEST - 1, full + 2, LONGEST)
        return tuple(cycle[b % len(cycle)] for b in range(B))
    raise _refusal("lengths", kind, ", ".join(map(repr, LENGTHS)))


def make_row(B: int, kind: str = "decode", live: str = "saturated", k: int = TOPK_BLOCKS) -> Row:
    """One row: `B4-decode-saturated`, with `-k8` where k is not 512.

    Raises:
        ParameterError: an unknown kind or class of lengths, or an extent below 1.
    """
    if kind not in KINDS:
        raise _refusal("kind", kind, ", ".join(map(repr, KINDS)))
    if min(B, k) < 1:
        raise _refusal("B and k", (B, k), "1 or more")
    lengths(live, B, k)
    label = f"B{B}-{kind}-{live}" + ("" if k == TOPK_BLOCKS else f"-k{k}")
    return Row(SPEC.name, label, {"B": B, "k": k, "kind": kind, "lengths": live})


def rows(
    batches: Sequence[int] = BATCHES, kinds: Sequence[str] = KINDS, live: Sequence[str] = ("short", "saturated")
) -> list[Row]:
    """Benchmark rows, one for each batch, kind and class of lengths, in that order."""
    return [make_row(B, kind, which) for B in batches for kind in kinds for which in live]


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row; positions are the last of their request, but for kind `prefill`."""
    axes = row.parameters
    live = lengths(axes["lengths"], axes["B"], axes["k"])
    return _drawn(row.label, live, axes["k"], axes["kind"], seed).to(device)


def make_call(
    blocks: Sequence[Sequence[int]], live: Sequence[int], positions: Sequence[int], label: str = "", kind: str = "given"
) -> Call:
    """A call of given blocks (rows of one width), lengths and positions, on the CPU."""
    B, k = len(blocks), len(blocks[0])
    inputs = {
        "blocks": torch.tensor(blocks, dtype=torch.int32).view(B, k),
        "lengths": torch.tensor(live, dtype=torch.int32),
        "positions": torch.tensor(positions, dtype=torch.int32),
    }
    facts = {"B": B, "k": k, "kind": kind, "lengths": list(live)}
    out = torch.empty(B, k * RATIO + RATIO - 1, dtype=torch.int32)
    return Call(SPEC.name, inputs, {"ratio": RATIO}, {"tokens": out}, label, facts)


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing: one draw, its blocks in another order in each set."""
    first = synthesise(row, seed, device)
    sets = [first.to(device) for _ in range(count)]
    return [call.with_inputs(**shuffled(call, i)) for i, call in enumerate(sets)]


def with_guard_rows(call: Call, count: int) -> Call:
    """The call as it is: no buffer has rows behind its live ones."""
    return call


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New blocks, lengths and positions for the same buffers: copy them into `call.inputs` in place.

    Args:
        which: `shorter` (two fifths of each length) or `longer` (twice the length and 5).
        source: not used: ids have no magnitude that would have to be kept.

    Raises:
        ParameterError: an unknown change.
    """
    old = call.inputs["lengths"].tolist()
    if which not in ("shorter", "longer"):
        raise _refusal("which", which, "'shorter', 'longer'")
    live = [n * 2 // 5 if which == "shorter" else min(2 * n + 5, LONGEST) for n in old]
    kind = call.facts.get("kind", "decode")
    fresh = _drawn(f"{call.label}-{which}", live, call.inputs["blocks"].shape[1], kind, seed)
    return dict(fresh.to(call.device).inputs)


def shuffled(call: Call, seed: int) -> dict[str, torch.Tensor]:
    """The call's blocks in another order in each row: contents for a timing copy."""
    return {"blocks": call.inputs["blocks"].roll(1 + seed, 1)}


def edge_calls(seed: int, device: torch.device | str = "cpu") -> dict[str, Call]:
    """Small calls at the edges of the definition, by name, k = 8 or less.

    Every kind with mixed lengths; golden (four rows of two to four blocks); negative (ids below -1); wild (ids whose
    tokens pass 2^31); many_rows (520 rows).
    """
    found = {kind: synthesise(make_row(13, kind, "mixed", 8), seed) for kind in KINDS}
    found["golden"] = make_call(
        [[1, 0, -1, -1], [0, -1, -1, -1], [-1, -1, -1, -1], [2, 0, -1, -1]],
        (11, 4, 1, 13),
        (10, 3, 0, 12),
        "edge-golden",
    )
    found["negative"] = make_call([[-5, 1, -(2**31), 0]], (9,), (8,), "edge-negative")
    found["wild"] = make_call([[2**30, 1, 2**31 - 1, 0]], (9,), (8,), "edge-wild")
    found["many_rows"] = synthesise(make_row(520, "holes", "short", 8), seed)
    return {name: call.to(device) for name, call in found.items()}


def _drawn(label: str, live: Sequence[int], k: int, kind: str, seed: int) -> Call:
    digest = hashlib.sha256(f"{SPEC.name} {label} {seed}".encode()).digest()
    draw = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))
    positions = [n - 1 for n in live]
    if kind == "prefill":
        positions = [int(torch.randint(0, n, (1,), generator=draw)) if n else -1 for n in live]
    blocks = [_selection(n, position, k, kind, draw) for n, position in zip(live, positions, strict=True)]
    return make_call(blocks, live, positions, label, kind)


def _selection(length: int, position: int, k: int, kind: str, draw: torch.Generator) -> list[int]:
    """k ids of one row: as many blocks as are complete, in any order, -1 behind them."""
    complete = min((position + 1) // RATIO, length // RATIO) + (2 if kind == "overrun" else 0)
    ids = torch.randperm(complete, generator=draw)[:k].tolist()
    if kind == "holes":
        ids = [block if torch.rand(1, generator=draw) > 0.3 else -1 for block in ids]
    return ids + [-1] * (k - len(ids))


def expected_count(call: Call) -> list[int]:
    """Valid tokens of each row of a call of kind `decode`."""
    return [valid_count(n, call.inputs["blocks"].shape[1]) for n in call.inputs["lengths"].tolist()]


def _refusal(field: str, given: object, allowed: str) -> ParameterError:
    return ParameterError(SPEC.name, [Reason(field, repr(given), allowed)])
