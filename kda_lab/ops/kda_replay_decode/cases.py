"""Calls of `kda.replay_decode`: benchmark rows, synthetic tensors, changed contents.

Axes: B requests, H query and key heads, HV value heads, L places of a ring, K and V channels. Places behind the records
hold `STALE`, which is finite since the whole ring is an output. One head of one request has tiny keys and queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.drawing import generator_of, passed_on
from kda_lab.ops.kda.geometry import LOWER_BOUND
from kda_lab.ops.kda.recurrence import normalise_k
from kda_lab.ops.kda.verify_cases import with_gaps
from kda_lab.ops.kda_replay_decode.spec import SPEC
from kda_lab.ops.protocol import Call, Row

CHANGES = ("tokens", "positions")
"""Contents that a server changes in place between launches: values, and slots with how full the rings are."""
HEADS = (12,)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTH = 16
FORMS = ("raw", "predecayed")
STALE = 1000.0
"""What a place of a ring holds before its record: reading it is seen at once."""
GAP = 64
"""Elements between the slots of a call whose pool has free strides; rows lie a quarter of it apart."""
TINY = 1e-4
"""Size of the keys and queries of one head."""
_PLAIN: dict[str, Any] = {
    "lower_bound": LOWER_BOUND,
    "circular": False,
    "predecayed": False,
    "force_flush": False,
    "keys": "bfloat16",
    "wide": False,
}


def rows(
    heads: Sequence[int] = HEADS,
    batches: Sequence[int] = BATCHES,
    forms: Sequence[str] = FORMS,
    length: int = LENGTH,
) -> list[Row]:
    """Benchmark rows of K3's heads, rings filled to every degree: `hv12-B32-L16-raw`."""
    found = []
    for hv in heads:
        for batch in batches:
            for form in forms:
                axes = {"HV": hv, "H": hv, "K": 128, "V": 128, "B": batch, "L": length}
                parameters = {**_PLAIN, **axes, "predecayed": form == "predecayed"}
                found.append(Row(SPEC.name, f"hv{hv}-B{batch}-L{length}-{form}", parameters))
    return found


def capture_rows() -> list[Row]:
    """The rows of the committed captures: both flushes, both kinds of keys, forced, one place; drawn from seed 0."""
    small: list[tuple[str, dict[str, Any]]] = [
        ("raw-grouped", {"HV": 4, "H": 2, "K": 48, "V": 16, "B": 4, "L": 8, "wide": True}),
        (
            "circular-grouped",
            {"HV": 4, "H": 2, "K": 32, "V": 16, "B": 4, "L": 4, "lower_bound": None, "circular": True},
        ),
        ("predecayed", {"HV": 2, "H": 2, "K": 48, "V": 16, "B": 4, "L": 16, "predecayed": True}),
        (
            "predecayed-circular-fp32",
            {
                "HV": 2,
                "H": 2,
                "K": 32,
                "V": 16,
                "B": 4,
                "L": 16,
                "predecayed": True,
                "circular": True,
                "keys": "float32",
            },
        ),
        (
            "forced-circular",
            {"HV": 2, "H": 1, "K": 100, "V": 16, "B": 3, "L": 6, "circular": True, "force_flush": True},
        ),
        ("one-place", {"HV": 2, "H": 1, "K": 32, "V": 48, "B": 2, "L": 1}),
    ]
    return [Row(SPEC.name, label, {**_PLAIN, **parameters}) for label, parameters in small]


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row with one slot more than requests; the last of three or more requests is padding."""
    facts = dict(row.parameters)
    B = facts["B"]
    # Slot 0 has a full ring.
    indices = [(B - b) % B for b in range(B)]
    if B > 2:
        indices[-1] = -1
    generator = generator_of(SPEC.name, row.label, seed, device)
    inputs = _fresh(facts, indices, _positions(B + 1, facts["L"], 0), generator)
    return _call(row.label, inputs, {**facts, **_counted(facts, indices, inputs["write_positions"].tolist())})


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing, each on pools of its own; rings filled to every degree."""
    facts = {**row.parameters, "wide": False}
    B = facts["B"]
    generator = generator_of(SPEC.name, row.label, seed, device)
    found = []
    for number in range(count):
        # A batch shorter than a ring takes its degrees over several sets.
        inputs = _light(facts, _positions(B, facts["L"], number * B), generator)
        inputs["state_indices"] = torch.randperm(B, generator=generator, device=device).to(torch.int32)
        counted = _counted(facts, list(range(B)), _positions(B, facts["L"], number * B))
        found.append(_call(row.label, inputs, {**facts, **counted}))
    return found


