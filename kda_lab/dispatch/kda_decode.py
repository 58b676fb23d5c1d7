"""One decode step of Kimi Delta Attention in torch: from convolved rows, or from raw ones with output norm and gate.

They run where no exported kernel may: on any device, without reading device memory on the host. Several launches each,
with copies of the state slots that the requests name.
"""

from __future__ import annotations

import torch

from kda_lab.dispatch.kda_recurrence import (
    BOUND,
    STEP,
    convolved,
    log_decay,
    masked,
    read_slots,
    split_heads,
    step,
    write_slots,
)
from kda_lab.dispatch.torch_fallback import torch_fallback


@torch.no_grad()
def packed_decode(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    *,
    lower_bound: float | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token a request: decay, delta update and read-out of its state slot, which is updated in place.

    Args:
        mixed_qkv: [B, 2·H·K + HV·V] bf16, convolved: q heads, k heads, v heads.
        a: [B, HV·K] bf16, raw gate. b: [B, HV] bf16, raw.
        a_log: [HV] fp32. dt_bias: [HV·K] fp32.
        state: [slots, HV, V, K] fp32 or bf16, updated.
        state_indices: [B] int32; negative is padding.
        lower_bound: of the log-decay; None for the softplus gate.
        out: [B, 1, HV, V] bf16, written; allocated when None.

    Returns:
        out; a row of padding is exactly zero.
    """
    _, HV, V, K = state.shape
    if out is None:
        out = mixed_qkv.new_empty(mixed_qkv.shape[0], 1, HV, V)
    q, k, v = split_heads(mixed_qkv, HV, V, K)
    g = log_decay(a, a_log, dt_bias, lower_bound)
    live = state_indices >= 0
    after, done = step(read_slots(state, state_indices), q, k, v, g, torch.sigmoid(b.float()))
    # What is updated in place comes last: a call that fails before may be made again.
    out.copy_(masked(done, live)[:, None])
    write_slots(state, state_indices, after, live)
    return out


@torch.no_grad()
def fused_decode(
    mixed_qkv: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    gate: torch.Tensor,
    norm_weight: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    *,
    lower_bound: float | None,
    epsilon: float = 1e-5,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `packed_decode` from raw rows: convolution before it, RMS norm over V and sigmoid gate behind it.

    Args:
        mixed_qkv: [B, 3·P] bf16, raw, P = HV·V, K = V and as many key as value heads.
        conv_state: [slots, 3, 3·P] bf16, oldest first, updated. conv_weight: [4, 3·P] fp32.
        a, b, a_log, dt_bias, state, state_indices, lower_bound: as `packed_decode`.
        gate: [B, P] bf16. norm_weight: [V] fp32.
        epsilon: of the norm.
        out: [B, P] bf16, written; allocated when None.

    Returns:
        out; a row of padding is exactly zero.
    """
    _, HV, V, K = state.shape
    if out is None:
        out = mixed_qkv.new_empty(mixed_qkv.shape[0], HV * V)
    live = state_indices >= 0
    window = conv_state[state_indices.clamp(min=0).long()]
    mixed, window = convolved(mixed_qkv, window, conv_weight)
    q, k, v = split_heads(mixed, HV, V, K)
    g = log_decay(a, a_log, dt_bias, lower_bound)
    after, done = step(read_slots(state, state_indices), q, k, v, g, torch.sigmoid(b.float()))
    root = torch.rsqrt(done.square().mean(-1, keepdim=True) + epsilon)
    shown = done * root * norm_weight * torch.sigmoid(gate.float().unflatten(-1, (HV, V)))
    out.copy_(masked(shown.flatten(1), live))
    write_slots(conv_state, state_indices, window, live)
    write_slots(state, state_indices, after, live)
    return out


_STATE = {
    "state": {"dtypes": ["float32", "bfloat16"], "shape": ["S", "HV", "V", "K"]},
    "state_indices": {"dtypes": ["int32"], "shape": ["B"]},
}
_ROWS = {"dtypes": ["bfloat16"], "shape": ["B", "P"]}

PACKED_DECODE = torch_fallback(
    "kda.packed_decode",
    packed_decode,
    {
        "mixed_qkv": {"dtypes": ["bfloat16"], "shape": ["B", "C"]},
        **STEP,
        **_STATE,
        "out": {"dtypes": ["bfloat16"], "shape": ["B", 1, "HV", "V"], "optional": True},
    },
    BOUND,
)
FUSED_DECODE = torch_fallback(
    "kda.fused_decode",
    fused_decode,
    {
        "mixed_qkv": {"dtypes": ["bfloat16"], "shape": ["B", "C"]},
        "conv_state": {"dtypes": ["bfloat16"], "shape": ["S", 3, "C"]},
        "conv_weight": {"dtypes": ["float32"], "shape": [4, "C"]},
        **STEP,
        "gate": _ROWS,
        "norm_weight": {"dtypes": ["float32"], "shape": ["V"]},
        **_STATE,
        "out": {**_ROWS, "optional": True},
    },
    {**BOUND, "epsilon": {"kind": "float", "minimum": 0.0}},
)
