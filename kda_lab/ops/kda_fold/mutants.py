"""Deliberately wrong folds, one mistake each: what the gates must reject before they count.

Every mutant reads and writes the pool in the call's outputs, computes in FP32 on any device and would be right without
its mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kda_lab.ops.kda.recurrence import normalise_k
from kda_lab.ops.kda.speculative import Heads, to_value_heads
from kda_lab.ops.kda_fold.oracle import RING, touched_slots
from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.wrong import all_zero, baked, plain, untouched

Ring = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Fold:
    """The op with replaceable steps; the defaults are right."""

    count: Callable[[int, int], int] = lambda accepted, tokens: accepted
    """Tokens that are run: (accepted, T)."""
    slot: Callable[[int, int, int], int] = lambda index, row, slots: index
    """The slot of a request, negative to skip it: (index, row, slots)."""
    layer: Callable[[int], int] = lambda layer: layer
    """The layer whose ring is read."""
    key: Callable[[torch.Tensor], torch.Tensor] = normalise_k
    heads: Callable[[torch.Tensor, Heads], torch.Tensor] = to_value_heads
    decay: Callable[[torch.Tensor], torch.Tensor] = torch.exp
    beta: Callable[[torch.Tensor], torch.Tensor] = lambda beta: beta
    held: Callable[[torch.Tensor], torch.Tensor] = lambda held: held
    """What the state holds for a key, as far as it is taken off the value."""
    order: Callable[[list[int]], list[int]] = lambda tokens: tokens
    enter: Callable[[torch.Tensor], torch.Tensor] = lambda state: state
    leave: Callable[[torch.Tensor], torch.Tensor] = lambda state: state

    def __call__(self, call: Call) -> None:
        i, pool = call.inputs, call.outputs["state"]
        layers, slots, tokens = pool.shape[0], pool.shape[1], i["ring_k"].shape[2]
        rows = zip(i["state_indices"].tolist(), i["accepted"].tolist(), strict=True)
        for b, (index, accepted) in enumerate(rows):
            slot, n = self.slot(index, b, slots), min(self.count(accepted, tokens), tokens)
            if slot < 0 or n <= 0:
                continue
            for y in range(layers):
                # NaN behind the accepted tokens would tell too much.
                ring = {name: i[name][self.layer(y), b].float().nan_to_num(0.5) for name in RING}
                state = self.enter(pool[y, slot].clone())
                for t in self.order(list(range(n))):
                    state = self._step(state, {name: values[t] for name, values in ring.items()})
                pool[y, slot] = self.leave(state)

    def _step(self, state: torch.Tensor, token: Ring) -> torch.Tensor:
        k, v = token["ring_k"], token["ring_v"]
        heads = Heads(k.shape[0], v.shape[0], k.shape[1], v.shape[1])
        key = self.heads(self.key(k), heads)
        state = state * self.decay(token["ring_g"])[:, None, :]
        held = self.held((state * key[:, None, :]).sum(-1))
        return state + (self.beta(token["ring_beta"])[:, None] * (v - held))[..., None] * key[:, None, :]


def _outside_root(k: torch.Tensor) -> torch.Tensor:
    return k / (k.square().sum(-1, keepdim=True).sqrt() + 1e-6)


def _transposed(state: torch.Tensor) -> torch.Tensor:
    V, K = state.shape[-2:]
    return state.reshape(-1, K, V).mT.contiguous()


def _modulo(x: torch.Tensor, heads: Heads) -> torch.Tensor:
    return x[torch.arange(heads.HV, device=x.device) % heads.H]


def _first_layer_only(call: Call) -> None:
    later = call.outputs["state"][1:].clone()
    Fold()(call)
    call.outputs["state"][1:] = later


def _zero_count_decays(call: Call) -> None:
    """Nothing accepted: the state is multiplied by one and a bit, as a rounding through another form would."""
    Fold()(call)
    for index, n in zip(call.inputs["state_indices"].tolist(), call.inputs["accepted"].tolist(), strict=True):
        if index >= 0 and n == 0:
            call.outputs["state"][:, index] *= 1 + 2.0**-22


def _wide_store(call: Call) -> None:
    """The slot behind a request's own is rewritten with its last bit changed."""
    before = call.outputs["state"].clone()
    Fold()(call)
    slots = before.shape[1]
    touched = set(touched_slots(call).tolist())
    for slot in touched:
        behind = (slot + 1) % slots
        if behind not in touched:
            call.outputs["state"][:, behind] = before[:, behind] * (1 + 2.0**-22)


