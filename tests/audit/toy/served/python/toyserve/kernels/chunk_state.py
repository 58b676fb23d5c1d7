"""Advance the state of one chunk."""

import torch

CHUNK = 64


def check_state(state: torch.Tensor) -> None:
    """Refuse a state that the kernel would read wrongly."""
    if state.dim() != 4:
        raise ValueError(f"state has {state.dim()} axes; allowed: 4")
    if state.stride(-1) != 1 or state.stride(-2) != state.shape[-1]:
        raise ValueError(f"state strides are {state.stride()}; allowed: the last two axes contiguous")


def advance(state: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """State times decay, a chunk at a time."""
    check_state(state)
    return state.mul_(decay[..., None, None])
