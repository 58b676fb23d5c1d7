"""Prefill of Kimi Delta Attention in torch: the recurrence itself, token after token of the packed sequences.

It runs where no exported kernel may: on any device, without reading device memory on the host. It needs a dozen launches
a token, so it is an answer and no fast one.
"""

from __future__ import annotations

import torch

from kda_lab.dispatch.kda_recurrence import (
    BOUND,
    DECAY,
    advance,
    for_value_heads,
    log_decay,
    masked,
    normalised,
    read_out,
    read_slots,
    write_slots,
)
from kda_lab.dispatch.torch_fallback import torch_fallback


@torch.no_grad()
def chunk_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    has_state: torch.Tensor,
    *,
    lower_bound: float | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run every sequence from its state slot, or from zero, and leave its last state in that slot.

    Args:
        q, k: [T, H, K] bf16, before normalisation. v: [T, HV, V] bf16.
        a: [T, HV·K] bf16, raw gate. beta: [T, HV] fp32, behind the sigmoid.
        a_log: [HV] fp32. dt_bias: [HV·K] fp32.
        cu_seqlens: [N+1] int32: sequence n is tokens cu_seqlens[n] to cu_seqlens[n + 1].
        state: [slots, HV, V, K] fp32, updated.
        state_indices: [N] int32; negative is padding.
        has_state: [N] bool or uint8; where it is 0 the sequence starts from zero.
        lower_bound: of the log-decay; None for the softplus gate.
        out: [T, HV, V] bf16, written; allocated when None.

    Returns:
        out, exactly zero for padding. A sequence without tokens leaves its slot as it is.
    """
    out = torch.empty_like(v) if out is None else out
    if state_indices.numel() == 0:
        return out
    HV, K = state.shape[1], state.shape[3]
    live = state_indices >= 0
    states = masked(read_slots(state, state_indices), live & (has_state != 0))
    keys = for_value_heads(normalised(k.float()), HV)
    queries = for_value_heads(normalised(q.float()), HV) * K**-0.5
    g = log_decay(a, a_log, dt_bias, lower_bound)
    # The sequence of a token: how many sequences end at or before it.
    owner = torch.searchsorted(cu_seqlens[1:].contiguous(), torch.arange(q.shape[0], device=q.device), right=True)
    for t in range(q.shape[0]):
        after = advance(states[owner[t : t + 1]], keys[t], v[t].float(), g[t], beta[t])
        out[t] = masked(read_out(after, queries[t]), live[owner[t : t + 1]])[0]
        states[owner[t : t + 1]] = after
    write_slots(state, state_indices, states, live & (cu_seqlens[1:] > cu_seqlens[:-1]))
    return out


_KEYS = {"dtypes": ["bfloat16"], "shape": ["T", "H", "K"]}
_VALUES = {"dtypes": ["bfloat16"], "shape": ["T", "HV", "V"]}

CHUNK_PREFILL = torch_fallback(
    "kda.chunk_prefill",
    chunk_prefill,
    {
        "q": _KEYS,
        "k": _KEYS,
        "v": _VALUES,
        "a": {"dtypes": ["bfloat16"], "shape": ["T", "A"]},
        "beta": {"dtypes": ["float32"], "shape": ["T", "HV"]},
        **DECAY,
        "cu_seqlens": {"dtypes": ["int32"], "shape": ["N+1"]},
        "state": {"dtypes": ["float32"], "shape": ["S", "HV", "V", "K"]},
        "state_indices": {"dtypes": ["int32"], "shape": ["N"]},
        "has_state": {"dtypes": ["bool", "uint8"], "shape": ["N"]},
        "out": {**_VALUES, "optional": True},
    },
    BOUND,
)
