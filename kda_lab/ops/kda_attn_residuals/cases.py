"""Calls of `kda.attn_residuals`: benchmark rows, synthetic tensors, changed contents, edge cases.

Axes: T tokens, NB snapshots of a token, D width. Tensors as `spec.py` lists them. Snapshots that do not count hold
large numbers, so that reading one shows; they are finite, because the whole bank is a result. Every fifth token is
tiny, so that epsilon counts. Synthetic tensors depend on (label, seed) and on the device type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.drawing import generator_of
from kda_lab.ops.kda_attn_residuals.oracle import EPSILON
from kda_lab.ops.kda_attn_residuals.spec import SPEC
from kda_lab.ops.protocol import Call, Row, Scalar

CHANGES = ("rows", "weights")
"""Contents that a process changes in place between launches: the streams of every step, and loaded weights."""
WIDTH, SNAPSHOTS = 7168, 8
"""Of Kimi K3: hidden size, and snapshots that its 93 layers save at most."""
SMALL_WIDTH = 256
"""Width of captures and tests that need not be as wide as a model."""
KINDS = {"mix": (False, False), "add": (True, False), "write": (False, True), "add_write": (True, True)}
"""Kind of a call to (add_delta, write_prefix)."""
TOKENS = (1, 8, 32, 128, 1024, 8192)
VALID = (0, 1, 4, 8)
TINY, TINY_EVERY = 2.0**-12, 5
UNUSED = 37.0
"""Scale of snapshots that do not count."""


def rows(
    tokens: Sequence[int] = TOKENS,
    valids: Sequence[int] = VALID,
    kinds: Sequence[str] = ("mix",),
    width: int = WIDTH,
    snapshots: int = SNAPSHOTS,
) -> list[Row]:
    """Benchmark rows, one for each number of tokens, of valid snapshots and kind: `T1024-valid8-mix`.

    Rows of another width than Kimi K3's say it: `T5-valid5-mix-D256`.

    Raises:
        ParameterError: an unknown kind, a negative number, or no room for the snapshot that a kind writes.
    """
    found = []
    for count in tokens:
        for valid in valids:
            for kind in kinds:
                if kind not in KINDS:
                    raise _refusal("kind", kind, ", ".join(map(repr, KINDS)))
                most = snapshots - KINDS[kind][1]
                if not 0 <= valid <= most or count < 0:
                    raise _refusal("tokens, valid", (count, valid), f"0 or more tokens, 0 to {most} valid snapshots")
                label = f"T{count}-valid{valid}-{kind}" + ("" if width == WIDTH else f"-D{width}")
                axes = {"T": count, "NB": snapshots, "D": width, "valid": valid, "kind": kind}
                found.append(Row(SPEC.name, label, axes))
    return found


def capture_rows() -> list[Row]:
    """The rows of the committed captures, drawn from seed 0: narrow ones of every kind and one of full width."""
    narrow: dict[str, Any] = {"width": SMALL_WIDTH}
    return [
        *rows((7,), (5,), ("add_write",), **narrow),
        *rows((6,), (8,), ("mix",), **narrow),
        *rows((5,), (0,), ("add",), **narrow),
        *rows((2,), (3,), ("write",), snapshots=4),
    ]


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row: streams of growing size, scores of spread 1.5, some tokens tiny."""
    axes = row.parameters
    shape = (axes["T"], axes["NB"], axes["D"])
    return _draw(row.label, shape, axes["valid"], axes["kind"], _generator(row.label, seed, device))


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing; every tensor is an allocation of its own."""
    axes, generator = row.parameters, _generator(row.label, seed, device)
    shape = (axes["T"], axes["NB"], axes["D"])
    return [_draw(row.label, shape, axes["valid"], axes["kind"], generator) for _ in range(count)]


def with_guard_rows(call: Call, count: int) -> Call:
    """The call as it is: the bank is a result, so every row of it is live."""
    return call


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers: copy them into `call.inputs` in place.

    Args:
        which: `rows` replaces bank, prefix and delta; `weights` replaces both weights too.
        source: a call of the same extents whose channels are turned instead; None draws new contents.

    Raises:
        ParameterError: an unknown change.
    """
    if which not in CHANGES:
        raise _refusal("which", which, ", ".join(map(repr, CHANGES)))
    names = ("bank", "prefix", "delta") if which == "rows" else SPEC.tensors
    if source is not None:
        turn = 1 + CHANGES.index(which)
        return {name: source.inputs[name].roll(turn, -1) for name in names}
    bank = call.inputs["bank"]
    generator = _generator(f"{call.label}-changed-{which}", seed, call.device)
    shape = (bank.shape[0], bank.shape[1], bank.shape[2])
    fresh = _draw(call.label, shape, int(call.scalars["valid"] or 0), call.facts["kind"], generator)
    return {name: fresh.inputs[name] for name in names}


