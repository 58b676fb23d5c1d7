"""One call as tokens and memories of requests: how the pools of a call are read and written, with replaceable steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kda_lab.ops.kda import replay
from kda_lab.ops.kda.gate import beta, bound_of, log_decay
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q
from kda_lab.ops.kda.replay import Memory, Modes, Token
from kda_lab.ops.kda.speculative import Heads, Tensors, heads_of, split_heads, to_value_heads
from kda_lab.ops.protocol import Call

POOLS = ("state", "ring_d", "ring_k", "ring_g")
"""Tensors that the op updates in place."""


def modes_of(call: Call) -> Modes:
    """The call's flags."""
    return Modes(*(bool(call.scalars[name]) for name in ("circular", "predecayed", "force_flush")))


def heads_of_call(call: Call) -> Heads:
    """Extents of a call."""
    return heads_of(call.inputs["mixed_qkv"].shape[-1], call.inputs["state"])


@dataclass(frozen=True)
class Steps:
    """The op with replaceable steps; the defaults are right."""

    bound: Callable[[Call], float | None] = bound_of
    modes: Callable[[Call], Modes] = modes_of
    key: Callable[[torch.Tensor], torch.Tensor] = normalise_k
    query: Callable[[torch.Tensor], torch.Tensor] = normalise_q
    strength: Callable[[torch.Tensor], torch.Tensor] = beta
    heads: Callable[[torch.Tensor, Heads], torch.Tensor] = to_value_heads
    slot: Callable[[int, int, int], int] = lambda index, row, slots: index
    """The slot of a request, negative for padding: (index, row, slots)."""
    position: Callable[[int, int, int], int] = lambda position, row, length: position
    memory: Callable[[Memory], Memory] = lambda memory: memory
    """Changes what was read."""
    decode: Callable[[Memory, Token, Modes], tuple[torch.Tensor, Memory]] = replay.decode
    kept: Callable[[Memory, Memory], Memory] = lambda before, after: after
    """Changes what is written: (memory before, memory after)."""

    def tokens(self, call: Call, dtype: torch.dtype) -> Token:
        """The tokens of all requests: tensors [B, HV, ...]."""
        i, heads = call.inputs, heads_of_call(call)
        q, k, v = split_heads(i["mixed_qkv"].to(dtype), heads)
        g = log_decay(i["a"].to(dtype), i["a_log"].to(dtype), i["dt_bias"].to(dtype), self.bound(call))
        q, k = (self.heads(x, heads) for x in (self.query(q), self.key(k)))
        return Token(q, k, v, g, self.strength(i["b"].to(dtype)))

    def run(self, call: Call, pools: Tensors, dtype: torch.dtype) -> Tensors:
        """Run the call on `pools` in `dtype`.

        Returns:
            `out` [B, 1, HV, V] and each pool after the call, in `dtype`; nothing given is written.
        """
        i, heads = call.inputs, heads_of_call(call)
        found = {name: pool.to(dtype, copy=True) for name, pool in pools.items()}
        whole = self.tokens(call, dtype)
        out = torch.zeros(i["state_indices"].shape[0], 1, heads.HV, heads.V, dtype=dtype, device=call.device)
        slots, length = i["state"].shape[0], i["ring_d"].shape[2]
        positions = i["write_positions"].tolist()
        for b, index in enumerate(i["state_indices"].tolist()):
            slot = self.slot(index, b, slots)
            if slot < 0:
                continue
            position = self.position(positions[slot], b, length)
            memory = self.memory(_read(found, slot, position, heads))
            token = Token(whole.q[b], whole.k[b], whole.v[b], whole.g[b], whole.beta[b])
            out[b, 0], after = self.decode(memory, token, self.modes(call))
            _write(found, slot, self.kept(memory, after), heads)
        return {"out": out, **found}

    def __call__(self, call: Call) -> None:
        """As an arm: on the memory that the call updates, in FP32."""
        found = self.run(call, {name: call.outputs[name] for name in POOLS}, torch.float32)
        for name, tensor in call.outputs.items():
            tensor.copy_(found[name])


def _read(pools: Tensors, slot: int, position: int, heads: Heads) -> Memory:
    keys = pools["ring_k"][slot]
    keys = keys if keys.shape[0] == heads.HV else to_value_heads(keys, heads, 0)
    return Memory(pools["state"][slot], pools["ring_d"][slot], keys, pools["ring_g"][slot], position)


def _write(pools: Tensors, slot: int, memory: Memory, heads: Heads) -> None:
    keys = pools["ring_k"]
    pools["state"][slot], pools["ring_d"][slot], pools["ring_g"][slot] = memory.state, memory.d, memory.g
    # Value heads that share a key have the same record of it.
    keys[slot] = memory.k[:: heads.HV // keys.shape[1]]