def _counts(call: Call, test: Callable[[int], bool]) -> bool:
    pairs = zip(call.inputs["state_indices"].tolist(), call.inputs["accepted"].tolist(), strict=True)
    return any(index >= 0 and test(n) for index, n in pairs)


def _takes(call: Call) -> bool:
    return _counts(call, lambda n: n > 0)


def _many(call: Call) -> bool:
    return _counts(call, lambda n: n > 1)


def _has_room(call: Call) -> bool:
    tokens = call.inputs["ring_k"].shape[2]
    return _counts(call, lambda n: n < tokens)


def _has_layers(call: Call) -> bool:
    return call.outputs["state"].shape[0] > 1 and _takes(call)


def _has_padding(call: Call) -> bool:
    return bool(((call.inputs["state_indices"] < 0) & (call.inputs["accepted"] > 0)).any())


def _is_grouped(call: Call) -> bool:
    H, HV = call.inputs["ring_k"].shape[3], call.outputs["state"].shape[2]
    return 1 < H < HV and _takes(call)


_TAKES = (_takes, "no request takes a token")
_ROOM = (_has_room, "every request takes all tokens")
_LAYERS = (_has_layers, "there is one layer")

MUTANTS: tuple[Mutant, ...] = (
    plain("all_zero", "The pool is set to zero.", all_zero),
    plain("untouched", "Writes nothing.", untouched, *_TAKES),
    plain("one_too_few", "The last accepted token is left out.", Fold(count=lambda n, tokens: n - 1), *_TAKES),
    plain("one_too_many", "A token that was not accepted is run.", Fold(count=lambda n, tokens: n + 1), *_ROOM),
    plain("all_tokens", "Every token of the ring is run.", Fold(count=lambda n, tokens: tokens), *_ROOM),
    plain(
        "reversed",
        "Tokens are run from the last on.",
        Fold(order=lambda t: t[::-1]),
        _many,
        "no request takes two tokens",
    ),
    plain("no_decay", "The state does not decay.", Fold(decay=torch.ones_like), *_TAKES),
    plain("decay_as_stored", "g is taken for the decay itself.", Fold(decay=lambda g: g), *_TAKES),
    plain("decay_base_two", "exp2 in the place of exp.", Fold(decay=torch.exp2), *_TAKES),
    plain("keys_plain", "Keys are not normalised.", Fold(key=lambda k: k), *_TAKES),
    plain("epsilon_outside", "Epsilon is added outside of the root.", Fold(key=_outside_root), *_TAKES),
    plain("beta_rounded", "The write strength is rounded to BF16.", Fold(beta=lambda b: b.bfloat16().float()), *_TAKES),
    plain("beta_twice", "The write strength goes through the sigmoid again.", Fold(beta=torch.sigmoid), *_TAKES),
    plain("no_delta", "Values are added, whatever the state holds.", Fold(held=torch.zeros_like), *_TAKES),
    plain("state_transposed", "The state is read as [K, V].", Fold(enter=_transposed), *_TAKES),
    plain("state_bf16", "The state is rounded to BF16.", Fold(leave=lambda s: s.bfloat16().float()), *_TAKES),
    plain(
        "head_map",
        "Value head h reads key head h % H.",
        Fold(heads=_modulo),
        _is_grouped,
        "there is one key head, or as many as value heads, or no token is taken",
    ),
    plain("slots_ignored", "Request b has slot b.", Fold(slot=lambda i, b, slots: b if i >= 0 else i), *_TAKES),
    plain(
        "padding_wraps",
        "Index -1 is the last slot.",
        Fold(slot=lambda i, b, slots: i if i >= 0 else slots - 1),
        _has_padding,
        "no padding request has an accepted token",
    ),
    plain("layer_zero", "All layers read the first one's ring.", Fold(layer=lambda y: 0), *_LAYERS),
    plain("first_layer_only", "The first layer alone is folded.", _first_layer_only, *_LAYERS),
    plain(
        "zero_count_writes",
        "A request without an accepted token loses its last bits.",
        _zero_count_decays,
        lambda call: _counts(call, lambda n: n == 0),
        "every request takes a token",
    ),
    plain("wide_store", "The slot behind a request's own loses its last bits.", _wide_store, *_TAKES),
    Mutant(
        "counts_baked",
        "Counts are read when the call is bound.",
        lambda: baked("counts_baked", ("accepted",), Fold()),
    ),
    Mutant(
        "slots_baked",
        "Slots are read when the call is bound.",
        lambda: baked("slots_baked", ("state_indices",), Fold()),
    ),
)
