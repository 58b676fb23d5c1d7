"""What `kda.fused_decode` must compute: the short convolution, one step of the recurrence, the gated norm of its output.

The convolution is rounded to BF16 before the recurrence: that is part of the definition, since every form of the op
rounds there. The output of the recurrence is not rounded before the norm. Windows hold raw tokens, so their bits count.
Padding (index -1) gives a zero row and touches no pool.

Oracles read `call.inputs` only. They look at the indices on the host, so none may run inside graph capture.
"""

from __future__ import annotations

import torch

from kda_lab.ops.kda.convolution import convolve
from kda_lab.ops.kda.output import gated_norm
from kda_lab.ops.kda.recurrence import step
from kda_lab.ops.kda_packed_decode import oracle as packed
from kda_lab.ops.kda_packed_decode.oracle import Operands, live_rows, operands
from kda_lab.ops.protocol import Call

Tensors = dict[str, torch.Tensor]

NEAR_TIE = 2e-6
"""Relative error of FP32's SiLU: so near to a value halfway between two BF16 numbers it may round either way."""
SUM_ERROR = 2.0**-22
"""Of a convolution's terms without signs: what FP32 may lose in four products and three sums."""
OUT_ULP = 2.0**-6
"""Two units in the last place of a BF16 number, relative: forms that round before the norm too stay within."""
FLIPPED = 2.0**-3
"""Of a row's size: what one element of q, k or v that rounds the other way may move in an output or a state."""


def windows_of(call: Call) -> torch.Tensor:
    """[L, 3, 3P] bf16: the windows of the live requests after the token."""
    rows = live_rows(call.inputs["state_indices"])
    slots = call.inputs["state_indices"][rows].long()
    return torch.cat([call.inputs["conv_state"][slots, 1:], call.inputs["mixed_qkv"][rows, None]], 1)


def convolved(call: Call, dtype: torch.dtype) -> torch.Tensor:
    """[L, 3P] in `dtype`: the convolution of the live requests, not rounded."""
    i = call.inputs
    rows = live_rows(i["state_indices"])
    window = i["conv_state"][i["state_indices"][rows].long()].to(dtype)
    y, _ = convolve(i["mixed_qkv"][rows, None].to(dtype), i["conv_weight"].to(dtype), window)
    return y[:, 0]


def packed_call(call: Call, live: torch.Tensor) -> Call:
    """The call of `kda.packed_decode` within this one.

    Args:
        live: [L, 3P] what the live requests bring to the recurrence; rows of padding are zero.
    """
    i = call.inputs
    rows = live_rows(i["state_indices"])
    mixed = torch.zeros(i["mixed_qkv"].shape, dtype=live.dtype, device=call.device)
    mixed[rows] = live
    names = ("a", "b", "a_log", "dt_bias", "state", "state_indices")
    tensors = {"mixed_qkv": mixed, **{name: i[name] for name in names}}
    return Call(packed.ROOM, tensors, {"lower_bound": call.scalars.get("lower_bound")}, {}, call.label, call.facts)


def step_operands(call: Call, dtype: torch.dtype) -> Operands:
    """The live requests as the recurrence gets them: convolved, rounded to BF16, normalised, in `dtype`."""
    return operands(packed_call(call, convolved(call, dtype).to(torch.bfloat16)), dtype)


def epsilon_of(call: Call) -> float:
    """Epsilon of the output norm: the one given, else 1e-5."""
    given = call.scalars.get("epsilon")
    return float(given) if isinstance(given, (int, float)) else 1e-5


def shown(call: Call, x: Operands, out: torch.Tensor) -> torch.Tensor:
    """[L, HV, V]: the gated norm of the recurrence's output, in its dtype."""
    gate = call.inputs["gate"][x.rows].to(out.dtype).unflatten(1, out.shape[1:])
    return gated_norm(out, gate, call.inputs["norm_weight"].to(out.dtype), epsilon_of(call))


def oracle_fp32(call: Call) -> Tensors:
    """The op in FP32, only the convolution rounded: out [B, P], windows [slots, 3, 3P] and states [slots, HV, V, V]."""
    return _apply(call, torch.float32)


def oracle_fp64(call: Call) -> Tensors:
    """The op in FP64, only the convolution rounded: the arbiter."""
    return _apply(call, torch.float64)


