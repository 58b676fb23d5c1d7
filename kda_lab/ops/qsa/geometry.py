"""Numbers and rules of Qwen Sparse Attention that its ops share: widths, pages, compressed lengths, valid blocks.

A request of `length` tokens has `length // ratio` compressed keys, one a complete group of `ratio` tokens. The
incomplete tail is never scored; it is always attended.
"""

from __future__ import annotations

import torch

from kda_lab.errors import ParameterError, Reason

ROOM = "qsa"
HEAD_DIM = 256
INDEX_DIM = 128
INDEX_HEADS = 4
RATIO = 4
BUDGET_TOKENS = 2048
TOPK_BLOCKS = BUDGET_TOKENS // RATIO
PAGE_TOKENS = 64
PAGE_ENTRIES = PAGE_TOKENS // RATIO
TARGET_WIDTH = BUDGET_TOKENS + RATIO - 1
"""Most tokens a target query selects: 512 blocks of 4 and a tail of 3."""
DRAFT_STEPS = 4
DRAFT_WIDTH = TARGET_WIDTH + DRAFT_STEPS
"""Most tokens a draft query selects: a frozen target selection and 4 newer positions."""


def compressed_length(length: torch.Tensor, ratio: int = RATIO) -> torch.Tensor:
    """Compressed keys of requests of these lengths in tokens: `length // ratio`, dtype and shape kept.

    Raises:
        ParameterError: a ratio below 1.
    """
    _require_ratio(ratio)
    return torch.div(length, ratio, rounding_mode="floor")


def prefill_blocks(positions: torch.Tensor, lengths: torch.Tensor, ratio: int = RATIO) -> torch.Tensor:
    """How many blocks a prefill query may score: only groups that are complete at its own position.

    Args:
        positions: integers, any shape: 0-based position of each query row.
        lengths: integers, same shape: tokens of the row's request, those of this step included.
        ratio: tokens a block.

    Returns:
        min((position + 1) // ratio, length // ratio), dtype of `positions`: block n is valid where 0 <= n < it.

    Raises:
        ParameterError: a ratio below 1.
    """
    own = compressed_length(positions + 1, ratio)
    return torch.minimum(own, compressed_length(lengths, ratio).to(own.dtype))


def needs_scores(lengths: torch.Tensor, k: int = TOPK_BLOCKS) -> torch.Tensor:
    """Whether a row's scores matter to a top-k of its blocks: False where it selects them all.

    Args:
        lengths: [B] integers: compressed keys of each row.
        k: blocks selected.

    Returns:
        [B] bool. Where it is False, any scores that are finite on live blocks give the same selected set.
    """
    return lengths > k


def _require_ratio(ratio: int) -> None:
    if ratio < 1:
        raise ParameterError(ROOM, [Reason("ratio", repr(ratio), "1 or more")])