def with_guard_rows(call: Call, count: int) -> Call:
    """The call itself, with its gaps: whole pools are outputs, so every slot and place is compared."""
    gap = GAP if call.facts["wide"] else 0
    spaced = {name: with_gaps(call.inputs[name].contiguous(), gap // 4) for name in ("mixed_qkv", "a", "b")}
    state = _apart(call.inputs["state"], gap)
    return call.with_inputs(state=state, **spaced).with_outputs(state=_apart(call.outputs["state"], gap))


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers: other values; with `positions` other slots, padding and degrees of filling.

    Args:
        source: not used: every capture is synthetic.

    Raises:
        ParameterError: an unknown change.
    """
    if which not in CHANGES:
        raise ParameterError(SPEC.name, [Reason("which", repr(which), ", ".join(map(repr, CHANGES)))])
    indices = call.inputs["state_indices"].tolist()
    slots, length = call.inputs["state"].shape[0], call.inputs["ring_d"].shape[2]
    if which == "positions":
        indices = passed_on(indices, slots)
    positions = _positions(slots, length, CHANGES.index(which))
    return _fresh(call.facts, indices, positions, generator_of(SPEC.name, f"{call.label} {which}", seed, call.device))


def _positions(slots: int, length: int, turn: int) -> list[int]:
    """Records in the ring of each slot: full, empty, and steps between."""
    return [(length - 1 + 5 * (s + turn) // 2) % length if length > 2 else (s + turn) % length for s in range(slots)]


def _counted(facts: dict[str, Any], indices: Sequence[int], positions: Sequence[int]) -> dict[str, Any]:
    """Host-side facts for the least work: live requests, their records, how many of them flush and append."""
    full = [positions[i] >= facts["L"] - 1 for i in indices if i >= 0]
    flushed = len(full) if facts["force_flush"] else sum(full)
    kept = len(full) - flushed
    appended = kept + (sum(full) if facts["circular"] and not facts["force_flush"] and facts["L"] > 1 else 0)
    records = sum(positions[i] for i in indices if i >= 0)
    last = sum(positions[i] > 0 for i in indices if i >= 0)
    return {"live": len(full), "records": records, "filled": last, "flushed": flushed, "appended": appended}


def _call(label: str, inputs: dict[str, torch.Tensor], facts: dict[str, Any]) -> Call:
    B = inputs["state_indices"].shape[0]
    outputs = {"out": torch.empty(B, 1, facts["HV"], facts["V"], dtype=torch.bfloat16, device=inputs["state"].device)}
    for name in ("state", "ring_d", "ring_k", "ring_g"):
        given = inputs[name]
        outputs[name] = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)
    scalars = {name: facts[name] for name in SPEC.scalars}
    call = Call(SPEC.name, inputs, scalars, outputs, label, facts)
    call.restore()
    return call


def _fresh(
    facts: dict[str, Any], indices: Sequence[int], positions: Sequence[int], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    inputs = _light(facts, positions, generator, len(indices))
    H, K, gap = facts["H"], facts["K"], GAP if facts["wide"] else 0
    row = inputs["mixed_qkv"][len(indices) // 2]
    row[:K] *= TINY
    row[H * K : H * K + K] *= TINY
    inputs["state_indices"] = torch.tensor(indices, dtype=torch.int32, device=generator.device)
    inputs["state"] = _apart(inputs["state"], gap)
    return {n: with_gaps(t, gap // 4) if n in ("mixed_qkv", "a", "b") else t for n, t in inputs.items()}


def _light(
    facts: dict[str, Any], positions: Sequence[int], generator: torch.Generator, batch: int = 0
) -> dict[str, torch.Tensor]:
    H, HV, K, V, L = (facts[n] for n in ("H", "HV", "K", "V", "L"))
    slots, device = len(positions), generator.device
    B = batch or slots

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device=device).normal_(generator=generator)

    position = torch.tensor(positions, dtype=torch.int32, device=device)
    held = (torch.arange(L, device=device)[None] < position[:, None])[:, None, :, None]
    bound = LOWER_BOUND if facts["lower_bound"] is None else facts["lower_bound"]
    g = bound * torch.sigmoid(normal(slots, HV, L, K) - 1)
    k = normalise_k(normal(slots, H, L, K))
    if facts["predecayed"]:
        g = g.cumsum(2)
        k = k * (-g).exp()
    return {
        "mixed_qkv": normal(B, 2 * H * K + HV * V).bfloat16(),
        "a": (0.5 * normal(B, HV * K) - 1).bfloat16(),
        "b": (0.5 * normal(B, HV)).bfloat16(),
        "a_log": 0.2 * normal(HV),
        "dt_bias": 0.1 * normal(HV * K),
        "state": normal(slots, HV, V, K),
        "ring_d": torch.where(held, 0.5 * normal(slots, HV, L, V), STALE).bfloat16(),
        "ring_k": torch.where(held, k, STALE).to(getattr(torch, facts["keys"])),
        "ring_g": torch.where(held, g, STALE),
        "write_positions": position,
    }


def _apart(pool: torch.Tensor, gap: int) -> torch.Tensor:
    """The pool with `gap` elements behind each slot."""
    inner = pool[0].numel()
    if pool.stride(0) == inner + gap:
        return pool
    storage = torch.zeros(pool.shape[0], inner + gap, dtype=pool.dtype, device=pool.device)
    storage[:, :inner] = pool.flatten(1)
    return storage.as_strided(pool.shape, (inner + gap, *pool.stride()[1:]))
