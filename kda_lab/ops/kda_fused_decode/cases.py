"""Calls of `kda.fused_decode`: benchmark rows, synthetic tensors, guard rows, changed contents, edge cases.

Axes: B requests, HV heads, V = K channels, S slots, P = HV·V, C = 3P. Raw tokens are N(0, 1.5²), states N(0, 1); the
last head of every third request has a tiny q, so that the epsilon of both norms counts, and a small k. Slots are drawn
without order, and one more than the requests need is there to keep its bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.drawing import (
    SPARE_SLOTS,
    generator_of,
    grown_pool,
    live_count,
    moved,
    on_lines,
    replaced,
    slot_indices,
    spaced_rows,
)
from kda_lab.ops.kda.geometry import CONV_STATE, CONV_WIDTH, HEAD_DIM, LOWER_BOUND
from kda_lab.ops.kda_fused_decode.spec import SPEC
from kda_lab.ops.kda_packed_decode.cases import BATCHES, GATES, HEADS, STATES
from kda_lab.ops.protocol import Call, Row, Scalar

CHANGES = ("operands", "slots")
"""What a serving process changes between launches: tokens with windows and states, and who owns which slot."""
EPSILON = 1e-5
TOKEN = 1.5
TINY_QUERY, TINY_KEY = 2.0**-16, 2.0**-12
"""Scales of a q whose norms both feel epsilon, and of a k whose norm does."""
TINY_EVERY = 3
OPERANDS = ("mixed_qkv", "a", "b", "gate")
POOLS = ("conv_state", "state")
WEIGHTS = ("conv_weight", "a_log", "dt_bias", "norm_weight")


def rows(heads: Sequence[int] = HEADS, batches: Sequence[int] = BATCHES) -> list[Row]:
    """Benchmark rows `HV12-B32`: V = 128, the safe gate, FP32 states, no padding."""
    return [row(f"HV{hv}-B{batch}", {"HV": hv, "B": batch}) for hv in heads for batch in batches]


def capture_rows() -> list[Row]:
    """The rows of the committed captures: small, with both gates, both state dtypes, padding, and odd heads."""
    return [
        row("padded-V32-safe", {"HV": 4, "V": 32, "B": 5, "padding": True}),
        row("ragged-V20-softplus", {"HV": 6, "V": 20, "B": 4, "gate": "softplus"}),
        row("half-V48-bfloat16", {"HV": 3, "V": 48, "B": 3, "state": "bfloat16"}),
        row("wide-V128-safe", {"HV": 1, "B": 1}),
    ]


def row(label: str, axes: Mapping[str, Any]) -> Row:
    """A row of any axes; left out: V = 128, the safe gate, FP32 states, no padding.

    Raises:
        ParameterError: an unknown axis, gate or state, or one of the extents does not fit.
    """
    given: dict[str, Any] = {"V": HEAD_DIM, "gate": "safe", "state": "float32", "padding": False}
    if unknown := set(axes) - {*given, "HV", "B"}:
        raise _refusal("axes", sorted(unknown), ", ".join(sorted({*given, "HV", "B"})))
    given |= dict(axes)
    HV, V = given.get("HV") or 0, given["V"]
    if min(HV, V, given.get("B") or 0) < 1:
        raise _refusal("axes", dict(axes), "B, HV and V of 1 or more")
    if given["gate"] not in GATES or given["state"] not in STATES:
        raise _refusal("gate, state", (given["gate"], given["state"]), f"{GATES} and {tuple(STATES)}")
    return Row(SPEC.name, label, given | {"P": HV * V, "C": 3 * HV * V})


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row, drawn from its label and the seed."""
    return make_sets(row, 1, seed, device)[0]


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing: each set with pools of its own.

    Every tensor starts on a multiple of 16 bytes."""
    axes = row.parameters
    B, HV, V = axes["B"], axes["HV"], axes["V"]
    generator = _generator(row.label, seed, device)
    inputs = {**_operands(axes, count, generator), **_weights(axes, count, generator)}
    indices = slot_indices(B, axes["padding"], _generator(f"{row.label}-slots", seed, "cpu"))
    inputs["state_indices"] = indices.repeat(count, 1).to(device)
    pool = torch.empty(count, B + SPARE_SLOTS, HV, V, V, dtype=STATES[axes["state"]], device=device)
    inputs["state"] = pool.normal_(generator=generator)
    outputs = {"out": torch.zeros(count, B, axes["P"], dtype=torch.bfloat16, device=device)}
    outputs = {name: on_lines(t) for name, t in (outputs | {n: inputs[n].clone() for n in POOLS}).items()}
    scalars: dict[str, Scalar] = {"lower_bound": LOWER_BOUND if axes["gate"] == "safe" else None, "epsilon": EPSILON}
    facts = {**axes, "S": B + SPARE_SLOTS, "live": live_count(B, axes["padding"])}
    ordered = {name: on_lines(inputs[name]) for name in SPEC.tensors}
    return [
        Call(
            SPEC.name,
            {n: t[i] for n, t in ordered.items()},
            scalars,
            {n: t[i] for n, t in outputs.items()},
            row.label,
            facts,
        )
        for i in range(count)
    ]


def _operands(axes: dict[str, Any], count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Rows and windows of the requests; a request's window has the scale of its tokens."""
    B, P, C = axes["B"], axes["P"], axes["C"]
    draw: dict[str, Any] = {"generator": generator, "device": generator.device}
    tokens = TOKEN * torch.randn(count, B, C, **draw)
    windows = TOKEN * torch.randn(count, B + SPARE_SLOTS, CONV_STATE, C, **draw)
    query = range((axes["HV"] - 1) * axes["V"], P)
    for columns, scale in ((query, TINY_QUERY), (range(P + query.start, 2 * P), TINY_KEY)):
        tokens[:, ::TINY_EVERY, list(columns)] *= scale
        # Whichever slot a request has: its window is to be as tiny as its token.
        windows[:, :, :, list(columns)] *= scale
    return {
        "mixed_qkv": tokens.bfloat16(),
        "conv_state": windows.bfloat16(),
        "a": (0.5 * torch.randn(count, B, P, **draw) - 1).bfloat16(),
        "b": (0.5 * torch.randn(count, B, axes["HV"], **draw)).bfloat16(),
        "gate": torch.randn(count, B, P, **draw).bfloat16(),
    }


