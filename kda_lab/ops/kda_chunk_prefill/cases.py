"""Calls of `kda.chunk_prefill`: benchmark rows, synthetic tensors, guard rows, changed contents, edge cases.

Axes: T tokens, N sequences, H query and key heads, HV value heads, K and V channels, S slots, P = HV·K. Operands and
states are N(0, 1), where a wrong gate, a missing update or swapped operands move every output. The last query and key
head of every fifth token is tiny, so that epsilon counts. Slots are drawn without order, and one more than needed is
there to keep its bits. States that no sequence replaces are small, so that an error over the pool is one of those that
are. Every second sequence starts from zero although its slot holds a state.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.drawing import SLOT_GAP, SPARE_SLOTS, generator_of, moved, replaced, spaced_rows
from kda_lab.ops.kda.geometry import HEAD_DIM, LOWER_BOUND
from kda_lab.ops.kda_chunk_prefill.spec import SPEC
from kda_lab.ops.protocol import Call, Row, Scalar

CHANGES = ("operands", "sequences")
"""What a serving process changes between launches: tokens with their states, and which tokens are whose."""
HEADS = (12, 24, 96)
TOKENS = (1024, 4096, 8192)
KINDS = ("one", "mixed")
MIXED_SEQUENCES = 8
GATES = {"safe": (0.2, 0.0), "softplus": (0.2, 0.0), "steep": (0.5, 1.5)}
"""Standard deviation and mean of A_log; `steep` is the softplus gate with decays of a trained model."""
TINY = 2.0**-13
"""A row of 128 at this scale has a sum of squares near epsilon."""
TINY_EVERY = 5
QUIET = 2.0**-6
"""Scale of the states that keep their bits: final states have about 0.1."""
OPERANDS = ("q", "k", "v", "a", "beta")


def rows(heads: Sequence[int] = HEADS, tokens: Sequence[int] = TOKENS, kinds: Sequence[str] = ("one",)) -> list[Row]:
    """Benchmark rows `HV12-T8192-one`: K = V = 128, H = HV, the safe gate; `mixed` has eight sequences of any length."""
    return [
        row(f"HV{hv}-T{count}-{kind}", {"HV": hv, "lengths": lengths(kind, count)})
        for hv in heads
        for count in tokens
        for kind in kinds
    ]


def lengths(kind: str, tokens: int) -> tuple[int, ...]:
    """Tokens of each sequence of a row: all in one, or cut into eight in the proportion 1, 2, 3, …

    Raises:
        ParameterError: unknown kind, or too few tokens.
    """
    if kind not in KINDS or tokens < MIXED_SEQUENCES:
        raise _refusal("kind, tokens", (kind, tokens), f"{KINDS} with {MIXED_SEQUENCES} tokens or more")
    if kind == "one":
        return (tokens,)
    share = MIXED_SEQUENCES * (MIXED_SEQUENCES + 1) // 2
    edges = [tokens * (n * (n + 1) // 2) // share for n in range(MIXED_SEQUENCES + 1)]
    return tuple(b - a for a, b in itertools.pairwise(edges))


def capture_rows() -> list[Row]:
    """The rows of the committed captures: small, with K ≠ V, shared query heads, all gates, padding and an empty sequence."""
    return [
        row("padded-K64-V32-safe", {"HV": 2, "H": 1, "K": 64, "V": 32, "lengths": (66, 0, 3), "padding": True}),
        row("shared-K32-V32-softplus", {"HV": 4, "H": 2, "K": 32, "V": 32, "lengths": (17, 33), "gate": "softplus"}),
        row("long-K32-V64-steep", {"HV": 1, "K": 32, "V": 64, "lengths": (130,), "gate": "steep"}),
        row("wide-K128-V128-safe", {"HV": 1, "lengths": (67,)}),
    ]


def row(label: str, axes: Mapping[str, Any]) -> Row:
    """A row of any axes; left out: H = HV, K = V = 128, the safe gate, no padding. `padding` makes the last sequence -1.

    Raises:
        ParameterError: an unknown axis or gate, or heads or lengths that do not fit.
    """
    given: dict[str, Any] = {"H": axes.get("HV"), "K": HEAD_DIM, "V": HEAD_DIM, "gate": "safe", "padding": False}
    if unknown := set(axes) - {*given, "HV", "lengths"}:
        raise _refusal("axes", sorted(unknown), ", ".join(sorted({*given, "HV", "lengths"})))
    given |= dict(axes)
    H, HV, K, V = (given.get(n) or 0 for n in ("H", "HV", "K", "V"))
    counts = tuple(given.get("lengths") or ())
    if min(H, HV, K, V) < 1 or HV % H or not counts or min(counts) < 0:
        raise _refusal("axes", axes, "H, HV, K and V of 1 or more, HV a multiple of H, and lengths of 0 or more")
    if given["gate"] not in GATES:
        raise _refusal("gate", given["gate"], ", ".join(map(repr, GATES)))
    return Row(SPEC.name, label, given | {"T": sum(counts), "N": len(counts), "P": HV * K, "lengths": list(counts)})


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row, drawn from its label and the seed."""
    return _draw(row, _generator(row.label, seed, device), seed)


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing; every tensor is an allocation of its own."""
    generator = _generator(row.label, seed, device)
    return [_draw(row, generator, seed + n) for n in range(count)]


def with_guard_rows(call: Call, count: int) -> Call:
    """The call with NaN between the slots of its pool and a slot more at its end.

    `count` says whether there is room at all: one slot serves, and thousands would not fit into memory.
    """
    if not count:
        return call
    state = call.inputs["state"]
    pool = spaced_rows(torch.cat([state, QUIET * state[:1].flip(-1)]), SLOT_GAP)
    return call.with_inputs(state=pool).with_outputs(state=spaced_rows(pool, SLOT_GAP))


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers: copy them into `call.inputs` in place.

    Args:
        which: `operands` replaces what tokens bring and all states; `sequences` does so and cuts the tokens elsewhere,
            into other slots, and the sequences that started from a state now start from zero, and the reverse.
        source: a call of the same extents whose operands are reused for other tokens; None draws new ones.

    Raises:
        ParameterError: an unknown change.
    """
    if which not in CHANGES:
        raise _refusal("which", which, ", ".join(map(repr, CHANGES)))
    turn = 1 + CHANGES.index(which)
    new = replaced(
        call,
        (*OPERANDS, "state"),
        turn,
        source,
        lambda: _generator(f"{call.label}-changed-{which}", seed, call.device),
        _redrawn,
    )
    if which == "sequences":
        old = call.inputs["cu_seqlens"]
        counts = old.diff().flip(0)
        new["cu_seqlens"] = torch.cat([old[:1], counts.cumsum(0).to(old.dtype)])
        new["state_indices"] = moved(call.inputs["state_indices"], turn, call.inputs["state"].shape[0])
        new["has_state"] = ~call.inputs["has_state"]
    return new


