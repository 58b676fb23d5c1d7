"""The norm and gate of the output."""

from __future__ import annotations

import torch

from kda_lab.ops.kda.output import gated_norm


def test_each_head_is_normalised_scaled_and_gated() -> None:
    """Against the formula written out, with an epsilon that counts."""
    random = torch.Generator().manual_seed(2)
    o, gate, weight = (torch.randn(*s, generator=random, dtype=torch.float64) for s in ((2, 3, 5), (2, 3, 5), (5,)))
    found = gated_norm(o, gate, weight, 0.5)
    right = o / torch.sqrt((o * o).sum(-1, keepdim=True) / 5 + 0.5) * weight / (1 + torch.exp(-gate))
    assert torch.allclose(found, right, atol=1e-14, rtol=0)


def test_a_zero_row_stays_zero() -> None:
    """Epsilon keeps it finite."""
    ones = torch.ones(2, 4)
    assert torch.equal(gated_norm(torch.zeros(2, 4), ones, ones[0], 1e-5), torch.zeros(2, 4))
