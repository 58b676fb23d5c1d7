"""Small synthetic calls of KDA's decode ops that share their tokens, so that one op can be held against another."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kda_lab.ops.protocol import Call, Scalar

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Geometry:
    """Extents of the calls; K is not V, so that a transposed state shows."""

    requests: int = 3
    heads: int = 2
    """Query, key and value heads."""
    key_width: int = 32
    value_width: int = 16

    @property
    def slots(self) -> int:
        """Slots of the pools: one more than the requests need, whose bits must stay."""
        return self.requests + 2

    @property
    def width(self) -> int:
        """Columns of a row of q, k and v."""
        return self.heads * (2 * self.key_width + self.value_width)

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Of a pool of states."""
        return (self.slots, self.heads, self.value_width, self.key_width)


@dataclass(frozen=True)
class Drawn:
    """T tokens of every request and the pools they begin with; operands and states of unit size."""

    geometry: Geometry
    lower_bound: float
    tokens: Tensors
    """`mixed_qkv`, `a` and `b` with an axis of tokens behind the requests."""
    weights: Tensors
    """`a_log` and `dt_bias`."""
    conv: Tensors
    """`conv_state` and `conv_weight`."""
    state: torch.Tensor
    state_indices: torch.Tensor

    @property
    def count(self) -> int:
        """Tokens a request."""
        return self.tokens["mixed_qkv"].shape[1]


def draw(geometry: Geometry, tokens: int, lower_bound: float, seed: int, device: torch.device) -> Drawn:
    """Tokens, weights and pools from a seed, on the CPU first; the last request is padding."""
    generator = torch.Generator().manual_seed(seed)
    B, HV, K = geometry.requests, geometry.heads, geometry.key_width

    def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return (scale * torch.randn(*shape, generator=generator)).to(device, dtype)

    fp32 = torch.float32
    indices = torch.randperm(geometry.slots, generator=generator)[:B].int()
    indices[-1] = -1
    return Drawn(
        geometry,
        lower_bound,
        {
            "mixed_qkv": normal(B, tokens, geometry.width),
            "a": normal(B, tokens, HV * K, scale=0.5) - 1,
            "b": normal(B, tokens, HV, scale=0.5),
        },
        {"a_log": normal(HV, scale=0.2, dtype=fp32), "dt_bias": normal(HV * K, scale=0.1, dtype=fp32)},
        {
            "conv_state": normal(geometry.slots, 3, geometry.width),
            "conv_weight": normal(4, geometry.width, scale=0.5),
        },
        normal(*geometry.state_shape, dtype=fp32),
        indices.to(device),
    )


def verify_call(drawn: Drawn, ring: bool) -> Call:
    """A call of `kda.verify_ring` or `kda.verify_snapshots` on all tokens."""
    g, T = drawn.geometry, drawn.count
    like, heads = drawn.tokens["mixed_qkv"], (g.requests, T, g.heads)
    outputs = {
        "out": like.new_zeros(*heads, g.value_width),
        "windows": like.new_zeros(g.requests, T, 3, g.width),
    }
    if ring:
        outputs |= {
            "ring_k": like.new_zeros(*heads, g.key_width),
            "ring_v": like.new_zeros(*heads, g.value_width),
            "ring_g": drawn.state.new_zeros(*heads, g.key_width),
            "ring_beta": drawn.state.new_zeros(*heads),
        }
    else:
        outputs["snapshots"] = drawn.state.new_zeros(*heads, g.value_width, g.key_width)
    tokens = drawn.tokens
    inputs = {"mixed_qkv": tokens["mixed_qkv"], **drawn.conv, "a": tokens["a"], "b": tokens["b"], **drawn.weights}
    inputs |= {"state": drawn.state, "state_indices": drawn.state_indices}
    name = "kda.verify_ring" if ring else "kda.verify_snapshots"
    return Call(name, inputs, {"lower_bound": drawn.lower_bound}, outputs, f"{name}-T{T}")


def fold_call(drawn: Drawn, verified: Call, accepted: int) -> Call:
    """A call of `kda.fold` on the ring of a verified call, one layer, with `accepted` tokens of every request."""
    rings = {n: verified.outputs[n][None] for n in ("ring_k", "ring_v", "ring_g", "ring_beta")}
    pool = drawn.state[None]
    count = torch.full_like(drawn.state_indices, accepted)
    inputs = {**rings, "state": pool, "state_indices": drawn.state_indices, "accepted": count}
    return _restored(Call("kda.fold", inputs, {}, {"state": torch.empty_like(pool)}, f"fold-{accepted}"))


def packed_call(drawn: Drawn, token: int, state: torch.Tensor) -> Call:
    """A call of `kda.packed_decode` on one token of every request, from `state`."""
    inputs = {**_token(drawn, token), "state": state, "state_indices": drawn.state_indices}
    outputs = {"out": _out(drawn), "state": torch.empty_like(state)}
    scalars: dict[str, Scalar] = {"lower_bound": drawn.lower_bound}
    return _restored(Call("kda.packed_decode", inputs, scalars, outputs, f"packed-{token}"))


def empty_rings(drawn: Drawn, places: int, predecayed: bool) -> Tensors:
    """State, rings without a record, and write positions; with `predecayed` the keys are kept in FP32."""
    g = drawn.geometry
    like, front = drawn.tokens["mixed_qkv"], (g.slots, g.heads, places)
    return {
        "state": drawn.state.clone(),
        "ring_d": like.new_zeros(*front, g.value_width),
        "ring_k": (drawn.state if predecayed else like).new_zeros(*front, g.key_width),
        "ring_g": drawn.state.new_zeros(*front, g.key_width),
        "write_positions": drawn.state_indices.new_zeros(g.slots),
    }


def replay_call(drawn: Drawn, token: int, memory: Tensors, predecayed: bool) -> Call:
    """A call of `kda.replay_decode` on one token of every request, from a memory."""
    inputs = {**_token(drawn, token), **memory, "state_indices": drawn.state_indices}
    updated = {n: torch.empty_like(memory[n]) for n in ("state", "ring_d", "ring_k", "ring_g")}
    scalars: dict[str, Scalar] = {
        "lower_bound": drawn.lower_bound,
        "circular": False,
        "predecayed": predecayed,
        "force_flush": False,
    }
    outputs = {"out": _out(drawn), **updated}
    return _restored(Call("kda.replay_decode", inputs, scalars, outputs, f"replay-{token}"))


def _token(drawn: Drawn, token: int) -> Tensors:
    return {**{n: t[:, token].contiguous() for n, t in drawn.tokens.items()}, **drawn.weights}


def _out(drawn: Drawn) -> torch.Tensor:
    g = drawn.geometry
    return drawn.tokens["mixed_qkv"].new_zeros(g.requests, 1, g.heads, g.value_width)


def _restored(call: Call) -> Call:
    call.restore()
    return call
