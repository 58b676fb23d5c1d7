"""The tolerance table of attention residuals and the limits that follow from it."""

from __future__ import annotations

import pytest

from kda_lab.ops.gate import Limits
from kda_lab.ops.kda_attn_residuals import gates


def test_limits_are_those_of_the_table() -> None:
    """Two BF16 roundings fit; three of them, 2.9e-3, nearly fill the limit."""
    assert gates.limits("synthetic", 1.66e-3, 1.9e-3) == Limits(3e-3, 3e-3)
    assert gates.limits("real", 1.66e-3, 2.8e-3).row_max == pytest.approx(3.5e-3)


def test_what_is_updated_must_keep_its_bits() -> None:
    """No kind and no floor opens the gate of bank and prefix."""
    assert gates.updated_limit("synthetic", 0.0) == gates.updated_limit("real", 1e-3) == 0.0
