"""Deliberately wrong packed decodes, one mistake each: what the gates must reject before they count.

Every mutant works on the memory of the call in FP32, on any device, and would be right without its mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kda_lab.ops.kda.gate import beta, bound_of, log_decay
from kda_lab.ops.kda.geometry import L2_EPSILON
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, step
from kda_lab.ops.kda.wrong_requests import baked_part, has_padding, is_live, part
from kda_lab.ops.kda_packed_decode.oracle import Operands, live_rows, operands, split_heads
from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.wrong import all_zero, plain, untouched

Advance = Callable[[Operands], tuple[torch.Tensor, torch.Tensor]]


def _right(x: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    return step(x.state, x.q, x.k, x.v, x.g, x.beta)


def _same(x: Operands, call: Call) -> Operands:
    return x


@dataclass(frozen=True)
class _Decode:
    """The op with replaceable parts; the defaults are right."""

    prepare: Callable[[Operands, Call], Operands] = _same
    """From the right operands to those that are used."""
    advance: Advance = _right
    """From the operands to outputs [L, HV, V] and states [L, HV, V, K]."""
    keeps: bool = True
    """Whether states are written back."""
    zeroes: bool = True
    """Whether rows of padding are written."""

    def __call__(self, call: Call) -> None:
        pool, out = call.outputs["state"], call.outputs["out"]
        x = self.prepare(operands(call.with_inputs(state=pool), torch.float32), call)
        found, state = self.advance(x)
        if self.zeroes:
            out.zero_()
        out[x.rows, 0] = found.to(out.dtype)
        if self.keeps:
            pool[x.slots] = state.to(pool.dtype)


def _with(**changes: Callable[[Operands, Call], torch.Tensor]) -> _Decode:
    """The op with some operands computed otherwise."""

    def prepare(x: Operands, call: Call) -> Operands:
        return replace(x, **{name: change(x, call) for name, change in changes.items()})

    return _Decode(prepare=prepare)


def _raw_gate(x: Operands, call: Call) -> torch.Tensor:
    return call.inputs["a"][x.rows].float()


def _other_gate(x: Operands, call: Call) -> torch.Tensor:
    other = -5.0 if bound_of(call) is None else None
    return log_decay(_raw_gate(x, call), call.inputs["a_log"], call.inputs["dt_bias"], other)


def _without_bias(x: Operands, call: Call) -> torch.Tensor:
    bias = torch.zeros_like(call.inputs["dt_bias"])
    return log_decay(_raw_gate(x, call), call.inputs["a_log"], bias, bound_of(call))


def _rate_as_logarithm(x: Operands, call: Call) -> torch.Tensor:
    # exp(log1p(x)) is the rate 1 + x: what an expansion of the exponential to its first term gives.
    rate = call.inputs["a_log"].log1p().nan_to_num(-10.0)
    return log_decay(_raw_gate(x, call), rate, call.inputs["dt_bias"], bound_of(call))


def _heads(call: Call, name: str, x: Operands) -> torch.Tensor:
    """Raw q or k of the live requests [L, HV, K] in FP32, heads mapped."""
    raw = split_heads(call)[("q", "k").index(name)][x.rows].float()
    return raw.repeat_interleave(x.v.shape[1] // raw.shape[1], dim=1)


def _outside_root(x: Operands, call: Call) -> torch.Tensor:
    raw = _heads(call, "k", x)
    return raw / (raw.norm(dim=-1, keepdim=True) + L2_EPSILON)


def _by_mean(x: Operands, call: Call) -> torch.Tensor:
    raw = _heads(call, "k", x)
    return raw * torch.rsqrt(raw.square().mean(-1, keepdim=True) + L2_EPSILON)


def _modulo(name: str, normalise: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Operands, Call], torch.Tensor]:
    def change(x: Operands, call: Call) -> torch.Tensor:
        raw = split_heads(call)[("q", "k").index(name)][x.rows].float()
        heads = torch.arange(x.v.shape[1], device=call.device) % raw.shape[1]
        return normalise(raw)[:, heads]

    return change


def _read_before(x: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    _, state = _right(x)
    return (x.state * x.g.exp()[..., None, :] * x.q[..., None, :]).sum(-1), state


def _delta_of_old(x: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    delta = x.beta[..., None] * (x.v - (x.state * x.k[..., None, :]).sum(-1))
    state = x.state * x.g.exp()[..., None, :] + delta[..., None] * x.k[..., None, :]
    return (state * x.q[..., None, :]).sum(-1), state


def _decay_last(x: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    _, state = step(x.state, x.q, x.k, x.v, torch.zeros_like(x.g), x.beta)
    state = state * x.g.exp()[..., None, :]
    return (state * x.q[..., None, :]).sum(-1), state


def _sum_only(x: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Linear attention: what the state holds for the key is not taken away."""
    state = x.state * x.g.exp()[..., None, :] + (x.beta[..., None] * x.v)[..., None] * x.k[..., None, :]
    return (state * x.q[..., None, :]).sum(-1), state


