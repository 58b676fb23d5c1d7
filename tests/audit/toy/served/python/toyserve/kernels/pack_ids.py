"""Pack expert ids and weights into one word."""

import torch
import triton
import triton.language as tl


@triton.jit
def _pack_ids_kernel(ids, weights, packed, count, BLOCK: tl.constexpr, USE_PDL: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    if USE_PDL:
        tl.extra.cuda.gdc_wait()
    word = tl.load(ids + offsets, mask=inside, other=0) << 16
    word |= tl.load(weights + offsets, mask=inside, other=0).to(tl.int32)
    tl.store(packed + offsets, word, mask=inside)
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()


def pack_ids(ids: torch.Tensor, weights: torch.Tensor, use_pdl: bool = True) -> torch.Tensor:
    """One int32 a pair."""
    packed = torch.empty_like(ids)
    grid = (triton.cdiv(ids.numel(), 256),)
    _pack_ids_kernel[grid](ids, weights, packed, ids.numel(), BLOCK=256, USE_PDL=use_pdl, launch_pdl=use_pdl)
    return packed
