"""Calls of `qsa.compress_keys`: benchmark rows, synthetic tensors, guard rows, changed contents, edge cases.

Axes: T tokens, R requests (rows of the ring), W rotary width, P positions of the table. Tensors as `spec.py` lists them.
A step is a list of (request, first position, tokens); padding follows it. Slots come from pages of 64 in an order of
their own. Synthetic tensors depend on (label, seed) and on the device type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Call, Row
from kda_lab.ops.qsa.geometry import INDEX_DIM, PAGE_TOKENS, RATIO
from kda_lab.ops.qsa.rmsnorm import EPS
from kda_lab.ops.qsa.rope import cos_sin_table
from kda_lab.ops.qsa_compress_keys.spec import SPEC

CHANGES = ("keys", "positions")
"""Contents that a serving process changes in place between launches: raw keys, and where the requests are."""
KINDS = ("decode", "prefill", "verify", "mixed")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
PREFILL_TOKENS = 2048
REQUESTS = 128
ROTARY = 64
FAR_SLOT = 1 << 33
"""Added to all slots of a mixed call: beyond 32 bits, as element offsets are long before slots are."""
MIXED_TOKENS = (7, 1, 13, 2, 4, 3, 1, 5)
MIXED_STARTS = (0, 3, 6, 61, 8, 62, 130, 1)
PADDING = 3

Part = tuple[int, int, int]
"""Request, first position, tokens."""


def step_of(kind: str, tokens: int) -> tuple[list[Part], int]:
    """The parts of a step and its padding tokens.

    decode: a token a request, at positions of every remainder. prefill: one request from position 4098 on, so that its
    first group began earlier. verify: 4 draft tokens a request. mixed: several requests of 1 to 13 tokens and padding.

    Raises:
        ParameterError: unknown kind, fewer than one token, or a number of tokens that the kind cannot have.
    """
    if kind not in KINDS:
        raise _refusal("kind", kind, ", ".join(map(repr, KINDS)))
    if tokens < 1 or (kind == "verify" and tokens % 4):
        raise _refusal("tokens", tokens, "a positive multiple of 4" if kind == "verify" else "1 or more")
    if kind == "prefill":
        return [(5, 4098, tokens)], 0
    if kind == "decode":
        return [(b, 511 + 37 * b % 257 - (b % 3 == 1), 1) for b in range(tokens)], 0
    if kind == "verify":
        return [(b, 253 + 7 * b % 97, 4) for b in range(tokens // 4)], 0
    parts: list[Part] = []
    left = max(1, tokens - PADDING)
    while left:
        number = len(parts)
        count = min(left, MIXED_TOKENS[number % len(MIXED_TOKENS)])
        parts.append((number + 1, MIXED_STARTS[number % len(MIXED_STARTS)], count))
        left -= count
    return parts, tokens - sum(count for _, _, count in parts)


def rows(
    batches: Sequence[int] = BATCHES,
    prefills: Sequence[int] = (PREFILL_TOKENS,),
    verifies: Sequence[int] = (),
    mixed: Sequence[int] = (),
    rotary: int = ROTARY,
) -> list[Row]:
    """Benchmark rows: `decode-T4` of each batch, then `prefill-T2048`, `verify-T16` and `mixed-T40` of those asked for."""
    wanted = [("decode", n) for n in batches] + [("prefill", n) for n in prefills]
    wanted += [("verify", n) for n in verifies] + [("mixed", n) for n in mixed]
    found = []
    for kind, tokens in wanted:
        parts, _ = step_of(kind, tokens)
        requests = max(REQUESTS if kind in ("decode", "prefill") else 0, max(part[0] for part in parts) + 2)
        parameters = {"T": tokens, "R": requests, "W": rotary, "kind": kind}
        found.append(Row(SPEC.name, f"{kind}-T{tokens}", parameters))
    return found


def capture_rows() -> list[Row]:
    """The rows of the committed captures: decode, draft verification and a mixed step; drawn from seed 0."""
    return rows((5,), (), (8,), (12, 40))


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row: keys with a mean of their own in each channel, as projections have, and stale ring places."""
    return _draw(row, _generator(row.label, seed, device))


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing; every tensor is an allocation of its own."""
    generator = _generator(row.label, seed, device)
    return [_draw(row, generator) for _ in range(count)]


def with_guard_rows(call: Call, count: int) -> Call:
    """The call with `count` more rows of NaN behind its table of cosines and sines."""
    table = call.inputs["cos_sin"]
    guard = torch.full((count, table.shape[1]), float("nan"), dtype=table.dtype, device=table.device)
    return call.with_inputs(cos_sin=torch.cat([table, guard]))


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers: copy them into `call.inputs` in place.

    Args:
        which: `keys` replaces raw keys and ring; `positions` does so and moves every request on by one position, so
            that other tokens complete their groups, from other pages.
        source: a call of the same extents whose keys are reused in another order; None draws new ones.

    Raises:
        ParameterError: an unknown change.
    """
    if which not in CHANGES:
        raise _refusal("which", which, ", ".join(map(repr, CHANGES)))
    generator = _generator(f"{call.label}-changed-{which}", seed, call.device)
    k_raw, ring = call.inputs["k_raw"], call.inputs["ring"]
    if source is None:
        new = {"k_raw": _keys(k_raw.shape, generator), "ring": _keys(ring.shape, generator)}
    else:
        turn = 1 + CHANGES.index(which)
        new = {"k_raw": source.inputs["k_raw"].roll(turn, 1), "ring": source.inputs["ring"].roll(turn, 2)}
    if which == "positions":
        padding = call.inputs["slots"] == 0
        positions = torch.where(padding, call.inputs["positions"], call.inputs["positions"] + 1)
        pages = _pages_a_request(positions.max())
        far = call.inputs["slots"] >= FAR_SLOT
        slots = _slots(call.inputs["requests"], positions, pages, ring.shape[0], 1)
        new["positions"] = positions
        new["slots"] = torch.where(padding, 0, slots + far * FAR_SLOT)
    return new


