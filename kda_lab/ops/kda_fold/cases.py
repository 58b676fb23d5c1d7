"""Calls of `kda.fold`: benchmark rows, synthetic tensors, changed contents.

Axes: Y layers, B requests, T places of the ring, H query and key heads, HV value heads, K and V channels. The ring holds
NaN behind the accepted tokens and in all of a padding request; slots that no request names hold numbers, since the whole
pool is an output. One head of one request has keys whose sum of squares is about epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.drawing import generator_of, passed_on
from kda_lab.ops.kda.geometry import LOWER_BOUND
from kda_lab.ops.kda_fold.spec import SPEC
from kda_lab.ops.protocol import Call, Row

CHANGES = ("accepted", "slots")
"""Contents that a server changes in place between launches: how many tokens count, and where the states are."""
HEADS = (12,)
BATCHES = (1, 8, 32)
LAYERS = (1, 69)
TOKENS = 8
GAP = 64
"""Elements between the slots of a call whose pool has free strides."""
TINY = 1e-4
"""Size of the keys of one head."""


def rows(
    heads: Sequence[int] = HEADS,
    batches: Sequence[int] = BATCHES,
    layers: Sequence[int] = LAYERS,
    tokens: Sequence[int] = (TOKENS,),
) -> list[Row]:
    """Benchmark rows of K3's heads, all tokens accepted: `hv12-B32-T8-Y69`."""
    found = []
    for hv in heads:
        for batch in batches:
            for t in tokens:
                for y in layers:
                    axes = {"HV": hv, "H": hv, "K": 128, "V": 128, "B": batch, "T": t, "Y": y}
                    found.append(Row(SPEC.name, f"hv{hv}-B{batch}-T{t}-Y{y}", {**axes, "accepted": "all"}))
    return found


def capture_rows() -> list[Row]:
    """The rows of the committed captures: K not V, HV above H, no token accepted, padding, slots apart; seed 0."""
    small: list[tuple[str, dict[str, Any]]] = [
        ("layers-grouped", {"Y": 2, "HV": 4, "H": 2, "K": 64, "V": 16, "B": 3, "T": 4, "wide": True}),
        ("one-layer-padded", {"Y": 1, "HV": 3, "H": 3, "K": 32, "V": 48, "B": 6, "T": 8}),
        ("layers-narrow", {"Y": 2, "HV": 2, "H": 1, "K": 100, "V": 16, "B": 2, "T": 3}),
    ]
    return [Row(SPEC.name, label, {**parameters, "accepted": "mixed"}) for label, parameters in small]


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row with one slot more than requests; the last of three or more requests is padding."""
    facts = {"wide": False, **row.parameters}
    B = facts["B"]
    slots = B + 1
    indices = [slots - 1 - b for b in range(B)]
    if B > 2:
        indices[-1] = -1
    counts = accepted_counts(facts)
    inputs = _fresh(facts, indices, counts, generator_of(SPEC.name, row.label, seed, device))
    taken = [n for n, i in zip(counts, indices, strict=True) if i >= 0]
    return _call(row.label, inputs, {**facts, "taken": taken})


def accepted_counts(facts: dict[str, Any], turn: int = 0) -> list[int]:
    """Accepted tokens of each request: all of them, or from none to all in turn."""
    T, B = facts["T"], facts["B"]
    if facts["accepted"] == "all":
        return [T] * B
    cycle = (T, 1, 0, max(1, T - 1), max(1, T // 2))
    return [cycle[(b + turn) % len(cycle)] for b in range(B)]


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing, each on a pool of its own."""
    facts = {"wide": False, **row.parameters}
    generator = generator_of(SPEC.name, row.label, seed, device)
    counts = accepted_counts(facts)
    found = []
    for _ in range(count):
        inputs = _light(facts, generator)
        inputs["accepted"] = torch.tensor(counts, dtype=torch.int32, device=device)
        found.append(_call(row.label, inputs, {**facts, "taken": counts}))
    return found


def with_guard_rows(call: Call, count: int) -> Call:
    """The call itself, with its gaps: the whole pool is an output, so every slot is compared, and the ring ends in NaN."""
    gap = GAP if call.facts["wide"] else 0
    state = _apart(call.inputs["state"], gap)
    return call.with_inputs(state=state).with_outputs(state=_apart(call.outputs["state"], gap))


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers: other values and counts; with `slots` other slots and padding as well.

    Args:
        source: not used: every capture is synthetic.

    Raises:
        ParameterError: an unknown change.
    """
    if which not in CHANGES:
        raise ParameterError(SPEC.name, [Reason("which", repr(which), ", ".join(map(repr, CHANGES)))])
    indices = call.inputs["state_indices"].tolist()
    if which == "slots":
        slots = call.inputs["state"].shape[1]
        indices = passed_on(indices, slots)
    # Turns of which a lone request takes a token: without one nobody sees which slot a kernel would have updated.
    counts = accepted_counts({**call.facts, "accepted": "mixed"}, 1 + 2 * CHANGES.index(which))
    generator = generator_of(SPEC.name, f"{call.label} {which}", seed, call.device)
    return _fresh(call.facts, indices, counts, generator)


def _call(label: str, inputs: dict[str, torch.Tensor], facts: dict[str, Any]) -> Call:
    state = inputs["state"]
    output = torch.empty_strided(state.shape, state.stride(), dtype=state.dtype, device=state.device)
    call = Call(SPEC.name, inputs, {}, {"state": output}, label, facts)
    call.restore()
    return call


def _fresh(
    facts: dict[str, Any], indices: Sequence[int], counts: Sequence[int], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    device = generator.device
    inputs = _light(facts, generator, len(indices) + 1)
    inputs["ring_k"][:, len(indices) // 2, :, 0] *= TINY
    inputs["state_indices"] = torch.tensor(indices, dtype=torch.int32, device=device)
    inputs["accepted"] = torch.tensor(counts, dtype=torch.int32, device=device)
    for b, (index, n) in enumerate(zip(indices, counts, strict=True)):
        for name in ("ring_k", "ring_v", "ring_g", "ring_beta"):
            inputs[name][:, b, n if index >= 0 else 0 :] = float("nan")
    inputs["state"] = _apart(inputs["state"], GAP if facts["wide"] else 0)
    return inputs


def _light(facts: dict[str, Any], generator: torch.Generator, slots: int = 0) -> dict[str, torch.Tensor]:
    Y, B, T, H, HV, K, V = (facts[n] for n in ("Y", "B", "T", "H", "HV", "K", "V"))
    device = generator.device

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device=device).normal_(generator=generator)

    return {
        "ring_k": normal(Y, B, T, H, K).bfloat16(),
        "ring_v": normal(Y, B, T, HV, V).bfloat16(),
        "ring_g": LOWER_BOUND * torch.sigmoid(normal(Y, B, T, HV, K) - 1),
        "ring_beta": torch.sigmoid(0.5 * normal(Y, B, T, HV)),
        "state": normal(Y, slots or B, HV, V, K),
        "state_indices": torch.randperm(B, generator=generator, device=device).to(torch.int32),
    }


def _apart(pool: torch.Tensor, gap: int) -> torch.Tensor:
    """The pool [Y, slots, ...] with `gap` elements behind each slot."""
    inner = pool[0, 0].numel()
    if pool.stride(1) == inner + gap:
        return pool
    storage = torch.zeros(*pool.shape[:2], inner + gap, dtype=pool.dtype, device=pool.device)
    storage[..., :inner] = pool.flatten(2)
    return storage.as_strided(pool.shape, (pool.shape[1] * (inner + gap), inner + gap, *pool.stride()[2:]))
