"""What `kda.packed_decode` must compute: the shared recurrence for one token of each request, and its emulation.

Request b works on slot s = state_indices[b] of the pool; -1 is padding: a zero row, and no state is touched. Slots that
no request names keep their bits. q and k are normalised with 1e-6 inside the root, q is scaled by 1/sqrt(K), the write
strength sigmoid(b) is not rounded, and the output is read after the update. Two requests of one slot are undefined.

Oracles read `call.inputs` only. They look at the indices on the host, so none may run inside graph capture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.gate import beta, bound_of, log_decay
from kda_lab.ops.kda.geometry import query_head
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, step
from kda_lab.ops.protocol import Call

ROOM = "kda.packed_decode"
Tensors = dict[str, torch.Tensor]

OUT_ULP = 2.0**-7
"""A unit in the last place of a BF16 number, relative: twice what rounding may cost."""
OUT_NOISE = 1e-4
"""FP32 sums of K products and an approximate exponential, relative to the row's root mean square."""
STATE_NOISE = 2e-5
"""The same for an element of the state and its row."""


@dataclass(frozen=True)
class Operands:
    """The live requests of a call in one dtype, heads already mapped: L live requests."""

    rows: torch.Tensor
    """[L] int64: their places in the batch."""
    slots: torch.Tensor
    """[L] int64: their places in the pool."""
    state: torch.Tensor
    """[L, HV, V, K], a copy."""
    q: torch.Tensor
    """[L, HV, K], normalised and scaled."""
    k: torch.Tensor
    v: torch.Tensor
    """[L, HV, V]."""
    g: torch.Tensor
    """[L, HV, K] log-decay."""
    beta: torch.Tensor
    """[L, HV]."""


def live_rows(indices: torch.Tensor) -> torch.Tensor:
    """[L] int64: the requests that are not padding."""
    return (indices >= 0).nonzero()[:, 0]


def query_heads(call: Call) -> int:
    """H of a call, from the width of `mixed_qkv`.

    Raises:
        ParameterError: the width is not 2·H·K + HV·V.
    """
    width, (_, HV, V, K) = call.inputs["mixed_qkv"].shape[1], call.inputs["state"].shape
    H, rest = divmod(width - HV * V, 2 * K)
    if rest or H < 1:
        allowed = f"2·H·{K} + {HV * V} for some H of at least 1"
        raise ParameterError(ROOM, [Reason("mixed_qkv.shape[1]", repr(width), allowed)])
    return H


def split_heads(call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q and k [B, H, K] and v [B, HV, V] of a call: views of `mixed_qkv`."""
    H, (_, HV, V, K) = query_heads(call), call.inputs["state"].shape
    q, k, v = call.inputs["mixed_qkv"].split((H * K, H * K, HV * V), dim=1)
    return q.unflatten(1, (H, K)), k.unflatten(1, (H, K)), v.unflatten(1, (HV, V))


def operands(call: Call, dtype: torch.dtype) -> Operands:
    """The live requests of a call in `dtype`; reads the indices on the host.

    Raises:
        ParameterError: an index leaves the pool or occurs twice, or the widths do not fit.
    """
    i = call.inputs
    rows = live_rows(i["state_indices"])
    slots = i["state_indices"][rows].long()
    _require_slots(slots, i["state"].shape[0])
    q, k, v = split_heads(call)
    heads = query_head(i["state"].shape[1], q.shape[1]).to(call.device)
    a_log, dt_bias = i["a_log"].to(dtype), i["dt_bias"].to(dtype)
    return Operands(
        rows=rows,
        slots=slots,
        state=i["state"][slots].to(dtype),
        q=normalise_q(q[rows].to(dtype))[:, heads],
        k=normalise_k(k[rows].to(dtype))[:, heads],
        v=v[rows].to(dtype),
        g=log_decay(i["a"][rows].to(dtype), a_log, dt_bias, bound_of(call)),
        beta=beta(i["b"][rows].to(dtype)),
    )


def oracle_fp32(call: Call) -> Tensors:
    """The op in FP32 throughout, unrounded: out [B, 1, HV, V] and the whole pool [slots, HV, V, K]."""
    return _apply(call, torch.float32)


def oracle_fp64(call: Call) -> Tensors:
    """The op in FP64 throughout, the arbiter."""
    return _apply(call, torch.float64)


def emulate(call: Call) -> Tensors:
    """What a correct kernel returns: FP32 with both reads on the decayed state, each result rounded once to its dtype.

    o = S' q̂ + d (k̂ · q̂) with S' the decayed state equals the read after the update, and needs no second pass.
    """
    x = operands(call, torch.float32)
    decayed = x.state * x.g.exp()[..., None, :]
    delta = x.beta[..., None] * (x.v - (decayed * x.k[..., None, :]).sum(-1))
    out = (decayed * x.q[..., None, :]).sum(-1) + delta * (x.k * x.q).sum(-1)[..., None]
    state = decayed + delta[..., None] * x.k[..., None, :]
    return placed(call, x, out.to(torch.bfloat16), state.to(call.inputs["state"].dtype))


def placed(call: Call, x: Operands, out: torch.Tensor, state: torch.Tensor) -> Tensors:
    """Both outputs of a call from those of its live requests: zero rows for padding, other slots as they were."""
    _, HV, V, _ = call.inputs["state"].shape
    rows = torch.zeros(call.inputs["a"].shape[0], 1, HV, V, dtype=out.dtype, device=call.device)
    rows[x.rows, 0] = out
    pool = call.inputs["state"].to(state.dtype, copy=True)
    pool[x.slots] = state
    return {"out": rows, "state": pool}


def allowance(call: Call, exact: Tensors) -> Tensors:
    """Allowed absolute error of each element against FP64.

    0 for rows of padding and for slots that no request names: there bits count. Elsewhere one unit in the last place of
    the stored dtype and the FP32 noise of a row's size; a row is V outputs, or K elements of the state.
    """
    live = call.inputs["state_indices"] >= 0
    out = OUT_ULP * exact["out"].abs() + OUT_NOISE * row_size(exact["out"])
    touched = torch.zeros(exact["state"].shape[0], dtype=torch.bool, device=call.device)
    touched[call.inputs["state_indices"][live].long()] = True
    ulp = OUT_ULP if call.inputs["state"].dtype == torch.bfloat16 else STATE_NOISE
    state = ulp * exact["state"].abs() + STATE_NOISE * row_size(exact["state"])
    return {
        "out": torch.where(live[:, None, None, None], out, 0.0),
        "state": torch.where(touched[:, None, None, None], state, 0.0),
    }


def _apply(call: Call, dtype: torch.dtype) -> Tensors:
    x = operands(call, dtype)
    return placed(call, x, *step(x.state, x.q, x.k, x.v, x.g, x.beta))


def row_size(values: torch.Tensor) -> torch.Tensor:
    """Root mean square along the last axis, which stays with extent 1."""
    return values.square().mean(-1, keepdim=True).sqrt()


def _require_slots(slots: torch.Tensor, pool: int) -> None:
    given = slots.tolist()
    if len(set(given)) < len(given) or max(given, default=0) >= pool:
        allowed = f"-1, or distinct slots from 0 to {pool - 1}"
        raise ParameterError(ROOM, [Reason("state_indices", repr(given), allowed)])
