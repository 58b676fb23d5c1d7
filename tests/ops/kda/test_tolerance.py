"""Allowances: enough for one rounding, nothing where everything is zero."""

from __future__ import annotations

import torch

from kda_lab.ops.kda.tolerance import rounded_row, summed


def test_one_rounding_passes_and_two_ulps_do_not() -> None:
    """BF16 rounding lies within the allowance of every element; a wrong BF16 neighbour does not."""
    exact = torch.randn(64, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rounded = exact.bfloat16().double()
    allowed = rounded_row(exact)
    assert bool(((rounded - exact).abs() <= allowed).all())
    assert not bool(((rounded * 1.02 - exact).abs() <= allowed).any(-1).all())


def test_zero_rows_have_no_room() -> None:
    """Where all of a row or state is zero, so is the allowance."""
    zero = torch.zeros(2, 3, 4, dtype=torch.float64)
    assert torch.count_nonzero(rounded_row(zero)) == 0
    assert torch.count_nonzero(summed(zero, 2)) == 0
    assert summed(zero + 1, 2).shape == zero.shape
