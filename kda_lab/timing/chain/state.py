"""The attention-state surrogate: memory of one layer that is read whole and written in part, again and again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

STATE_ROWS = 1024
"""Rows of a state: enough for one block of the reduction on every multiprocessor."""
LEAST_WIDTH = 4
RELATIVE_TOLERANCE = 1e-5
"""For an FP32 mean of normal values, relative to their spread; a mean that was not taken is off by far more."""


@dataclass(frozen=True)
class LayerState:
    """State of one layer and what its last touch left behind."""

    values: torch.Tensor
    """[STATE_ROWS, width] float32."""
    summary: torch.Tensor
    """[STATE_ROWS] float32: the mean of each row, as the last touch read it."""

    @classmethod
    def of(cls, state_bytes: int, device: torch.device) -> LayerState:
        """A state of about `state_bytes` (whole rows of whole 16 bytes), not yet filled."""
        width = max(LEAST_WIDTH, state_bytes // (4 * STATE_ROWS * LEAST_WIDTH) * LEAST_WIDTH)
        values = torch.zeros(STATE_ROWS, width, dtype=torch.float32, device=device)
        return cls(values, torch.zeros(STATE_ROWS, dtype=torch.float32, device=device))

    @property
    def size_bytes(self) -> int:
        """Bytes that one touch reads."""
        return self.values.numel() * self.values.element_size()

    def fill(self, seed: int) -> None:
        """New normal values in place, and NaN where the next touch must write."""
        generator = torch.Generator(device=self.values.device).manual_seed(seed)
        self.values.normal_(generator=generator)
        self.summary.fill_(math.nan)

    def touch(self) -> None:
        """Read the whole state and write one column of it; two device kernels, safe in graph capture."""
        torch.mean(self.values, dim=1, out=self.summary)
        self.values[:, 0].copy_(self.summary)

    def expected(self, touches: int) -> torch.Tensor:
        """[STATE_ROWS] float64: what `summary` must be after `touches` more touches of the present values."""
        exact = self.values.to(torch.float64)
        rest, first = exact[:, 1:].sum(dim=1), exact[:, 0]
        for _ in range(touches):
            first = (rest + first) / exact.shape[1]
        return first


def deviation(state: LayerState, expected: torch.Tensor) -> float:
    """Largest |summary - expected|, as a share of RELATIVE_TOLERANCE: at most 1 is right; infinite for a NaN."""
    worst = float((state.summary.to(torch.float64) - expected).abs().max())
    return worst / RELATIVE_TOLERANCE if math.isfinite(worst) else math.inf