def _transposed(x: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    out, state = _right(replace(x, state=x.state.transpose(-1, -2)))
    return out, state.transpose(-1, -2)


def _one_head_gate(x: Operands, call: Call) -> torch.Tensor:
    return x.g[..., :1].expand_as(x.g)


def _exchanged(x: Operands, call: Call) -> Operands:
    _, k, v = split_heads(call)
    return replace(x, k=normalise_k(v[x.rows].float()), v=k[x.rows].float())


def _rounded_state(call: Call) -> None:
    right = _Decode()
    right(call)
    pool = call.outputs["state"]
    slots = call.inputs["state_indices"][live_rows(call.inputs["state_indices"])].long()
    pool[slots] = pool[slots].bfloat16().to(pool.dtype)


def _dense_slots(call: Call) -> None:
    """Slots follow each other without a gap, whatever the stride says."""
    pool = call.outputs["state"]
    slot = pool[0].numel()
    packed = pool.as_strided(pool.shape, (slot, *pool.stride()[1:]), pool.storage_offset())
    _Decode()(call.with_outputs(state=packed))


def _dense_rows(call: Call) -> None:
    """Rows of `mixed_qkv` follow each other without a gap."""
    mixed = call.inputs["mixed_qkv"]
    packed = mixed.as_strided(mixed.shape, (mixed.shape[1], 1), mixed.storage_offset())
    _Decode()(call.with_inputs(mixed_qkv=packed.nan_to_num(0.0)))


def _padding_works(call: Call) -> None:
    """Index -1 is taken for the last slot of the pool, as Python has it."""
    indices, slots = call.inputs["state_indices"], call.outputs["state"].shape[0]
    live = set(indices.tolist())
    free = max(set(range(slots)) - live)
    first = (indices < 0).nonzero()[0, 0]
    changed = indices.clone()
    changed[first] = free
    right = _Decode()
    right(call.with_inputs(state_indices=changed))


def _spare_touched(call: Call) -> None:
    """A slot that nobody names is decayed a little, as by a sweep over the whole pool."""
    _Decode()(call)
    pool = call.outputs["state"]
    free = max(set(range(pool.shape[0])) - set(call.inputs["state_indices"].tolist()))
    pool[free] *= 1 - 2.0**-7


def _square(call: Call) -> bool:
    return call.inputs["state"].shape[2] == call.inputs["state"].shape[3] and is_live(call)


def _square_alone(call: Call) -> bool:
    return _square(call) and split_heads(call)[0].shape[1] == call.inputs["state"].shape[1]


def _grouped(call: Call) -> bool:
    """Whether modulo and division give different heads."""
    H, HV = split_heads(call)[0].shape[1], call.inputs["state"].shape[1]
    return 1 < H < HV and is_live(call)


def _has_tiny_rows(call: Call) -> bool:
    if not is_live(call):
        return False
    sums = split_heads(call)[1][live_rows(call.inputs["state_indices"])].float().square().sum(-1)
    return bool(((sums < 1e-4) & (sums > 0)).any())


def _in_order(call: Call) -> bool:
    indices = call.inputs["state_indices"]
    return torch.equal(indices, torch.arange(indices.numel(), dtype=indices.dtype, device=indices.device))


def _wide(call: Call) -> bool:
    state = call.outputs["state"]
    return state.stride(0) != state[0].numel() and is_live(call) and state.shape[0] > 1


def _wide_rows(call: Call) -> bool:
    mixed = call.inputs["mixed_qkv"]
    return mixed.stride(0) != mixed.shape[1] and mixed.shape[0] > 1 and is_live(call)


def _has_free(call: Call) -> bool:
    return len(set(call.inputs["state_indices"].tolist()) - {-1}) < call.inputs["state"].shape[0]


def _numbered(indices: torch.Tensor) -> torch.Tensor:
    places = torch.arange(indices.numel(), dtype=indices.dtype, device=indices.device)
    return torch.where(indices < 0, indices, places)


MUTANTS: tuple[Mutant, ...] = (
    plain("untouched", "Writes nothing.", untouched),
    part("all_zero", "Writes zeros.", all_zero),
    part("other_gate", "The softplus gate in the place of the safe one, or the other way round.", _with(g=_other_gate)),
    part("no_decay", "The state does not decay.", _with(g=lambda x, call: torch.zeros_like(x.g))),
    part("one_gate_a_head", "All channels of a head decay as its first one.", _with(g=_one_head_gate)),
    part("bias_missing", "dt_bias is left out.", _with(g=_without_bias)),
    part("rate_linear", "The rate is 1 + a_log, not its exponential.", _with(g=_rate_as_logarithm)),
    part("read_before_update", "The output is read before the update.", _Decode(advance=_read_before)),
    part("delta_of_old_state", "The delta looks at the state before its decay.", _Decode(advance=_delta_of_old)),
    part("decay_last", "The state decays after the update.", _Decode(advance=_decay_last)),
    part("linear_attention", "What the state holds for the key stays.", _Decode(advance=_sum_only)),
    part("state_not_kept", "States are not written back.", _Decode(keeps=False)),
    part("scale_missing", "q is not scaled.", _with(q=lambda x, call: x.q * x.q.shape[-1] ** 0.5)),
    part("scale_twice", "q is scaled twice.", _with(q=lambda x, call: x.q * x.q.shape[-1] ** -0.5)),
    part("key_not_normalised", "k is used as it comes.", _with(k=lambda x, call: _heads(call, "k", x))),
    part(
        "query_not_normalised",
        "q is scaled but not normalised.",
        _with(q=lambda x, call: _heads(call, "q", x) * x.q.shape[-1] ** -0.5),
    ),
    part("key_by_mean", "k is divided by its root mean square.", _with(k=_by_mean)),
    plain(
        "epsilon_outside",
        "Epsilon is added to the norm of k, outside of the root.",
        _with(k=_outside_root),
        _has_tiny_rows,
        "no key is so small that epsilon counts",
    ),
    part(
        "query_and_key_swapped",
        "q and k change places.",
        _Decode(lambda x, call: replace(x, q=normalise_q(_heads(call, "k", x)), k=normalise_k(_heads(call, "q", x)))),
    ),
    plain(
        "key_and_value_swapped",
        "k and v change places.",
        _Decode(_exchanged),
        _square_alone,
        "k and v differ in shape",
    ),
    plain("state_transposed", "The state is taken for [K, V].", _Decode(advance=_transposed), _square, "K is not V"),
    part(
        "beta_rounded",
        "The write strength is rounded to BF16.",
        _with(beta=lambda x, call: beta(call.inputs["b"][x.rows].float(), torch.bfloat16)),
    ),
    part("beta_one", "The write strength is 1.", _with(beta=lambda x, call: torch.ones_like(x.beta))),
    part(
        "beta_raw",
        "The write strength is used without its sigmoid.",
        _with(beta=lambda x, call: call.inputs["b"][x.rows].float()),
    ),
    plain(
        "heads_modulo",
        "Value head h reads query head h % H.",
        _with(q=_modulo("q", normalise_q), k=_modulo("k", normalise_k)),
        _grouped,
        "the value heads have one query head, or one each",
    ),
    plain(
        "state_rounded",
        "FP32 states are rounded to BF16.",
        _rounded_state,
        lambda call: call.inputs["state"].dtype == torch.float32 and is_live(call),
        "the pool is BF16, or every request is padding",
    ),
    plain(
        "slots_in_order",
        "Request b works on slot b.",
        lambda call: _Decode()(call.with_inputs(state_indices=_numbered(call.inputs["state_indices"]))),
        lambda call: is_live(call) and not _in_order(call),
        "slots are in order, or every request is padding",
    ),
    plain("slot_stride_ignored", "Slots lie one behind the other.", _dense_slots, _wide, "slots have no gap"),
    plain("row_stride_ignored", "Operand rows lie one behind the other.", _dense_rows, _wide_rows, "rows have no gap"),
    plain("padding_not_written", "Rows of padding are not zeroed.", _Decode(zeroes=False), has_padding, "no padding"),
    plain("padding_works", "Padding works on the pool's last free slot.", _padding_works, has_padding, "no padding"),
    plain("spare_touched", "A slot that nobody names changes.", _spare_touched, _has_free, "every slot is named"),
    baked_part("slots_baked", "Indices are read when the call is bound.", _Decode(), "state_indices"),
    baked_part("gate_baked", "The raw gate is read when the call is bound.", _Decode(), "a"),
    baked_part("weights_baked", "a_log and dt_bias are read when the call is bound.", _Decode(), "a_log", "dt_bias"),
)