def _weights(axes: dict[str, Any], count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    HV, P, C = axes["HV"], axes["P"], axes["C"]
    draw: dict[str, Any] = {"generator": generator, "device": generator.device}
    return {
        "conv_weight": 0.5 * torch.randn(count, CONV_WIDTH, C, **draw),
        "a_log": 0.2 * torch.randn(count, HV, **draw),
        "dt_bias": 0.1 * torch.randn(count, P, **draw),
        "norm_weight": 1 + 0.2 * torch.randn(count, axes["V"], **draw),
    }


def with_guard_rows(call: Call, count: int) -> Call:
    """The call in memory with gaps: NaN between operand rows and between slots, and a slot more at the end of the pools.

    `count` says whether there is room at all: one slot serves, and thousands would not fit into memory.
    """
    if not count:
        return call
    inputs = {n: spaced_rows(call.inputs[n]) for n in OPERANDS} | {n: grown_pool(call.inputs[n]) for n in POOLS}
    return call.with_inputs(**inputs).with_outputs(**{n: grown_pool(call.inputs[n]) for n in POOLS})


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers: copy them into `call.inputs` in place.

    Args:
        which: `operands` replaces what tokens bring, all windows and all states; `slots` does so and moves every request
            to another slot, padding to other requests.
        source: a call of the same extents whose operands are reused for other requests; None draws new ones.

    Raises:
        ParameterError: an unknown change.
    """
    if which not in CHANGES:
        raise _refusal("which", which, ", ".join(map(repr, CHANGES)))
    turn = 1 + CHANGES.index(which)
    new = replaced(
        call,
        (*OPERANDS, *POOLS),
        turn,
        source,
        lambda: _generator(f"{call.label}-changed-{which}", seed, call.device),
        _redrawn,
    )
    if which == "slots":
        new["state_indices"] = moved(call.inputs["state_indices"], turn, call.inputs["state"].shape[0])
    return new


def _redrawn(old: torch.Tensor, name: str, generator: torch.Generator) -> torch.Tensor:
    fresh = torch.randn(old.shape, generator=generator, device=old.device)
    if name in ("mixed_qkv", "conv_state"):
        # Channels keep their order of magnitude, so that tiny ones stay tiny.
        fresh = TOKEN * fresh * torch.where(old.abs() < 0.01, old.abs().float(), 1.0)
    return {"a": 0.5 * fresh - 1, "b": 0.5 * fresh}.get(name, fresh).to(old.dtype)


def shuffled(call: Call, seed: int) -> dict[str, torch.Tensor]:
    """Contents for a timing copy of a recorded call: channels turned, what is one value a head negated; indices stay."""
    names = [n for n in (*OPERANDS, *POOLS, *WEIGHTS) if n not in ("b", "a_log")]
    turned = {n: call.inputs[n].roll(1 + seed % 7, -1) for n in names}
    return turned | {n: -call.inputs[n] for n in ("b", "a_log")}


def edge_calls(seed: int, device: torch.device | str = "cpu") -> dict[str, Call]:
    """Small calls at the edges of the definition, by name.

    all_padding, zero_rows (tokens and windows are 0: the output row is 0), linear_softplus, no_memory, closed_gate (the
    output gate is -80: rows near 0), odd_width (V 20: masked lanes), one (every extent 1 but V).
    """

    def make(name: str, **axes: Any) -> Call:
        return synthesise(row(f"edge-{name}", {"HV": 2, "V": 32, "B": 3} | axes), seed, device)

    def filled(call: Call, **values: float) -> Call:
        return call.with_inputs(**{n: torch.full_like(call.inputs[n], v) for n, v in values.items()})

    return {
        "all_padding": filled(make("all_padding"), state_indices=-1),
        "zero_rows": filled(make("zero_rows"), mixed_qkv=0.0, conv_state=0.0),
        "linear_softplus": filled(make("linear_softplus", gate="softplus"), a=25.0, a_log=-6.0),
        "no_memory": filled(make("no_memory", gate="softplus"), a=30.0, a_log=20.0),
        "closed_gate": filled(make("closed_gate"), gate=-80.0),
        "odd_width": make("odd_width", V=20, padding=True),
        "one": make("one", B=1, HV=1),
    }


def _generator(label: str, seed: int, device: torch.device | str) -> torch.Generator:
    return generator_of(SPEC.name, label, seed, device)


def _refusal(field: str, given: object, allowed: str) -> ParameterError:
    return ParameterError(SPEC.name, [Reason(field, repr(given), allowed)])
