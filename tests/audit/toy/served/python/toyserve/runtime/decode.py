"""One decode step, as the runtime calls the kernels."""

import torch

from toyserve.kernels import page_indices_kernel as build_slots
from toyserve.kernels.availability import is_dense_attention_available
from toyserve.kernels.chunk_state import advance
from toyserve.kernels.verify_split import verify_split_kernel


def plan(pages: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Slots of every token."""
    slots = torch.empty_like(pages)
    launch = build_slots[(pages.shape[0],)]
    launch(pages, lengths, slots, v2p_ptr=table, stride=pages.stride(0), PAGE_MULT=64, num_warps=4)
    return slots


def backend() -> str:
    """Name of the attention backend."""
    try:
        from toyserve.kernels.availability import is_sparse_attention_available
    except ImportError:
        return "none"
    if is_sparse_attention_available():
        return "sparse"
    return "dense" if is_dense_attention_available() else "none"


def align(ids: torch.Tensor, expert_map: torch.Tensor | None) -> torch.Tensor:
    """Aligned ids; the single-token kernel where it applies."""
    if ids.shape[0] == 1 and ids.numel() <= 32 and expert_map is None:
        from toyserve.kernels.align_single import align_single_token

        return align_single_token(ids.flatten(), 16)
    return ids


def verify(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Scores of one query, and the state moved on."""
    scores = torch.empty(k.shape[0], device=q.device)
    verify_split_kernel[(1,)](q, k, scores, k.shape[0], HEAD_DIM=80, BLOCK_D=128, BLOCK_N=32)
    advance(torch.zeros(1, 1, 4, 4), torch.ones(1, 1))
    return scores