def emulate(call: Call) -> Tensors:
    """What a correct kernel returns: FP32 with both reads on the decayed state, each result rounded once to its dtype."""
    x = step_operands(call, torch.float32)
    decayed = x.state * x.g.exp()[..., None, :]
    delta = x.beta[..., None] * (x.v - (decayed * x.k[..., None, :]).sum(-1))
    out = (decayed * x.q[..., None, :]).sum(-1) + delta * (x.k * x.q).sum(-1)[..., None]
    state = decayed + delta[..., None] * x.k[..., None, :]
    return placed(call, x, shown(call, x, out).to(torch.bfloat16), state.to(call.inputs["state"].dtype))


def placed(call: Call, x: Operands, out: torch.Tensor, state: torch.Tensor) -> Tensors:
    """All outputs of a call from those of its live requests: zero rows for padding, other slots as they were."""
    i = call.inputs
    rows = torch.zeros(i["gate"].shape, dtype=out.dtype, device=call.device)
    rows[x.rows] = out.flatten(1)
    pool, windows = i["state"].to(state.dtype, copy=True), i["conv_state"].clone()
    pool[x.slots] = state
    windows[x.slots] = windows_of(call)
    return {"out": rows, "conv_state": windows, "state": pool}


def allowance(call: Call, exact: Tensors) -> Tensors:
    """Allowed absolute error of each element against FP64.

    0 for windows, rows of padding and slots that no request names: there bits count. Elsewhere units in the last place
    of the stored dtype and the FP32 noise of a row's size; where an element of a head's q, k or v lies so near a tie
    that FP32 may round it the other way, also what that may move.
    """
    i = call.inputs
    live = i["state_indices"] >= 0
    slots, HV, V, _ = i["state"].shape
    doubtful = _doubtful(call, HV)
    rows = exact["out"].unflatten(1, (HV, V))
    noise = packed.OUT_NOISE + FLIPPED * doubtful[..., None]
    out = (OUT_ULP * rows.abs() + noise * packed.row_size(rows)) * live[:, None, None]
    named = i["state_indices"][live].long()
    heads = torch.zeros(slots, HV, 1, 1, dtype=torch.float64, device=call.device)
    touched = torch.zeros_like(heads)
    heads[named], touched[named] = doubtful[live][..., None, None], 1.0
    ulp = packed.OUT_ULP if i["state"].dtype == torch.bfloat16 else packed.STATE_NOISE
    size = packed.row_size(exact["state"])
    state = (ulp * exact["state"].abs() + (packed.STATE_NOISE + FLIPPED * heads) * size) * touched
    windows = torch.zeros(i["conv_state"].shape, dtype=torch.float64, device=call.device)
    return {"out": out.flatten(1), "conv_state": windows, "state": state}


def _doubtful(call: Call, heads: int) -> torch.Tensor:
    """[B, HV] fp64: 1 where a head has an element of q, k or v that FP32 may round either way."""
    y = convolved(call, torch.float64)
    # SiLU's slope is at most 1.1; what a sum loses belongs to its terms, which may be far larger than the sum.
    room = NEAR_TIE * y.abs() + 1.1 * SUM_ERROR * _terms(call)
    found = (y + room).to(torch.bfloat16) != (y - room).to(torch.bfloat16)
    doubtful = torch.zeros(call.inputs["gate"].shape[0], heads, dtype=torch.float64, device=call.device)
    doubtful[live_rows(call.inputs["state_indices"])] = found.unflatten(1, (3, heads, -1)).any(-1).any(1).double()
    return doubtful


def _terms(call: Call) -> torch.Tensor:
    """[L, 3P] fp64: the convolution's four terms without their signs, added up."""
    i = call.inputs
    rows = live_rows(i["state_indices"])
    window = i["conv_state"][i["state_indices"][rows].long()]
    return torch.einsum(
        "jc,ljc->lc", i["conv_weight"].double().abs(), torch.cat([window, i["mixed_qkv"][rows, None]], 1).double().abs()
    )


def _apply(call: Call, dtype: torch.dtype) -> Tensors:
    x = step_operands(call, dtype)
    out, state = step(x.state, x.q, x.k, x.v, x.g, x.beta)
    return placed(call, x, shown(call, x, out), state)
