"""QSA's paged decode in torch: one query row a sequence attends to its selected tokens, straight from the pools.

It runs where no exported kernel may: on any device, without reading device memory on the host, so that a call can be
captured in a graph. It gathers the K and V row of every column first, holes included, so it needs memory for B · W rows.
"""

from __future__ import annotations

import torch

from kda_lab.dispatch.torch_fallback import torch_fallback


def paged_decode(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    requests: torch.Tensor,
    req_to_slot: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of each row of `q` over the tokens of its row that are valid: 0 <= token < lengths[b].

    Args:
        q: [B, HQ, D] bf16.
        k_pool, v_pool: [S, HKV, D] bf16; HKV divides HQ.
        tokens: [B, W] int32, holes anywhere.
        lengths, requests: [B] int32.
        req_to_slot: [R, maxlen] int32.
        softmax_scale: of q·k; D^-0.5 when None.
        out: [B, HQ, D] bf16, written; allocated when None.

    Returns:
        out. A row without a valid token is exactly zero.
    """
    out = torch.empty_like(q) if out is None else out
    valid = (tokens >= 0) & (tokens < lengths[:, None])
    named = torch.where(valid, tokens, 0).long()
    slots = torch.where(valid, req_to_slot[requests.long()[:, None], named], 0).long()
    live = valid[:, :, None, None]
    # Slot 0, which stands for a hole, may hold NaN, and a weight of zero would not silence it.
    k, v = (torch.where(live, pool[slots], 0.0).transpose(1, 2) for pool in (k_pool, v_pool))  # [B, HKV, W, D]
    # A row without a valid token attends to zeros instead of to nothing, which would be NaN.
    mask = (valid | ~valid.any(1, keepdim=True))[:, None, None]
    done = torch.nn.functional.scaled_dot_product_attention(
        q[:, :, None], k, v, attn_mask=mask, scale=softmax_scale, enable_gqa=True
    )
    return out.copy_(done[:, :, 0])


_ROW = {"dtypes": ["int32"], "shape": ["B"]}
_QUERY = {"dtypes": ["bfloat16"], "shape": ["B", "HQ", "D"]}
_POOL = {"dtypes": ["bfloat16"], "shape": ["S", "HKV", "D"]}

PAGED_DECODE = torch_fallback(
    "qsa.paged_decode",
    paged_decode,
    {
        "q": _QUERY,
        "k_pool": _POOL,
        "v_pool": _POOL,
        "tokens": {"dtypes": ["int32"], "shape": ["B", "W"]},
        "lengths": _ROW,
        "requests": _ROW,
        "req_to_slot": {"dtypes": ["int32"], "shape": ["R", "L"]},
        "out": {**_QUERY, "optional": True},
    },
    {"softmax_scale": {"kind": "float", "optional": True}},
)
