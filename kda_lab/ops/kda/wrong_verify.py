"""Deliberately wrong verifications of draft tokens, one mistake each; both verify ops share them.

Every mutant computes in FP32 on any device and would be right without its mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kda_lab.ops.kda.gate import bound_of, log_decay
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q
from kda_lab.ops.kda.speculative import (
    Draft,
    Heads,
    Tensors,
    drafted,
    heads_of,
    split_heads,
    states_of,
    to_value_heads,
)
from kda_lab.ops.kda.wrong_requests import has_padding
from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.wrong import all_zero, baked, plain, untouched


def _right_step(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    state = state * g.exp()[..., None, :]
    state = state + (beta[..., None] * (v - (state * k[..., None, :]).sum(-1)))[..., None] * k[..., None, :]
    return (state * q[..., None, :]).sum(-1), state


@dataclass(frozen=True)
class Verify:
    """The op with replaceable steps; the defaults are right."""

    draft: Callable[[Call], Draft] = lambda call: drafted(call.inputs, bound_of(call), torch.float32)
    states: Callable[[Call], torch.Tensor] = lambda call: states_of(call.inputs["state"], call.inputs["state_indices"])
    key: Callable[[torch.Tensor], torch.Tensor] = normalise_k
    query: Callable[[torch.Tensor], torch.Tensor] = normalise_q
    heads: Callable[[torch.Tensor, Heads], torch.Tensor] = to_value_heads
    step: Callable[..., tuple[torch.Tensor, torch.Tensor]] = _right_step
    after: Callable[[Tensors, Call], Tensors] = lambda found, call: found
    """Changes the outputs before they are written."""

    def outputs(self, call: Call) -> Tensors:
        """All outputs of both ops, in FP32."""
        draft, state = self.draft(call), self.states(call)
        heads = heads_of(call.inputs["mixed_qkv"].shape[-1], call.inputs["state"])
        outs, states = [], []
        for t in range(draft.k.shape[1]):
            q, k = (self.heads(x, heads) for x in (self.query(draft.q[:, t]), self.key(draft.k[:, t])))
            out, state = self.step(state, q, k, draft.v[:, t], draft.g[:, t], draft.beta[:, t])
            outs.append(out)
            states.append(state)
        found = {"out": torch.stack(outs, 1), "snapshots": torch.stack(states, 1), "windows": draft.windows}
        found |= {"ring_k": draft.k, "ring_v": draft.v, "ring_g": draft.g, "ring_beta": draft.beta}
        return self.after(found, call)

    def __call__(self, call: Call) -> None:
        found = self.outputs(call)
        for name, tensor in call.outputs.items():
            tensor.copy_(found[name])


def _with_draft(change: Callable[[Draft, Call], Draft]) -> Verify:
    return Verify(draft=lambda call: change(Verify().draft(call), call))


def _with_inputs(change: Callable[[Call], Tensors]) -> Verify:
    def draft(call: Call) -> Draft:
        return drafted({**call.inputs, **change(call)}, bound_of(call), torch.float32)

    return Verify(draft=draft)


def _other_gate(draft: Draft, call: Call) -> Draft:
    other = None if bound_of(call) is not None else -5.0
    i = call.inputs
    g = log_decay(i["a"].float(), i["a_log"], i["dt_bias"], other)
    return replace(draft, g=torch.where(draft.g == 0, draft.g, g))


def _unrounded(draft: Draft, call: Call) -> Draft:
    """The recurrence gets the convolution in FP32."""
    return _convolved(draft, call, lambda total: torch.nn.functional.silu(total))


def _no_silu(draft: Draft, call: Call) -> Draft:
    return _convolved(draft, call, lambda total: total.bfloat16().float())


def _convolved(draft: Draft, call: Call, finish: Callable[[torch.Tensor], torch.Tensor]) -> Draft:
    i, T = call.inputs, draft.k.shape[1]
    index = i["state_indices"].long()
    live = index >= 0
    padded = torch.cat([i["conv_state"][index.clamp(min=0)], i["mixed_qkv"]], 1).float()
    total = sum(i["conv_weight"][j].float() * padded[:, j : j + T] for j in range(4))
    y = finish(torch.where(live[:, None, None], total, torch.zeros_like(padded[:, 3:])))
    q, k, v = split_heads(y, heads_of(y.shape[-1], i["state"]))
    return replace(draft, q=q, k=k, v=v)


def _outside_root(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True).sqrt() + 1e-6)


def _read_before(state: torch.Tensor, q: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    decayed = state * rest[2].exp()[..., None, :]
    return (decayed * q[..., None, :]).sum(-1), _right_step(state, q, *rest)[1]


def _decay_late(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The delta is taken before the decay."""
    delta = beta[..., None] * (v - (state * k[..., None, :]).sum(-1))
    state = state * g.exp()[..., None, :] + delta[..., None] * k[..., None, :]
    return (state * q[..., None, :]).sum(-1), state


def _transposed(call: Call) -> torch.Tensor:
    state = Verify().states(call)
    V, K = state.shape[-2:]
    return state.reshape(*state.shape[:-2], K, V).mT.contiguous()


def _without_stride(call: Call) -> torch.Tensor:
    pool = call.inputs["state"]
    packed = pool.as_strided(pool.shape, (pool[0].numel(), *pool.stride()[1:]))
    # Its gaps hold NaN, which would tell too much.
    return states_of(packed.nan_to_num(0.5), call.inputs["state_indices"])