def shuffled(call: Call, seed: int) -> dict[str, torch.Tensor]:
    """Contents for a timing copy of a recorded call: the channels of every tensor turned, of the weights otherwise."""
    turn = 1 + seed % (call.inputs["bank"].shape[2] - 1)
    return {name: call.inputs[name].roll(turn + (name in ("score_weight", "out_weight")), -1) for name in SPEC.tensors}


def edge_calls(seed: int, device: torch.device | str = "cpu") -> dict[str, Call]:
    """Small calls at the edges of the definition, by name.

    no_snapshots (RMSNorm of the prefix), equal_rows (any weights give the row), zero_token (a token of zeros gives
    zeros), one_wins (one score far above the others), large (rows near 1e4), tiny (epsilon counts everywhere),
    one_slot (the only snapshot is written), full_bank (all snapshots count, none is left to write).
    """

    def make(name: str, valid: int, kind: str, snapshots: int = 4) -> Call:
        return _draw(f"edge-{name}", (3, snapshots, SMALL_WIDTH), valid, kind, _generator(f"edge-{name}", seed, device))

    equal, zero, wins = make("equal", 4, "mix"), make("zero", 3, "write"), make("wins", 4, "mix")
    large, tiny = make("large", 3, "add_write"), make("tiny", 3, "mix")
    same = equal.inputs["prefix"][:, None].expand_as(equal.inputs["bank"]).contiguous()
    zeros = {n: zero.inputs[n].clone() for n in ("bank", "prefix")}
    zeros["bank"][1, :3] = 0
    zeros["prefix"][1] = 0
    streams = ("bank", "prefix", "delta")
    return {
        "no_snapshots": make("none", 0, "mix"),
        "equal_rows": replaced(equal, {"bank": same}),
        "zero_token": replaced(zero, zeros),
        "one_wins": replaced(wins, {"score_weight": wins.inputs["score_weight"] * 40}),
        "large": replaced(large, {n: large.inputs[n] * 1e4 for n in streams}),
        "tiny": replaced(tiny, {n: tiny.inputs[n] * TINY for n in streams}),
        "one_slot": make("slot", 0, "add_write", 1),
        "full_bank": make("full", 4, "add"),
    }


def replaced(call: Call, tensors: dict[str, torch.Tensor]) -> Call:
    """The call with some inputs replaced, and what it updates in place beginning with them."""
    made = call.with_inputs(**tensors)
    made.restore()
    return made


def _draw(label: str, shape: tuple[int, int, int], valid: int, kind: str, generator: torch.Generator) -> Call:
    (T, NB, D), device = shape, generator.device
    add, write = KINDS[kind]
    draw: dict[str, Any] = {"generator": generator, "device": device}
    # A residual stream grows from block to block, so that no two rows of a token are of one size.
    scale = (0.5 + 0.3 * torch.arange(NB, device=device)) * torch.where(
        torch.arange(NB, device=device) < valid, 1, UNUSED
    )
    tiny = torch.where(torch.arange(T, device=device) % TINY_EVERY == TINY_EVERY - 2, TINY, 1.0)
    bank = torch.randn(T, NB, D, **draw).mul_(scale[:, None]).mul_(tiny[:, None, None])
    inputs = {
        "bank": bank.bfloat16(),
        "prefix": (torch.randn(T, D, **draw) * 1.7 * tiny[:, None]).bfloat16(),
        "delta": (torch.randn(T, D, **draw) * 0.4 * tiny[:, None]).bfloat16(),
        "score_weight": torch.randn(D, **draw) * (1.5 / D**0.5),
        "out_weight": 1.0 + 0.1 * torch.randn(D, **draw),
    }
    outputs = {"out": torch.empty_like(inputs["prefix"]), **{n: inputs[n].clone() for n in ("bank", "prefix")}}
    scalars: dict[str, Scalar] = {"valid": valid, "write_prefix": write, "add_delta": add, "epsilon": EPSILON}
    facts = {"T": T, "NB": NB, "D": D, "valid": valid, "kind": kind}
    return Call(SPEC.name, inputs, scalars, outputs, label, facts)


def _generator(label: str, seed: int, device: torch.device | str) -> torch.Generator:
    return generator_of(SPEC.name, label, seed, device)


def _refusal(field: str, given: object, allowed: str) -> ParameterError:
    return ParameterError(SPEC.name, [Reason(field, repr(given), allowed)])