def shuffled(call: Call, seed: int) -> dict[str, torch.Tensor]:
    """Contents for a timing copy of a recorded call: channels turned, weight too, rotation the other way round."""
    turn = 1 + seed % (INDEX_DIM - 1)
    half = call.inputs["cos_sin"].shape[1] // 2
    cos, sin = call.inputs["cos_sin"][:, :half], call.inputs["cos_sin"][:, half:]
    return {
        "k_raw": call.inputs["k_raw"].roll(turn, 1),
        "ring": call.inputs["ring"].roll(turn, 2),
        "weight": call.inputs["weight"].roll(turn, 0),
        "cos_sin": torch.cat([cos, -sin], 1),
    }


def edge_calls(seed: int, device: torch.device | str = "cpu") -> dict[str, Call]:
    """Small calls at the edges of the definition, by name.

    first_token (position 0), first_group (positions 0 to 3), one_short (completes nothing), all_padding, zero_keys (a
    group of zeros gives zeros), tiny_keys (epsilon counts), full_rotary (W 128), narrow_rotary (W 32), no_offset (weight 0).
    """

    def make(name: str, parts: list[Part], padding: int = 0, rotary: int = ROTARY) -> Call:
        return _of_step(f"edge-{name}", (parts, padding), (6, rotary), "edge", _generator(name, seed, device))

    zero, tiny, plain = make("zero", [(1, 4, 4)]), make("tiny", [(1, 5, 8), (2, 3, 1)]), make("plain", [(1, 6, 6)])
    return {
        "first_token": make("first_token", [(2, 0, 1)]),
        "first_group": make("first_group", [(0, 0, 4)]),
        "one_short": make("one_short", [(1, 4, 3), (3, 9, 2)]),
        "all_padding": make("all_padding", [], 5),
        "zero_keys": zero.with_inputs(k_raw=torch.zeros_like(zero.inputs["k_raw"])),
        "tiny_keys": tiny.with_inputs(**{n: tiny.inputs[n] * 2.0**-10 for n in ("k_raw", "ring")}),
        "full_rotary": make("full_rotary", [(4, 10, 9)], rotary=128),
        "narrow_rotary": make("narrow_rotary", [(4, 10, 9)], rotary=32),
        "no_offset": plain.with_inputs(weight=torch.zeros_like(plain.inputs["weight"])),
    }


def _draw(row: Row, generator: torch.Generator) -> Call:
    axes = row.parameters
    return _of_step(row.label, step_of(axes["kind"], axes["T"]), (axes["R"], axes["W"]), axes["kind"], generator)


def _of_step(
    label: str, step: tuple[list[Part], int], shape: tuple[int, int], kind: str, generator: torch.Generator
) -> Call:
    (parts, padding), (requests, rotary), device = step, shape, generator.device
    # A padding row has length 1: request 0 at position 0, slot 0.
    ids = [request for request, _, count in parts for _ in range(count)] + [0] * padding
    at = [first + i for _, first, count in parts for i in range(count)] + [0] * padding
    tokens, top = len(ids), max(at) + 2
    request, position = (torch.tensor(v, dtype=torch.int32, device=device) for v in (ids, at))
    slots = _slots(request, position, _pages_a_request(position.max()), requests, 0)
    slots = slots + (FAR_SLOT if kind == "mixed" else 0)
    slots[tokens - padding :] = 0
    inputs = {
        "k_raw": _keys((tokens, INDEX_DIM), generator),
        "requests": request,
        "positions": position,
        "slots": slots,
        "ring": _keys((requests, RATIO, INDEX_DIM), generator),
        "weight": (0.2 * torch.randn(INDEX_DIM, generator=generator, device=device)).bfloat16(),
        "cos_sin": cos_sin_table(top, rotary, device=device),
    }
    outputs = {
        "entries": torch.empty_like(inputs["k_raw"]),
        "entry_slots": torch.empty(tokens, dtype=torch.int64, device=device),
        "new_ring": torch.empty_like(inputs["ring"]),
    }
    complete = sum((p + 1) % RATIO == 0 for p in at[: tokens - padding])
    facts = {"T": tokens, "R": requests, "W": rotary, "kind": kind, "complete": complete}
    return Call(SPEC.name, inputs, {"eps": EPS}, outputs, label, facts)


def _keys(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    draw: dict[str, Any] = {"generator": generator, "device": generator.device}
    return (torch.randn(*shape, **draw) + 0.5 * torch.randn(INDEX_DIM, **draw)).bfloat16()


def _pages_a_request(top: torch.Tensor) -> int:
    return int(top) // PAGE_TOKENS + 1


def _slots(requests: torch.Tensor, positions: torch.Tensor, pages: int, count: int, salt: int) -> torch.Tensor:
    """[T] int64 raw KV slots: each (request, page of positions) owns a page of 64, never page 0."""
    number = requests.long() * pages + positions.long() // PAGE_TOKENS
    page = 1 + (number + salt * 3) % (count * pages)
    return page * PAGE_TOKENS + positions.long() % PAGE_TOKENS


def _generator(label: str, seed: int, device: torch.device | str) -> torch.Generator:
    digest = hashlib.sha256(f"{SPEC.name} {label} {seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))


def _refusal(field: str, given: object, allowed: str) -> ParameterError:
    return ParameterError(SPEC.name, [Reason(field, repr(given), allowed)])