def shuffled(call: Call, seed: int) -> dict[str, torch.Tensor]:
    """Contents for a timing copy of a recorded call: channels and heads turned, weights too; lengths and slots stay."""
    turn = 1 + seed % 7
    return {n: call.inputs[n].roll(turn, -1) for n in (*OPERANDS, "a_log", "dt_bias", "state")}


def edge_calls(seed: int, device: torch.device | str = "cpu") -> dict[str, Call]:
    """Small calls at the edges of the definition, by name.

    all_padding, all_empty, zero_rows (q, k and v are 0), same_key (every key alike, no decay, strength 1: the inverse at
    its worst), no_memory (the decay underflows to 0), full_decay (every gate at its bound), exact_chunks, one_token.
    """

    def make(name: str, counts: Sequence[int] = (70, 3), **axes: Any) -> Call:
        given = {"HV": 2, "H": 1, "K": 32, "V": 64} | axes
        return synthesise(row(f"edge-{name}", {"lengths": tuple(counts), **given}), seed, device)

    def filled(call: Call, **values: float) -> Call:
        return call.with_inputs(**{n: torch.full_like(call.inputs[n], v) for n, v in values.items()})

    padding, same = make("all_padding"), filled(make("same_key"), a=-80.0, beta=1.0)
    return {
        "all_padding": padding.with_inputs(state_indices=torch.full_like(padding.inputs["state_indices"], -1)),
        "some_empty": make("some_empty", (0, 5, 0)),
        "zero_rows": filled(make("zero_rows"), q=0.0, k=0.0, v=0.0),
        "same_key": same.with_inputs(k=same.inputs["k"][:1].expand_as(same.inputs["k"]).clone()),
        "no_memory": filled(make("no_memory", gate="softplus"), a=30.0, a_log=20.0),
        "full_decay": filled(make("full_decay"), a=80.0, a_log=1.0),
        "exact_chunks": make("exact_chunks", (64, 128)),
        "one_token": make("one_token", (1,), HV=1),
    }


