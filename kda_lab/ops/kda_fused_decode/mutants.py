"""Deliberately wrong fused decodes, one mistake each: what the gates must reject before they count.

Every mutant works on the memory of the call in FP32, on any device, and would be right without its mistake. Mistakes of
the step itself are those of `kda.packed_decode`, made here again where the fused form can make them on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import silu

from kda_lab.ops.kda.convolution import convolve
from kda_lab.ops.kda.gate import beta, log_decay
from kda_lab.ops.kda.recurrence import step
from kda_lab.ops.kda.wrong_requests import baked_part, has_padding, is_live, part
from kda_lab.ops.kda_fused_decode.oracle import epsilon_of, packed_call, windows_of
from kda_lab.ops.kda_packed_decode.oracle import Operands, live_rows, operands
from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.wrong import all_zero, plain, untouched

Step = Callable[[Operands], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class _Tokens:
    """What the convolution reads, of the live requests."""

    x: torch.Tensor
    """[L, 1, 3P] fp32."""
    window: torch.Tensor
    """[L, 3, 3P] fp32, oldest first."""
    weight: torch.Tensor
    """[4, 3P]."""


def _right_rows(t: _Tokens) -> torch.Tensor:
    return convolve(t.x, t.weight, t.window)[0][:, 0].bfloat16()


def _right_step(x: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    return step(x.state, x.q, x.k, x.v, x.g, x.beta)


def _right_norm(o: torch.Tensor, call: Call) -> torch.Tensor:
    return o * torch.rsqrt(o.square().mean(-1, keepdim=True) + epsilon_of(call)) * call.inputs["norm_weight"]


def _right_gate(gate: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(gate)


@dataclass(frozen=True)
class _Fused:
    """The op with replaceable parts; the defaults are right."""

    rows: Callable[[_Tokens], torch.Tensor] = _right_rows
    """[L, 3P] what the recurrence gets."""
    prepare: Callable[[Operands, Call], Operands] = lambda x, call: x
    advance: Step = _right_step
    norm: Callable[[torch.Tensor, Call], torch.Tensor] = _right_norm
    """[L, HV, V] normalised and weighted."""
    gate: Callable[[torch.Tensor], torch.Tensor] = _right_gate
    shift: Callable[[Call], torch.Tensor] = windows_of
    """[L, 3, 3P] the windows after the token."""
    keeps: bool = True
    """Whether states are written back."""
    zeroes: bool = True
    """Whether rows of padding are written."""

    def __call__(self, call: Call) -> None:
        out, pool, windows = (call.outputs[n] for n in ("out", "state", "conv_state"))
        given = call.with_inputs(state=pool, conv_state=windows)
        indices = call.inputs["state_indices"]
        rows, slots = live_rows(indices), indices[indices >= 0].long()
        tokens = _Tokens(
            call.inputs["mixed_qkv"][rows, None].float(), windows[slots].float(), call.inputs["conv_weight"]
        )
        x = self.prepare(operands(packed_call(given, self.rows(tokens)), torch.float32), given)
        found, state = self.advance(x)
        gate = call.inputs["gate"][rows].float().unflatten(1, found.shape[1:])
        shifted = self.shift(given)
        if self.zeroes:
            out.zero_()
        out[rows] = (self.norm(found, call) * self.gate(gate)).flatten(1).to(out.dtype)
        if self.keeps:
            pool[slots] = state.to(pool.dtype)
        windows[slots] = shifted


def _newest_first(t: _Tokens) -> torch.Tensor:
    return _right_rows(replace(t, window=t.window.flip(1)))


def _weights_turned(t: _Tokens) -> torch.Tensor:
    return _right_rows(replace(t, weight=t.weight.flip(0)))


def _without_silu(t: _Tokens) -> torch.Tensor:
    taps = torch.cat([t.window, t.x], 1)
    return (taps * t.weight).sum(1).bfloat16()


def _unrounded(t: _Tokens) -> torch.Tensor:
    return convolve(t.x, t.weight, t.window)[0][:, 0]


def _silu_of_each(t: _Tokens) -> torch.Tensor:
    taps = torch.cat([t.window, t.x], 1)
    return silu(taps * t.weight).sum(1).bfloat16()


def _kept(call: Call) -> torch.Tensor:
    return call.inputs["conv_state"][_slots(call)]


def _convolved_kept(call: Call) -> torch.Tensor:
    """The window gets the convolved token instead of the raw one."""
    windows = windows_of(call)
    x = call.inputs["mixed_qkv"][live_rows(call.inputs["state_indices"]), None].float()
    window = call.inputs["conv_state"][_slots(call)].float()
    windows[:, 2] = convolve(x, call.inputs["conv_weight"], window)[0][:, 0].to(windows.dtype)
    return windows


def _places_only(call: Call) -> torch.Tensor:
    """The token replaces the oldest, and nothing moves: a ring without a position."""
    windows = call.inputs["conv_state"][_slots(call)].clone()
    windows[:, 0] = call.inputs["mixed_qkv"][live_rows(call.inputs["state_indices"])]
    return windows


def _slots(call: Call) -> torch.Tensor:
    indices = call.inputs["state_indices"]
    return indices[indices >= 0].long()


def _norm_over_all(o: torch.Tensor, call: Call) -> torch.Tensor:
    size = o.square().mean((-1, -2), keepdim=True)
    return o * torch.rsqrt(size + epsilon_of(call)) * call.inputs["norm_weight"]


def _norm_without_epsilon(o: torch.Tensor, call: Call) -> torch.Tensor:
    return o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-30) * call.inputs["norm_weight"]


def _norm_by_sum(o: torch.Tensor, call: Call) -> torch.Tensor:
    return o * torch.rsqrt(o.square().sum(-1, keepdim=True) + epsilon_of(call)) * call.inputs["norm_weight"]


def _norm_weight_offset(o: torch.Tensor, call: Call) -> torch.Tensor:
    return _right_norm(o, call) + _right_norm(o, call) / call.inputs["norm_weight"]


def _norm_missing(o: torch.Tensor, call: Call) -> torch.Tensor:
    return o * call.inputs["norm_weight"]


def _read_before(x: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    return (x.state * x.g.exp()[..., None, :] * x.q[..., None, :]).sum(-1), _right_step(x)[1]


def _transposed(x: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    out, state = _right_step(replace(x, state=x.state.transpose(-1, -2)))
    return out, state.transpose(-1, -2)


def _other_gate(x: Operands, call: Call) -> Operands:
    i = call.inputs
    other = -5.0 if call.scalars.get("lower_bound") is None else None
    return replace(x, g=log_decay(i["a"][x.rows].float(), i["a_log"], i["dt_bias"], other))


def _half_normed(call: Call) -> None:
    """The norm sees the first half of V only, as where two programs share a head."""

    def norm(o: torch.Tensor, call: Call) -> torch.Tensor:
        size = o[..., : o.shape[-1] // 2].square().mean(-1, keepdim=True)
        return o * torch.rsqrt(size + epsilon_of(call)) * call.inputs["norm_weight"]

    _Fused(norm=norm)(call)


def _dense(pool: str) -> Callable[[Call], None]:
    """Slots of a pool follow each other without a gap, whatever the stride says."""

    def mistake(call: Call) -> None:
        given = call.outputs[pool]
        packed = given.as_strided(given.shape, (given[0].numel(), *given.stride()[1:]), given.storage_offset())
        _Fused()(call.with_outputs(**{pool: packed}))

    return mistake


def _padding_works(call: Call) -> None:
    """Index -1 is taken for the pool's last free slot."""
    indices = call.inputs["state_indices"].clone()
    free = max(set(range(call.outputs["state"].shape[0])) - set(indices.tolist()))
    indices[(indices < 0).nonzero()[0, 0]] = free
    _Fused()(call.with_inputs(state_indices=indices))


