"""Align one token's experts."""

import torch


def align_single_token(ids: torch.Tensor, block: int) -> torch.Tensor:
    """Ids sorted and padded to a block."""
    order = ids.sort().values
    return torch.nn.functional.pad(order, (0, -order.numel() % block), value=-1)
