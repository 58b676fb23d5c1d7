"""Calls of `kda.packed_decode`: benchmark rows, synthetic tensors, guard rows, changed contents, edge cases.

Axes: B requests, H query and key heads, HV value heads, K and V channels, S slots, C = 2HK + HV·V, G = HV·K. Operands
and states are N(0, 1), where a wrong gate, a missing update or swapped operands move every output; on operands of 0.1
and states of 0.01 an output of zeros would pass a limit of 2e-2. The last query and key head of every third request is
tiny, so that epsilon counts. Slots are drawn without order, and one more than the requests need is there to keep its bits.
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
from kda_lab.ops.kda.geometry import HEAD_DIM, LOWER_BOUND
from kda_lab.ops.kda_packed_decode.spec import SPEC
from kda_lab.ops.protocol import Call, Row, Scalar

CHANGES = ("operands", "slots")
"""What a serving process changes between launches: tokens with their states, and who owns which slot."""
HEADS = (12, 24, 96)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GATES = ("safe", "softplus")
STATES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TINY = 2.0**-13
"""A row of 128 at this scale has a sum of squares near epsilon."""
TINY_EVERY = 3
OPERANDS = ("mixed_qkv", "a", "b")


def rows(heads: Sequence[int] = HEADS, batches: Sequence[int] = BATCHES) -> list[Row]:
    """Benchmark rows `HV12-B32`: K = V = 128, H = HV, the safe gate, FP32 states, no padding."""
    return [row(f"HV{hv}-B{batch}", {"HV": hv, "B": batch}) for hv in heads for batch in batches]


def capture_rows() -> list[Row]:
    """The rows of the committed captures: small, with K ≠ V, shared query heads, both gates, both state dtypes, padding."""
    return [
        row("shared-K32-V16-safe", {"HV": 4, "H": 2, "K": 32, "V": 16, "B": 5, "padding": True}),
        row("ragged-K60-V20-softplus", {"HV": 3, "H": 3, "K": 60, "V": 20, "B": 4, "gate": "softplus"}),
        row("half-K64-V32-bfloat16", {"HV": 4, "H": 1, "K": 64, "V": 32, "B": 3, "state": "bfloat16"}),
        row("wide-K128-V128-safe", {"HV": 1, "B": 2}),
    ]


def row(label: str, axes: Mapping[str, Any]) -> Row:
    """A row of any axes; left out: H = HV, K = V = 128, the safe gate, FP32 states, no padding.

    Raises:
        ParameterError: an unknown axis, gate or state, or one of the heads does not fit.
    """
    given: dict[str, Any] = {
        "H": axes.get("HV"),
        "K": HEAD_DIM,
        "V": HEAD_DIM,
        "gate": "safe",
        "state": "float32",
        "padding": False,
    }
    if unknown := set(axes) - {*given, "HV", "B"}:
        raise _refusal("axes", sorted(unknown), ", ".join(sorted({*given, "HV", "B"})))
    given |= dict(axes)
    H, HV, K, V = (given.get(n) or 0 for n in ("H", "HV", "K", "V"))
    if min(H, HV, K, V, given.get("B") or 0) < 1 or HV % H:
        raise _refusal("axes", dict(axes), "B, H, HV, K and V of 1 or more, HV a multiple of H")
    if given["gate"] not in GATES or given["state"] not in STATES:
        raise _refusal("gate, state", (given["gate"], given["state"]), f"{GATES} and {tuple(STATES)}")
    return Row(SPEC.name, label, given | {"C": 2 * H * K + HV * V, "G": HV * K})


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row, drawn from its label and the seed."""
    return make_sets(row, 1, seed, device)[0]


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing: one allocation a tensor, each set with a pool of its own.

    Every tensor starts on a multiple of 16 bytes.
    """
    axes, generator = row.parameters, _generator(row.label, seed, device)
    B, HV, slots = axes["B"], axes["HV"], axes["B"] + SPARE_SLOTS
    indices = slot_indices(B, axes["padding"], _generator(f"{row.label}-slots", seed, "cpu"))
    draw: dict[str, Any] = {"generator": generator, "device": device}
    mixed = torch.randn(count, B, axes["C"], **draw)
    mixed[:, ::TINY_EVERY, _tiny_columns(axes)] *= TINY
    pool = torch.empty(count, slots, HV, axes["V"], axes["K"], dtype=STATES[axes["state"]], device=device)
    inputs = {
        "mixed_qkv": mixed.bfloat16(),
        "a": (0.5 * torch.randn(count, B, axes["G"], **draw) - 1).bfloat16(),
        "b": (0.5 * torch.randn(count, B, HV, **draw)).bfloat16(),
        "a_log": 0.2 * torch.randn(count, HV, **draw),
        "dt_bias": 0.1 * torch.randn(count, axes["G"], **draw),
        "state": pool.normal_(generator=generator),
        "state_indices": indices.repeat(count, 1).to(device),
    }
    inputs = {name: on_lines(tensor) for name, tensor in inputs.items()}
    out = on_lines(torch.zeros(count, B, 1, HV, axes["V"], dtype=torch.bfloat16, device=device))
    updated = inputs["state"].clone()
    scalars: dict[str, Scalar] = {"lower_bound": LOWER_BOUND if axes["gate"] == "safe" else None}
    facts = {**axes, "S": slots, "live": live_count(B, axes["padding"])}
    return [
        Call(SPEC.name, {n: t[i] for n, t in inputs.items()}, scalars, {"out": out[i], "state": updated[i]}, row.label, facts)
        for i in range(count)
    ]  # fmt: skip


def with_guard_rows(call: Call, count: int) -> Call:
    """The call in memory with gaps: NaN between operand rows and between slots, and a slot more at the end of the pool.

    `count` says whether there is room at all: one slot serves, and thousands would not fit into memory.
    """
    if not count:
        return call
    pool = grown_pool(call.inputs["state"])
    grown = call.with_inputs(state=pool, **{n: spaced_rows(call.inputs[n]) for n in OPERANDS})
    return grown.with_outputs(state=grown_pool(call.inputs["state"]))


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers: copy them into `call.inputs` in place.

    Args:
        which: `operands` replaces what tokens bring and all states; `slots` does so and moves every request to another
            slot, padding to other requests.
        source: a call of the same extents whose operands are reused for other requests; None draws new ones.

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
    if which == "slots":
        new["state_indices"] = moved(call.inputs["state_indices"], turn, call.inputs["state"].shape[0])
    return new


def _redrawn(old: torch.Tensor, name: str, generator: torch.Generator) -> torch.Tensor:
    fresh = torch.randn(old.shape, generator=generator, device=old.device)
    # Rows keep their order of magnitude, so that tiny ones stay tiny.
    fresh = fresh * torch.where(old.abs() < 0.01, old.abs().float(), 1.0) if name == "mixed_qkv" else fresh
    return {"a": 0.5 * fresh - 1, "b": 0.5 * fresh}.get(name, fresh).to(old.dtype)


def shuffled(call: Call, seed: int) -> dict[str, torch.Tensor]:
    """Contents for a timing copy of a recorded call: channels turned, what is one value a head negated; indices stay."""
    turned = {n: call.inputs[n].roll(1 + seed % 7, -1) for n in ("mixed_qkv", "a", "dt_bias", "state")}
    return turned | {n: -call.inputs[n] for n in ("b", "a_log")}


def edge_calls(seed: int, device: torch.device | str = "cpu") -> dict[str, Call]:
    """Small calls at the edges of the definition, by name.

    all_padding, zero_rows (q, k and v are 0), linear_softplus (gates beyond 20), no_memory (the decay underflows to 0),
    no_decay, full_write (strength 1, no decay), odd_widths (K 20, V 48: masked lanes), one (every extent 1 but K and V).
    """

    def make(name: str, **axes: Any) -> Call:
        given = {"HV": 2, "H": 1, "K": 32, "V": 16, "B": 3} | axes
        return synthesise(row(f"edge-{name}", given), seed, device)

    def filled(call: Call, **values: float) -> Call:
        return call.with_inputs(**{n: torch.full_like(call.inputs[n], v) for n, v in values.items()})

    padding = make("all_padding")
    return {
        "all_padding": padding.with_inputs(state_indices=torch.full_like(padding.inputs["state_indices"], -1)),
        "zero_rows": filled(make("zero_rows"), mixed_qkv=0.0),
        "linear_softplus": filled(make("linear_softplus", gate="softplus"), a=25.0, a_log=-6.0),
        "no_memory": filled(make("no_memory", gate="softplus"), a=30.0, a_log=20.0),
        "no_decay": filled(make("no_decay"), a=-80.0),
        "full_write": filled(make("full_write"), a=-80.0, b=30.0),
        "odd_widths": make("odd_widths", K=20, V=48, padding=True),
        "one": make("one", B=1, HV=1),
    }


def _tiny_columns(axes: dict[str, Any]) -> list[int]:
    """Columns of `mixed_qkv` that hold the last query head and the last key head."""
    H, K = axes["H"], axes["K"]
    return [*range((H - 1) * K, H * K), *range((2 * H - 1) * K, 2 * H * K)]


def _generator(label: str, seed: int, device: torch.device | str) -> torch.Generator:
    return generator_of(SPEC.name, label, seed, device)


def _refusal(field: str, given: object, allowed: str) -> ParameterError:
    return ParameterError(SPEC.name, [Reason(field, repr(given), allowed)])
