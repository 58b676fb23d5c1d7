"""Choose experts: a radix path for few rows, a sort for the rest."""

import torch
import triton
import triton.language as tl

RADIX_ROWS = 256


@triton.jit
def _radix_kernel(scores, ids, EXPERTS: tl.constexpr, TOP: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, EXPERTS)
    values = tl.load(scores + row * EXPERTS + lanes)
    for rank in tl.static_range(TOP):
        best = tl.argmax(values, axis=0)
        tl.store(ids + row * TOP + rank, best)
        values = tl.where(lanes == best, float("-inf"), values)


@triton.jit
def _sort_kernel(scores, ids, EXPERTS: tl.constexpr, TOP: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, EXPERTS)
    keys = tl.load(scores + row * EXPERTS + lanes)
    order = tl.sort(keys, descending=True)
    tl.store(ids + row * TOP + lanes, order, mask=lanes < TOP)


def _radix_top(scores: torch.Tensor, ids: torch.Tensor, top: int) -> torch.Tensor:
    _radix_kernel[(scores.shape[0],)](scores, ids, EXPERTS=scores.shape[1], TOP=top)
    return ids


def fused_gate(scores: torch.Tensor, top: int) -> torch.Tensor:
    """Ids of the `top` largest scores a row."""
    rows, experts = scores.shape
    ids = torch.empty((rows, top), dtype=torch.int32, device=scores.device)
    if rows <= RADIX_ROWS and experts >= 128:
        return _radix_top(scores, ids, top)
    num_warps = 8 if experts > 256 else 4
    _sort_kernel[(rows,)](scores, ids, EXPERTS=experts, TOP=top, num_warps=num_warps)
    return ids
