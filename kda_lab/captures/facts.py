"""Host-side facts of a call, read from its tensors once, when it is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def packed_facts(inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Axes and live lengths of a packed attention call; empty for any other call.

    Args:
        inputs: with `q` [B, HQ, D], `k` [N, HKV, D] and `cu_seqlens_k` [B+1] int32.
    Returns:
        `{"B", "HQ", "HKV", "lengths"}`, lengths in tokens, one a row. Reads the device once.
    """
    q, k, ends = (inputs.get(name) for name in ("q", "k", "cu_seqlens_k"))
    if q is None or k is None or ends is None or q.dim() != 3 or k.dim() != 3 or ends.dim() != 1:
        return {}
    if ends.numel() != q.shape[0] + 1:
        return {}
    lengths = [int(n) for n in (ends[1:].cpu().long() - ends[:-1].cpu().long())]
    return {"B": q.shape[0], "HQ": q.shape[1], "HKV": k.shape[1], "lengths": lengths}


def gemm_facts(inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Axes of an NVFP4 matrix product; empty for any other call. Reads shapes only.

    Args:
        inputs: with `x_fp4` [M, K/2] and `weight` [K/2, N], both uint8.
    Returns:
        `{"M", "N", "K"}`.
    """
    x, weight = inputs.get("x_fp4"), inputs.get("weight")
    if x is None or weight is None or x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[0]:
        return {}
    return {"M": x.shape[0], "N": weight.shape[1], "K": 2 * x.shape[1]}


def recorded_facts(inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Facts of a tapped call of any op, by the names of its tensors; empty when they are none of those above."""
    facts = packed_facts(inputs) or gemm_facts(inputs)
    return {**facts, "kind": "real"} if "K" in facts else facts
