"""Attention residuals in torch: each token mixes its saved snapshots and its running stream by a softmax over scores.

They run where no exported kernel may: on any device, without reading device memory on the host, with an FP32 copy of
the rows that are mixed.
"""

from __future__ import annotations

import torch

from kda_lab.dispatch.torch_fallback import torch_fallback


@torch.no_grad()
def attn_residuals(
    bank: torch.Tensor,
    prefix: torch.Tensor,
    delta: torch.Tensor,
    score_weight: torch.Tensor,
    out_weight: torch.Tensor,
    *,
    valid: int,
    write_prefix: bool,
    add_delta: bool,
    epsilon: float = 1e-6,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """RMS norm of the mix of `valid` snapshots and the stream; stream and bank are updated in place where asked.

    Args:
        bank: [T, NB, D] bf16, snapshots; the first `valid` are mixed. With `write_prefix` the stream goes, bit for
            bit, to snapshot `valid`.
        prefix: [T, D] bf16, the stream; with `add_delta` it becomes bf16(prefix + delta) first.
        delta: [T, D] bf16.
        score_weight: [D] fp32. out_weight: [D] fp32.
        valid: snapshots in use, 0 to NB, below NB with `write_prefix`.
        epsilon: of both norms.
        out: [T, D] bf16, written; allocated when None.

    Returns:
        out.
    """
    out = torch.empty_like(prefix) if out is None else out
    stream = (prefix.float() + delta.float()).to(prefix.dtype) if add_delta else prefix
    mixed = torch.cat([bank[:, :valid], stream[:, None]], dim=1)
    rows = mixed.float()
    root = torch.rsqrt(rows.square().mean(-1) + epsilon)
    share = torch.softmax((rows * score_weight).sum(-1) * root, dim=1)
    mix = (share[..., None] * rows).sum(1)
    # What is updated in place comes last, from a copy: a call that fails before may be made again.
    out.copy_(mix * torch.rsqrt(mix.square().mean(-1, keepdim=True) + epsilon) * out_weight)
    if add_delta:
        prefix.copy_(mixed[:, -1])
    if write_prefix:
        bank[:, valid] = mixed[:, -1]
    return out


_STREAM = {"dtypes": ["bfloat16"], "shape": ["T", "D"]}
_WEIGHT = {"dtypes": ["float32"], "shape": ["D"]}

ATTN_RESIDUALS = torch_fallback(
    "kda.attn_residuals",
    attn_residuals,
    {
        "bank": {"dtypes": ["bfloat16"], "shape": ["T", "NB", "D"]},
        "prefix": _STREAM,
        "delta": _STREAM,
        "score_weight": _WEIGHT,
        "out_weight": _WEIGHT,
        "out": {**_STREAM, "optional": True},
    },
    {
        "valid": {"kind": "int", "minimum": 0},
        "write_prefix": {"kind": "bool"},
        "add_delta": {"kind": "bool"},
        "epsilon": {"kind": "float", "minimum": 0.0},
    },
)
