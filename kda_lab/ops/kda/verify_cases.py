"""Inputs of the two verify ops: benchmark rows, synthetic tensors, guard slots, changed contents.

Axes: B requests, T draft tokens, H query and key heads, HV value heads, K and V channels. Everything that a call is made
of stands in its facts, so that changed contents can be drawn for it. Slots that no request names hold NaN.

A kernel's FP32 convolution and the FP64 one round to the same BF16 value unless the value lies near the middle between
two of them. Drawn inputs have no such value: the ring is then exact, and the state can be judged in FP32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.drawing import generator_of, passed_on
from kda_lab.ops.kda.geometry import LOWER_BOUND
from kda_lab.ops.kda.speculative import Heads, Tensors
from kda_lab.ops.protocol import Call, Row, Work

CHANGES = ("tokens", "slots")
"""Contents that a server changes in place between launches: what the requests hold, and where their states are."""
HEADS = (12,)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
TOKENS = (4, 8)
SPARE_SLOTS = 2
TINY = 2.0**-12
"""Factor of one head's q and k, whose sums of squares are then about epsilon."""
WIDE = 16
"""Elements between the rows of a call with free strides; the slots of its pools lie four times as far apart."""
ROWS = ("mixed_qkv", "a", "b")
"""Inputs whose rows may lie apart."""
MARGIN = 4e-6
"""Least distance to a rounding boundary, over the sum of the convolution's absolute terms: 30 times FP32's error."""
MOST_REDRAWS = 200
ELEMENT_REDRAWS = 40
"""Redraws of single elements, before those of whole channels."""


def rows(
    op: str, heads: Sequence[int] = HEADS, batches: Sequence[int] = BATCHES, tokens: Sequence[int] = TOKENS
) -> list[Row]:
    """Benchmark rows of K3's heads (H = HV, K = V = 128, safe gate): `hv12-B32-T4`."""
    found = []
    for hv in heads:
        for batch in batches:
            for t in tokens:
                axes = {"HV": hv, "H": hv, "K": 128, "V": 128, "B": batch, "T": t}
                found.append(Row(op, f"hv{hv}-B{batch}-T{t}", {**axes, "lower_bound": LOWER_BOUND}))
    return found


def capture_rows(op: str) -> list[Row]:
    """The rows of the committed captures: K not V, HV above H, both gates, padding, free strides; drawn from seed 0."""
    small: list[tuple[str, dict[str, Any]]] = [
        ("safe-grouped", {"HV": 4, "H": 2, "K": 64, "V": 32, "B": 3, "T": 4, "lower_bound": -5.0, "wide": True}),
        ("softplus-padded", {"HV": 3, "H": 3, "K": 32, "V": 48, "B": 4, "T": 3, "lower_bound": None}),
        ("safe-one-token", {"HV": 2, "H": 1, "K": 100, "V": 16, "B": 2, "T": 1, "lower_bound": -2.5, "wide": True}),
        ("softplus-fp32", {"HV": 2, "H": 2, "K": 32, "V": 32, "B": 3, "T": 8, "lower_bound": None, "fp32": True}),
    ]
    return [Row(op, label, parameters) for label, parameters in small]


def heads_of_facts(facts: dict[str, Any]) -> Heads:
    """Head counts and widths of a row's parameters or a call's facts."""
    return Heads(facts["H"], facts["HV"], facts["K"], facts["V"])


def drawn(row: Row, seed: int, device: torch.device | str = "cpu") -> tuple[Tensors, dict[str, Any], dict[str, Any]]:
    """Inputs, scalars and facts of a row: N(0, 1) rows and states, one head of tiny keys, padding from three requests on."""
    B = row.parameters["B"]
    facts = {"wide": False, "fp32": False, **row.parameters, "live": B - (B > 2)}
    generator = generator_of(row.op, row.label, seed, device)
    inputs = fresh(facts, B + SPARE_SLOTS, _indices(B, B + SPARE_SLOTS), generator)
    return inputs, {"lower_bound": facts["lower_bound"]}, facts