def _draw(row: Row, generator: torch.Generator, seed: int) -> Call:
    axes, device = row.parameters, generator.device
    T, N, H, HV, K, V = (axes[n] for n in ("T", "N", "H", "HV", "K", "V"))
    deviation, mean = GATES[axes["gate"]]
    draw: dict[str, Any] = {"generator": generator, "device": device}
    q, k = torch.randn(T, H, K, **draw), torch.randn(T, H, K, **draw)
    for rows_of in (q, k):
        rows_of[::TINY_EVERY, -1] *= TINY
    order = torch.randperm(N + SPARE_SLOTS, generator=_generator(f"{row.label}-slots", seed, "cpu"))[:N].int()
    order[N - axes["padding"] :] = -1
    counts = torch.tensor(axes["lengths"])
    has = torch.arange(N) % 2 == 0
    live = (counts > 0) & (order >= 0)
    pool = QUIET * torch.randn(N + SPARE_SLOTS, HV, V, K, **draw)
    pool[order[live].long().to(device)] /= QUIET
    inputs = {
        "q": q.bfloat16(),
        "k": k.bfloat16(),
        "v": torch.randn(T, HV, V, **draw).bfloat16(),
        "a": (0.5 * torch.randn(T, axes["P"], **draw) - 1).bfloat16(),
        "beta": torch.sigmoid(0.5 * torch.randn(T, HV, **draw)),
        "a_log": deviation * torch.randn(HV, **draw) + mean,
        "dt_bias": 0.1 * torch.randn(axes["P"], **draw),
        "cu_seqlens": torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int().to(device),
        "state": pool,
        "state_indices": order.to(device),
        "has_state": has.to(device),
    }
    scalars: dict[str, Scalar] = {"lower_bound": LOWER_BOUND if axes["gate"] == "safe" else None}
    facts = {**axes, "S": N + SPARE_SLOTS, "live": int(live.sum()), "starting": int((live & has).sum())}
    outputs = {"out": torch.zeros_like(inputs["v"]), "state": inputs["state"].clone()}
    return Call(SPEC.name, inputs, scalars, outputs, row.label, facts)


def _redrawn(old: torch.Tensor, name: str, generator: torch.Generator) -> torch.Tensor:
    fresh = torch.randn(old.shape, generator=generator, device=old.device)
    # Rows keep their order of magnitude, so that tiny ones stay tiny.
    fresh = fresh * torch.where(old.abs() < 0.01, old.abs().float(), 1.0) if name in ("q", "k") else fresh
    if name == "beta":
        return torch.sigmoid(0.5 * fresh)
    return (0.5 * fresh - 1 if name == "a" else fresh).to(old.dtype)


def _generator(label: str, seed: int, device: torch.device | str) -> torch.Generator:
    return generator_of(SPEC.name, label, seed, device)


def _refusal(field: str, given: object, allowed: str) -> ParameterError:
    return ParameterError(SPEC.name, [Reason(field, repr(given), allowed)])
