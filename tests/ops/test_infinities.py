"""Infinities that a value shares with its reference become zeros of both; all else stays."""

from __future__ import annotations

import math

import torch

from kda_lab.ops.infinities import without_shared_infinities

INF = math.inf


def pair(value: list[float], reference: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Two FP64 vectors."""
    return torch.tensor(value, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)


def test_shared_infinities_become_zeros() -> None:
    """Only where sign and place agree."""
    value, reference = without_shared_infinities(*pair([-INF, INF, 1.0, INF], [-INF, -INF, 2.0, INF]))
    assert value.tolist() == [0.0, INF, 1.0, 0.0] and reference.tolist() == [0.0, -INF, 2.0, 0.0]


def test_a_finite_reference_costs_no_copy() -> None:
    """The tensors themselves come back, whatever the value holds; empty ones too."""
    for given in (pair([INF, math.nan, 1.0], [1.0, 2.0, 3.0]), pair([], [])):
        assert all(a is b for a, b in zip(without_shared_infinities(*given), given, strict=True))


def test_a_nan_of_the_reference_stays() -> None:
    """It is no agreement, and must fail whatever compares."""
    value, reference = without_shared_infinities(*pair([math.nan, -INF], [math.nan, -INF]))
    assert math.isnan(float(value[0])) and math.isnan(float(reference[0])) and float(reference[1]) == 0.0
