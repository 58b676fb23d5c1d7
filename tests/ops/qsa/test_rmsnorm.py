"""RMS norm with a weight less one: golden values, scale invariance, precision."""

from __future__ import annotations

import torch

from kda_lab.ops.qsa.rmsnorm import rms_norm


def test_golden_row() -> None:
    """(3, 4) has mean square 12.5; with weights 0 and 1 it becomes 3/√12.5 and 2·4/√12.5."""
    found = rms_norm(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 1.0]), 0.0)
    assert torch.allclose(found, torch.tensor([0.84852814, 2.2627417]))


def test_weight_as_stored() -> None:
    """Without the unit offset the weight itself scales the row."""
    found = rms_norm(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 1.0]), 0.0, unit_offset=False)
    assert torch.allclose(found, torch.tensor([0.0, 1.1313709]))


def test_epsilon_rules_small_rows() -> None:
    """A zero row stays zero; a row of size sqrt(eps) shrinks by sqrt(2)."""
    found = rms_norm(torch.tensor([[0.0, 0.0], [1e-3, 1e-3]]), torch.zeros(2), 1e-6)
    assert torch.allclose(found, torch.tensor([[0.0, 0.0], [0.70710678, 0.70710678]]))


def test_precision_follows_the_input() -> None:
    """BF16 rows are computed and returned in FP32, FP64 rows in FP64."""
    x = torch.arange(1.0, 9.0)
    assert rms_norm(x.bfloat16(), torch.zeros(8).bfloat16()).dtype == torch.float32
    exact = rms_norm(x.double(), torch.zeros(8))
    assert exact.dtype == torch.float64
    assert abs(float(exact.square().mean()) - 1.0) < 1e-7
