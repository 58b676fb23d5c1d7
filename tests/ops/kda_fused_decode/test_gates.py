"""Limits: their least values, how they rise, what they refuse."""

from __future__ import annotations

import pytest

from kda_lab.ops.kda_fused_decode import gates


def test_limits_are_those_of_the_table_and_rise_with_the_floor() -> None:
    """A floor above 4e-3 lifts the limits of the output; a BF16 pool's lifts that of the pools."""
    assert gates.limits("synthetic", 1.7e-3, 1.8e-3) == gates.limits("real", 1e-4)
    assert gates.limits("synthetic", 1.7e-3).error == 5e-3
    assert gates.limits("synthetic", 1.7e-3, 8e-3).row_max == 1e-2
    assert gates.updated_limit("synthetic", 2e-8) == 5e-5
    assert gates.updated_limit("real", 1.6e-3) == pytest.approx(2e-3)