def _spare_shifted(call: Call) -> None:
    """The window of a slot that nobody names moves on too."""
    _Fused()(call)
    windows = call.outputs["conv_state"]
    free = max(set(range(windows.shape[0])) - set(call.inputs["state_indices"].tolist()))
    windows[free] = windows[free].roll(-1, 0)


def _rounded_state(call: Call) -> None:
    _Fused()(call)
    pool, slots = call.outputs["state"], _slots(call)
    pool[slots] = pool[slots].bfloat16().to(pool.dtype)


def _several_heads(call: Call) -> bool:
    return call.inputs["state"].shape[1] > 1 and is_live(call)


def _is_fp32(call: Call) -> bool:
    return call.inputs["state"].dtype == torch.float32 and is_live(call)


def _has_gap(pool: str) -> Callable[[Call], bool]:
    def applies(call: Call) -> bool:
        given = call.outputs[pool]
        return given.shape[0] > 1 and given.stride(0) != given[0].numel() and is_live(call)

    return applies


def _epsilon_counts(call: Call) -> bool:
    """Whether the norm of some head is a hundredth off without its epsilon."""
    if not is_live(call):
        return False
    found: list[torch.Tensor] = []
    copies = {name: tensor.clone() for name, tensor in call.outputs.items()}
    probe = call.with_outputs(**copies | {n: call.inputs[n].clone() for n in ("conv_state", "state")})

    def norm(o: torch.Tensor, call: Call) -> torch.Tensor:
        found.append(o.square().mean(-1))
        return o

    _Fused(norm=norm)(probe)
    sizes = found[0]
    return bool(((sizes < 50 * epsilon_of(call)) & (sizes > 0)).any())


