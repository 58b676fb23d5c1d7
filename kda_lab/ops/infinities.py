"""Infinities on which a value and its reference agree: no error, though their difference is no number."""

from __future__ import annotations

import math

import torch


def without_shared_infinities(value: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both with 0 where they hold the same infinity: the score of a dead key is -inf on both sides.

    Args:
        value: FP64, of the reference's shape.
        reference: FP64.

    Returns:
        New tensors, or the given ones where the reference is finite.
    """
    # One norm tells a finite reference, which nearly all are, in a quarter of the time that the masks take.
    if reference.numel() == 0 or math.isfinite(float(torch.linalg.vector_norm(reference, ord=math.inf))):
        return value, reference
    shared = torch.isinf(reference) & (value == reference)
    return value.masked_fill(shared, 0.0), reference.masked_fill(shared, 0.0)
