"""What `qsa.block_scores` must compute: two trusted references, the emulation, an error each score may have.

scores[b, n] = 128^-0.5 · sum_h max(0, q[b, h] · k[b, n]) at n < lengths[b], else -inf, where k[b, n] is entry n % 16 of
page pages[b, n // 16]. Axes: B rows, HI index heads, D = 128 width, N scores a row, S entries of the pool.
All functions read the lengths on the host, so none of them may run inside graph capture.
"""

from __future__ import annotations

import math

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.precision import full_fp32
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa.geometry import PAGE_ENTRIES, TOPK_BLOCKS, needs_scores

ROOM = "qsa.block_scores"
MINUS_INFINITY = True
"""-inf is the right score of a block that a row does not have."""
RELATIVE_ALLOWANCE = 2e-5
"""Of a score's error to the sum of its terms' magnitudes: 128 products a head, summed in FP32 in any order."""


def live_lengths(call: Call) -> list[int]:
    """Compressed keys of each row, read on the host.

    Raises:
        ParameterError: a length outside 0 to N, or a live page outside the pool.
    """
    pages, keys = call.inputs["pages"], call.inputs["keys"]
    lengths = [int(n) for n in call.inputs["lengths"].tolist()]
    most, count = pages.shape[1] * PAGE_ENTRIES, keys.shape[0] // PAGE_ENTRIES
    reasons = [Reason("lengths", repr(n), f"0 to {most}") for n in lengths if not 0 <= n <= most]
    if not reasons:
        used = torch.arange(pages.shape[1]) * PAGE_ENTRIES < torch.tensor(lengths)[:, None]
        ids = pages.cpu()[used]
        strangers = ids[(ids < 0) | (ids >= count)].tolist()
        reasons = [Reason("pages", repr(at), f"0 to {count - 1}, the pages of keys") for at in strangers[:1]]
    if reasons:
        raise ParameterError(ROOM, reasons)
    return lengths


def entries_of(call: Call, row: int, length: int) -> torch.Tensor:
    """[length] int64 pool entries of a row's compressed keys, in order."""
    n = torch.arange(length, device=call.device)
    return call.inputs["pages"][row, n // PAGE_ENTRIES].long() * PAGE_ENTRIES + n % PAGE_ENTRIES


def oracle_fp32(call: Call) -> dict[str, torch.Tensor]:
    """The op in FP32 throughout: `{"scores": [B, N] fp32}` on the call's device."""
    with full_fp32():
        return {"scores": _scores(call, torch.float32)}


def oracle_fp64(call: Call) -> dict[str, torch.Tensor]:
    """The op in FP64 throughout, the arbiter: `{"scores": [B, N] fp64}` on the call's device."""
    return {"scores": _scores(call, torch.float64)}


def oracle_products(call: Call) -> dict[str, torch.Tensor]:
    """The same in FP64 by another road: every row against the whole pool, then the scores of its own entries.

    Independent of the order of gather and product, but O(B · HI · S) memory: for small calls.
    """
    lengths = live_lengths(call)
    # Entries that no row has may hold NaN; their products are made and never read.
    products = torch.einsum("bhd,sd->bhs", call.inputs["q_index"].double(), call.inputs["keys"].double())
    every = products.clamp(min=0).sum(1) / math.sqrt(call.inputs["q_index"].shape[2])
    out = torch.full(call.outputs["scores"].shape, -math.inf, dtype=torch.float64, device=call.device)
    for b, length in enumerate(lengths):
        out[b, :length] = every[b, entries_of(call, b, length)]
    return {"scores": out}


def emulate(call: Call) -> dict[str, torch.Tensor]:
    """What a correct tensor-core kernel returns: exact BF16 products, FP32 sums over slices of 16, heads in order."""
    scale = 1.0 / math.sqrt(call.inputs["q_index"].shape[2])
    out = torch.full_like(call.outputs["scores"], -math.inf)
    with full_fp32():
        for b, length in enumerate(live_lengths(call)):
            q, k = call.inputs["q_index"][b].float(), call.inputs["keys"][entries_of(call, b, length)].float()
            dots = torch.zeros(q.shape[0], length, device=call.device)
            for first in range(0, q.shape[1], 16):
                dots += q[:, first : first + 16] @ k[:, first : first + 16].T
            total = torch.zeros(length, device=call.device)
            for head in dots.clamp(min=0):
                total += head
            out[b, :length] = total * scale
    return {"scores": out}


def allowance(call: Call, exact: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Most error of each score: 2e-5 of the sum of the magnitudes of all its products; 0 where the score is -inf."""
    out = torch.zeros_like(exact["scores"])
    scale = 1.0 / math.sqrt(call.inputs["q_index"].shape[2])
    for b, length in enumerate(live_lengths(call)):
        q = call.inputs["q_index"][b].double().abs().sum(0)
        out[b, :length] = (call.inputs["keys"][entries_of(call, b, length)].double().abs() @ q) * scale
    return {"scores": RELATIVE_ALLOWANCE * out}


def shortened(scores: torch.Tensor, lengths: torch.Tensor, k: int = TOPK_BLOCKS) -> torch.Tensor:
    """Scores as a scorer leaves them that skips the rows which select every block anyway: 0 there, -inf behind them.

    Args:
        scores: [B, N] from the full op.
        lengths: [B] compressed keys of each row.
        k: blocks selected; rows of up to k are skipped.

    Returns:
        [B, N]: a top-k of it selects the same set of live blocks as one of `scores`.
    """
    live = torch.arange(scores.shape[1], device=scores.device) < lengths[:, None]
    flat = torch.where(live, torch.zeros_like(scores), torch.full_like(scores, -math.inf))
    return torch.where(needs_scores(lengths, k)[:, None], scores, flat)


def _scores(call: Call, dtype: torch.dtype) -> torch.Tensor:
    out = torch.full(call.outputs["scores"].shape, -math.inf, dtype=dtype, device=call.device)
    for b, length in enumerate(live_lengths(call)):
        q, k = call.inputs["q_index"][b].to(dtype), call.inputs["keys"][entries_of(call, b, length)].to(dtype)
        out[b, :length] = (q @ k.T).clamp(min=0).sum(0) / math.sqrt(q.shape[1])
    return out