def _beta_rounded(x: Operands, call: Call) -> Operands:
    return replace(x, beta=beta(call.inputs["b"][x.rows].float(), torch.bfloat16))


MUTANTS: tuple[Mutant, ...] = (
    plain("untouched", "Writes nothing.", untouched),
    part("all_zero", "Writes zeros.", all_zero),
    part("newest_first", "The window is read newest first.", _Fused(rows=_newest_first)),
    part("weights_turned", "Row 0 of the weight is the present token's.", _Fused(rows=_weights_turned)),
    part("silu_missing", "The convolution is used without SiLU.", _Fused(rows=_without_silu)),
    part("silu_of_each", "SiLU is taken of every product instead of their sum.", _Fused(rows=_silu_of_each)),
    part("conv_not_rounded", "The convolution is not rounded to BF16.", _Fused(rows=_unrounded)),
    part("window_kept", "The window stays as it was.", _Fused(shift=_kept)),
    part("window_of_outputs", "The window gets the convolved token.", _Fused(shift=_convolved_kept)),
    part("window_as_ring", "The token replaces the oldest one in its place.", _Fused(shift=_places_only)),
    part(
        "other_gate",
        "The softplus gate in the place of the safe one, or the other way round.",
        _Fused(prepare=_other_gate),
    ),
    part("no_decay", "The state does not decay.", _Fused(prepare=lambda x, call: replace(x, g=torch.zeros_like(x.g)))),
    part("beta_rounded", "The write strength is rounded to BF16.", _Fused(prepare=_beta_rounded)),
    part("read_before_update", "The output is read before the update.", _Fused(advance=_read_before)),
    part("state_transposed", "The state is taken for [K, V].", _Fused(advance=_transposed)),
    part("state_not_kept", "States are not written back.", _Fused(keeps=False)),
    plain(
        "state_rounded",
        "FP32 states are rounded to BF16.",
        _rounded_state,
        _is_fp32,
        "the pool is BF16, or every request is padding",
    ),
    part("norm_missing", "The output is weighted and gated but not normalised.", _Fused(norm=_norm_missing)),
    part("norm_by_sum", "The norm divides by the root of the sum.", _Fused(norm=_norm_by_sum)),
    part("norm_weight_offset", "The norm's weight is taken for one less than it is.", _Fused(norm=_norm_weight_offset)),
    part("norm_of_half", "The norm sees half of V.", _half_normed),
    plain(
        "norm_over_heads",
        "One norm over all heads.",
        _Fused(norm=_norm_over_all),
        _several_heads,
        "there is one head, or every request is padding",
    ),
    plain(
        "norm_without_epsilon",
        "The output norm has no epsilon.",
        _Fused(norm=_norm_without_epsilon),
        _epsilon_counts,
        "no output is so small that epsilon counts",
    ),
    part("gate_missing", "The output is not gated.", _Fused(gate=torch.ones_like)),
    part("gate_silu", "The output is gated by SiLU instead of the sigmoid.", _Fused(gate=silu)),
    plain("slot_stride_ignored", "States lie one behind the other.", _dense("state"), _has_gap("state"), "no gap"),
    plain(
        "window_stride_ignored",
        "Windows lie one behind the other.",
        _dense("conv_state"),
        _has_gap("conv_state"),
        "no gap",
    ),
    plain("padding_not_written", "Rows of padding are not zeroed.", _Fused(zeroes=False), has_padding, "no padding"),
    plain("padding_works", "Padding works on the pool's last free slot.", _padding_works, has_padding, "no padding"),
    part("spare_shifted", "The window of a slot that nobody names moves on.", _spare_shifted),
    baked_part("slots_baked", "Indices are read when the call is bound.", _Fused(), "state_indices"),
    baked_part("gate_baked", "The output gate is read when the call is bound.", _Fused(), "gate"),
    baked_part("weights_baked", "The weights are read when the call is bound.", _Fused(), "conv_weight", "norm_weight"),
)