def _by_row(call: Call) -> torch.Tensor:
    pool, indices = call.inputs["state"], call.inputs["state_indices"]
    rows = torch.arange(len(indices), device=pool.device, dtype=indices.dtype)
    return states_of(pool.nan_to_num(0.5), torch.where(indices >= 0, rows, indices))


def _last_slot(call: Call) -> None:
    """Index -1 counts from the end of the pool, as an unchecked index does."""
    slots = call.inputs["state"].shape[0]
    indices = call.inputs["state_indices"]
    pools = {n: call.inputs[n].nan_to_num(0.5) for n in ("state", "conv_state")}
    shifted = call.with_inputs(**pools, state_indices=torch.where(indices < 0, slots - 1, indices))
    Verify()(shifted)


def _padding_left(call: Call) -> None:
    """Rows of padding are not written."""
    found = Verify().outputs(call)
    live = call.inputs["state_indices"] >= 0
    for name, tensor in call.outputs.items():
        tensor[live] = found[name][live].to(tensor.dtype)


def _writes_state(call: Call) -> None:
    """The state after the last token goes back into the pool."""
    found = Verify().outputs(call)
    for b, slot in enumerate(call.inputs["state_indices"].tolist()):
        if slot >= 0:
            call.inputs["state"][slot] = found["snapshots"][b, -1]
    for name, tensor in call.outputs.items():
        tensor.copy_(found[name])


def _windows_before(found: Tensors, call: Call) -> Tensors:
    past = states_of(call.inputs["conv_state"], call.inputs["state_indices"])
    return {**found, "windows": torch.cat([past[:, None], found["windows"][:, :-1]], 1)}


def many_tokens(call: Call) -> bool:
    """More than one token a request."""
    return call.inputs["mixed_qkv"].shape[1] > 1


def _is_grouped(call: Call) -> bool:
    heads = heads_of(call.inputs["mixed_qkv"].shape[-1], call.inputs["state"])
    return 1 < heads.H < heads.HV


def _is_spaced(call: Call) -> bool:
    pool = call.inputs["state"]
    return pool.stride(0) != pool[0].numel()


def _modulo(x: torch.Tensor, heads: Heads) -> torch.Tensor:
    return x[..., torch.arange(heads.HV, device=x.device) % heads.H, :]


def _baked(name: str, tensor: str) -> Mutant:
    return Mutant(name, f"`{tensor}` is read when the call is bound.", lambda: baked(name, (tensor,), Verify()))


def after(name: str, what: str, change: Callable[[Tensors], Tensors]) -> Mutant:
    """A mutant that is right but for what it writes."""
    return plain(name, what, Verify(after=lambda found, call: change(found)))


_PADDING = "no request is padding"
MUTANTS: tuple[Mutant, ...] = (
    plain("all_zero", "Writes zeros.", all_zero),
    plain("untouched", "Writes nothing.", untouched),
    plain("other_gate", "The other of the two gates.", _with_draft(_other_gate)),
    plain(
        "no_decay",
        "The state does not decay.",
        Verify(step=lambda s, q, k, v, g, b: _right_step(s, q, k, v, torch.zeros_like(g), b)),
    ),
    plain("decay_late", "The delta is taken from the state before its decay.", Verify(step=_decay_late)),
    plain("read_before", "The output is read before the update.", Verify(step=_read_before)),
    plain("scale_missing", "Queries are not scaled.", Verify(query=normalise_k)),
    plain("epsilon_outside", "Epsilon is added outside of the root.", Verify(key=_outside_root)),
    plain("keys_plain", "Keys are not normalised.", Verify(key=lambda k: k)),
    plain(
        "beta_rounded",
        "The write strength is rounded to BF16.",
        _with_draft(lambda draft, call: replace(draft, beta=draft.beta.bfloat16().float())),
    ),
    plain(
        "q_and_k_swapped",
        "q and k are exchanged.",
        _with_draft(lambda draft, call: replace(draft, q=draft.k, k=draft.q)),
    ),
    plain("convolution_unrounded", "The convolution is not rounded to BF16.", _with_draft(_unrounded)),
    plain("silu_missing", "The convolution has no SiLU.", _with_draft(_no_silu)),
    plain(
        "taps_reversed",
        "The convolution's weights are taken from the newest token on.",
        _with_inputs(lambda call: {"conv_weight": call.inputs["conv_weight"].flip(0)}),
    ),
    plain(
        "window_empty",
        "The tokens before the first are taken for zero.",
        _with_inputs(lambda call: {"conv_state": torch.zeros_like(call.inputs["conv_state"])}),
    ),
    plain("windows_before", "Windows are those before each token.", Verify(after=_windows_before)),
    plain("state_transposed", "The state is read as [K, V].", Verify(states=_transposed)),
    plain("slots_ignored", "Request b reads slot b.", Verify(states=_by_row)),
    plain(
        "stride_ignored",
        "Slots are taken to lie behind each other.",
        Verify(states=_without_stride),
        _is_spaced,
        "the slots do lie behind each other",
    ),
    plain(
        "head_map",
        "Value head h reads query head h % H.",
        Verify(heads=_modulo),
        _is_grouped,
        "there is one query head, or as many as value heads",
    ),
    plain("padding_wraps", "Index -1 is the last slot.", _last_slot, has_padding, _PADDING),
    plain("padding_left", "Rows of padding are not written.", _padding_left, has_padding, _PADDING),
    plain("state_written", "The pool gets the state after the last token.", _writes_state),
    _baked("slots_baked", "state_indices"),
    _baked("state_baked", "state"),
    _baked("weight_baked", "conv_weight"),
)