def fresh(facts: dict[str, Any], slots: int, indices: Sequence[int], generator: torch.Generator) -> Tensors:
    """New contents of a call with these facts, `slots` of the pools and these requests; no value near a boundary."""
    heads, B, T, device = heads_of_facts(facts), facts["B"], facts["T"], generator.device
    draw: dict[str, Any] = {"generator": generator, "device": device}
    size = torch.ones(heads.width, device=device)
    keys = heads.H * heads.K
    tiny = torch.zeros(heads.width, dtype=torch.bool, device=device)
    tiny[: heads.K] = tiny[keys : keys + heads.K] = True
    size = torch.where(tiny, TINY, size)
    scale = torch.ones(B, heads.width, device=device)
    scale[B // 2] = size
    weight = (0.5 * torch.randn(4, heads.width, **draw)).to(torch.float32 if facts["fp32"] else torch.bfloat16)
    past = torch.randn(B, 3, heads.width, **draw) * scale[:, None]
    qkv = (torch.randn(B, T, heads.width, **draw) * scale[:, None]).bfloat16()
    index = torch.tensor(indices, dtype=torch.int32, device=device)
    live = index >= 0
    past = past.bfloat16()
    settle(qkv, past, weight, scale, generator)
    conv_state = torch.full((slots, 3, heads.width), float("nan"), dtype=torch.bfloat16, device=device)
    conv_state[index[live].long()] = past[live]
    state = torch.full((slots, heads.HV, heads.V, heads.K), float("nan"), device=device)
    state[index[live].long()] = torch.randn(int(live.sum()), heads.HV, heads.V, heads.K, **draw)
    wide = WIDE if facts["wide"] else 0
    return {
        "mixed_qkv": with_gaps(qkv, wide),
        "conv_state": apart(conv_state, 4 * wide),
        "conv_weight": weight,
        "a": with_gaps((0.5 * torch.randn(B, T, heads.HV * heads.K, **draw) - 1).bfloat16(), wide),
        "b": with_gaps((0.5 * torch.randn(B, T, heads.HV, **draw)).bfloat16(), wide),
        "a_log": 0.2 * torch.randn(heads.HV, **draw),
        "dt_bias": 0.1 * torch.randn(heads.HV * heads.K, **draw),
        "state": apart(state, 4 * wide),
        "state_indices": index,
    }


def settle(
    qkv: torch.Tensor, past: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, generator: torch.Generator
) -> None:
    """Redraw elements in place until no convolved value lies near a BF16 rounding boundary.

    First elements of `qkv` alone. A value that hardly depends on its newest element (a weight near zero, or older terms
    far below zero) does not settle so: then what its whole channel holds of that request is drawn anew.

    Args:
        qkv: [B, T, C] bf16, redrawn. past: [B, 3, C] bf16, redrawn.
        weight: [4, C]. scale: [B, C], of the elements drawn.

    Raises:
        ParameterError: they do not settle.
    """
    T = qkv.shape[1]
    taps = torch.cat([past, qkv], 1).mT.contiguous()
    near = _near_boundary(taps, weight.mT)
    b, c = near.any(-1).nonzero(as_tuple=True)
    near = near[b, c]
    for attempt in range(MOST_REDRAWS):
        if not len(b):
            past.copy_(taps[..., :3].mT)
            qkv.copy_(taps[..., 3:].mT)
            return
        held = taps[b, c]
        draw: dict[str, Any] = {"generator": generator, "device": qkv.device}
        if attempt < ELEMENT_REDRAWS:
            again = (torch.randn(qkv.shape, **draw) * scale[:, None]).bfloat16()
            held[:, 3:] = torch.where(near, again.mT[b, c], held[:, 3:])
        else:
            held = (torch.randn(len(b), 3 + T, **draw) * scale[b, c, None]).bfloat16()
        taps[b, c] = held
        near = _near_boundary(held, weight.mT[c])
        left = near.any(-1)
        b, c, near = b[left], c[left], near[left]
    raise ParameterError("kda", [Reason("inputs", f"unsettled after {MOST_REDRAWS} redraws", "another seed")])


def _near_boundary(taps: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Which convolved values [..., T] of `taps` [..., 3 + T] lie near a rounding boundary; weight [..., 4]."""
    terms = taps.double().unfold(-1, 4, 1) * weight.double()[..., None, :]
    y = torch.nn.functional.silu(terms.sum(-1))
    rounded = y.bfloat16().double()
    ulp = torch.exp2(rounded.abs().clamp(min=2.0**-120).log2().floor() - 7)
    # Just above a power of two the boundary below lies at a quarter of the spacing above.
    inner = torch.minimum(ulp / 2 - (y - rounded).abs(), (ulp / 4 - (y - rounded).abs()).abs())
    return inner < MARGIN * terms.abs().sum(-1)


def light(row: Row, count: int, seed: int, device: torch.device | str) -> list[tuple[Tensors, dict[str, Any]]]:
    """`count` distinct inputs of one row for cold timing, each with pools of its own; values are not settled."""
    facts = {"wide": False, "fp32": False, **row.parameters, "live": row.parameters["B"]}
    heads, B, T = heads_of_facts(facts), facts["B"], facts["T"]
    generator = generator_of(row.op, row.label, seed, device)

    def bf16(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16, device=device).normal_(generator=generator)

    def fp32(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device=device).normal_(generator=generator)

    found = []
    for _ in range(count):
        inputs = {
            "mixed_qkv": bf16(B, T, heads.width),
            "conv_state": bf16(B, 3, heads.width),
            "conv_weight": bf16(4, heads.width) * 0.5,
            "a": bf16(B, T, heads.HV * heads.K) * 0.5 - 1,
            "b": bf16(B, T, heads.HV) * 0.5,
            "a_log": fp32(heads.HV) * 0.2,
            "dt_bias": fp32(heads.HV * heads.K) * 0.1,
            "state": fp32(B, heads.HV, heads.V, heads.K),
            "state_indices": torch.randperm(B, generator=generator, device=device).to(torch.int32),
        }
        found.append((inputs, facts))
    return found


def work(call: Call) -> Work:
    """The least work of a call: the states of its requests once, its other inputs once, each output once.

    FLOPs: seven for each element of a state and token.
    """
    heads, live, i = heads_of_facts(call.facts), call.facts["live"], call.inputs
    rows = sum(i[n].numel() * i[n].element_size() for n in i if n not in ("state", "conv_state"))
    elements = heads.HV * heads.V * heads.K
    read = rows + live * (elements * i["state"].element_size() + 3 * heads.width * i["conv_state"].element_size())
    written = sum(t.numel() * t.element_size() for t in call.outputs.values())
    return Work(bytes_read=read, bytes_written=written, flops=7 * elements * live * call.facts["T"])


def draft_outputs(facts: dict[str, Any], device: torch.device | str) -> Tensors:
    """Buffers for what both ops give: `out` [B, T, HV, V] and `windows` [B, T, 3, C], bf16."""
    heads, B, T = heads_of_facts(facts), facts["B"], facts["T"]
    bf16: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
    return {
        "out": torch.empty(B, T, heads.HV, heads.V, **bf16),
        "windows": torch.empty(B, T, 3, heads.width, **bf16),
    }


@dataclass(frozen=True)
class Cases:
    """Rows and calls of one of the two ops."""

    op: str
    """Dotted name."""
    outputs: Callable[[dict[str, Any], torch.device | str], Tensors]
    """Buffers for the outputs of a call with these facts, on a device."""

    def rows(
        self, heads: Sequence[int] = HEADS, batches: Sequence[int] = BATCHES, tokens: Sequence[int] = TOKENS
    ) -> list[Row]:
        """Benchmark rows, one for each head count, batch and number of tokens, in that order: `hv12-B32-T4`."""
        return rows(self.op, heads, batches, tokens)

    def capture_rows(self) -> list[Row]:
        """The rows of the committed captures; drawn from seed 0."""
        return capture_rows(self.op)

    def synthesise(self, row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
        """A call of a row, whose convolved values are far from every rounding boundary."""
        inputs, scalars, facts = drawn(row, seed, device)
        return Call(self.op, inputs, scalars, self.outputs(facts, device), row.label, facts)

    def make_sets(self, row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
        """`count` distinct calls of one row for cold timing, each on pools of its own."""
        scalars = {"lower_bound": row.parameters["lower_bound"]}
        return [
            Call(self.op, inputs, scalars, self.outputs(facts, device), row.label, facts)
            for inputs, facts in light(row, count, seed, device)
        ]


def with_guard_slots(call: Call, count: int) -> Call:
    """The call with up to two more slots of NaN behind its pools: more would be gigabytes for a model's heads."""
    extra, wide = min(count, SPARE_SLOTS), WIDE if call.facts["wide"] else 0
    pools = {name: grown(call.inputs[name], extra, 4 * wide) for name in ("conv_state", "state")}
    # A copy to another device has lost the gaps.
    return call.with_inputs(**pools, **{name: with_gaps(call.inputs[name].contiguous(), wide) for name in ROWS})


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> Tensors:
    """New contents of every input: other tokens, weights and states; with `slots` in other slots and other padding.

    Args:
        source: not used: every capture is synthetic.

    Raises:
        ParameterError: an unknown change.
    """
    if which not in CHANGES:
        raise ParameterError(call.op, [Reason("which", repr(which), ", ".join(map(repr, CHANGES)))])
    slots = call.inputs["state"].shape[0]
    indices = call.inputs["state_indices"].tolist()
    if which == "slots":
        indices = passed_on(indices, slots)
    return fresh(call.facts, slots, indices, generator_of(call.op, f"{call.label} {which}", seed, call.device))


def _indices(batch: int, slots: int) -> list[int]:
    """Slots of the requests, out of order; the last of three or more is padding."""
    order = [(slots - 1 - (1 + slots % 2) * b) % slots for b in range(batch)]
    return [*order[:-1], -1] if batch > 2 else order


def apart(pool: torch.Tensor, gap: int) -> torch.Tensor:
    """The pool with `gap` elements of NaN behind each slot."""
    if not gap:
        return pool
    inner = pool[0].numel()
    storage = torch.full((pool.shape[0], inner + gap), float("nan"), dtype=pool.dtype, device=pool.device)
    storage[:, :inner] = pool.flatten(1)
    return storage.as_strided(pool.shape, (inner + gap, *pool.stride()[1:]))


def grown(pool: torch.Tensor, extra: int, gap: int) -> torch.Tensor:
    """The pool with more slots of NaN, `gap` elements between all of them."""
    guard = torch.full((extra, *pool.shape[1:]), float("nan"), dtype=pool.dtype, device=pool.device)
    return apart(torch.cat([pool, guard]), gap)


def with_gaps(rows: torch.Tensor, gap: int) -> torch.Tensor:
    """The rows with `gap` elements of NaN behind each."""
    if not gap:
        return rows
    guard = torch.full((*rows.shape[:-1], gap), float("nan"), dtype=rows.dtype, device=rows.device)
    return torch.cat([rows, guard], -1)[..., : rows.shape[-1]]
