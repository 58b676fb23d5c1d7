"""The public door of Qwen Sparse Attention (QSA): packed decode through the exported kernels.

Importing it loads torch and this package's production column, no Triton: a kernel is imported when
a call first selects it.
"""

from __future__ import annotations

from typing import Any

import torch

from kda_lab.contracts.predicate import show
from kda_lab.dispatch.dispatcher import DISPATCHER
from kda_lab.dispatch.explanation import Explanation
from kda_lab.dispatch.statistics import Statistics
from kda_lab.errors import Reason
from kda_lab.ops.qsa_packed_decode.spec import SPEC

__all__ = ["explain_packed_decode", "packed_decode", "prepare", "reset_statistics", "statistics"]


def packed_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    max_seqlen_q: int = 1,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Attend one query row of each sequence to its packed, already selected KV rows.

    out[b, h] = sum_i softmax_i(scale · q[b, h] · k[i, g]) · v[i, g], with g = h // (HQ / HKV) and i
    over the rows cu_seqlens_k[b] <= i < cu_seqlens_k[b + 1]. No causal mask: the selection made it.

    Axes:      B sequences, one query row each. HQ query heads, HKV KV heads, HQ % HKV == 0. D head
               width. N packed KV rows, N >= cu_seqlens_k[B]. The contracts of the exported kernels
               say which extents are served; today at most B 1 to 128, D 256, (HQ, HKV) (24, 2) or (12, 1).
    Args:
        q:            [B, HQ, D] bf16, contiguous; not written.
        k:            [N, HKV, D] bf16, contiguous; rows behind the live end are not read; not written.
        v:            as k.
        cu_seqlens_q: [B+1] int32 on the device of q: 0, 1, …, B; not written.
        cu_seqlens_k: [B+1] int32 on the device of q: prefix sum of the live lengths; not written.
        max_seqlen_k: rows, a bound on every live length, 1 to 2055. It must be the host's bound: the
                      lengths themselves are never read by the host.
        softmax_scale: dimensionless factor of q·k; D^-0.5 when None.
        max_seqlen_q: rows, must be 1.
        out:          [B, HQ, D], dtype and layout of q, overlapping no input; allocated when None.
        kernel:       name of an exported kernel to force, judged by its callable shapes.
    Returns:   out. A sequence without KV rows gets exactly zero.
    Raises:    ContractError, opening with "unsupported QSA call" and one reason per wrong field;
               ParameterError for an unknown kernel; KernelLoadError when a kernel's files disagree
               with its contract. Nothing launched, out untouched. There is no fallback.
    Numerics:  scores and sums in fp32, P rounded to bf16 for its product with V, one rounding at the
               store. Oracle: ops.qsa_packed_decode.oracle. Gates: see the kernel's contract.
    Work:      reads 2·B·HQ·D + 4·S·HKV·D bytes with S = cu_seqlens_k[B] live rows, plus 4·(B+1) bytes
               for cu_seqlens_k, writes 2·B·HQ·D bytes; 4·S·HQ·D FLOPs.
    Launch:    current stream; no device read on the host. Safe in graph capture after one call of the
               same geometry outside it, which imports, compiles and allocates the kernel's workspace.
               State and concurrency: see the contract's `state`. Not differentiable.
    Source:    formula and contract: source thread (sglang PR 36845). Code: written here.
    """
    scalars = {"max_seqlen_k": max_seqlen_k, "softmax_scale": softmax_scale, "max_seqlen_q": max_seqlen_q}
    demands = _demands(max_seqlen_q)
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k)
    return DISPATCHER.call(SPEC, tensors, scalars, {"out": out}, kernel, demands)


def explain_packed_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    max_seqlen_q: int = 1,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> Explanation:
    """Which kernel `packed_decode` would run for these arguments, and why not the others.

    Takes the arguments of `packed_decode`. Print the result. Nothing is launched, imported or counted.

    Raises:
        ParameterError: the forced kernel is not known.
        KernelLoadError: a contract is broken.
    """
    scalars = {"max_seqlen_k": max_seqlen_k, "softmax_scale": softmax_scale, "max_seqlen_q": max_seqlen_q}
    demands = _demands(max_seqlen_q)
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k)
    return DISPATCHER.explain(SPEC, tensors, scalars, {"out": out}, kernel, demands)


def prepare() -> tuple[str, ...]:
    """Import every exported QSA kernel now; returns their names. Call it before a graph capture.

    Raises:
        KernelLoadError: a kernel's files disagree with its contract.
    """
    return DISPATCHER.prepare(SPEC)


def statistics() -> Statistics:
    """Hits, fallbacks and refusals of this process since its start or the last reset, all ops."""
    return DISPATCHER.statistics()


def reset_statistics() -> None:
    """Put every count back to zero."""
    DISPATCHER.reset_statistics()


def _demands(max_seqlen_q: Any) -> tuple[Reason, ...]:
    """What the op itself demands of every call, whatever kernels there are."""
    # The type first: comparing a tensor would read the device.
    if type(max_seqlen_q) is int and max_seqlen_q == 1:
        return ()
    remedy = "QSA requires max_seqlen_q=1: one query row a sequence."
    return (Reason("max_seqlen_q", show(max_seqlen_q), "1", remedy),)
