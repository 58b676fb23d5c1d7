"""Rotary embedding in the neox layout: golden values, lengths kept, relative positions, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa import rope


def test_table_holds_cosines_then_sines() -> None:
    """At width 4 and base 100 the two wavelengths turn by 1 and by 0.1 a position."""
    table = rope.cos_sin_table(3, 4, base=100.0)
    expected = [[math.cos(2), math.cos(0.2), math.sin(2), math.sin(0.2)]]
    assert torch.allclose(table[2:], torch.tensor(expected))
    assert table.dtype == torch.float32


def test_halves_turn_with_each_other() -> None:
    """A quarter turn maps (first, second) to (-second, first); what lies behind the width stays."""
    quarter = torch.tensor([0.0, 0.0, 1.0, 1.0])
    found = rope.rotate(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), quarter)
    assert found.tolist() == [-3.0, -4.0, 1.0, 2.0, 5.0]


def test_position_zero_changes_nothing() -> None:
    """The first row of a table is the identity."""
    x = torch.randn(128, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rope.rotate(x, rope.cos_sin_table(1, 64)[0]), x)


@settings(max_examples=20)
@given(st.integers(0, 200), st.integers(0, 200), st.sampled_from([2, 32, 64, 128]))
def test_only_the_distance_of_positions_counts(left: int, right: int, width: int) -> None:
    """q at p and k at p' give the product of q at p + 7 and k at p' + 7, and lengths stay."""
    draw = torch.Generator().manual_seed(left * 1000 + right)
    q, k = torch.randn(2, 128, generator=draw, dtype=torch.float64)
    table = rope.cos_sin_table(208, width).double()
    near = rope.rotate(q, table[left]) @ rope.rotate(k, table[right])
    far = rope.rotate(q, table[left + 7]) @ rope.rotate(k, table[right + 7])
    assert abs(float(near - far)) < 1e-4
    assert abs(float(rope.rotate(q, table[left]).norm() - q.norm())) < 1e-5


def test_precision_follows_the_input() -> None:
    """BF16 is widened to FP32; FP64 stays."""
    table = rope.cos_sin_table(2, 4)
    assert rope.rotate(torch.ones(4).bfloat16(), table[1]).dtype == torch.float32
    assert rope.rotate(torch.ones(4).double(), table[1]).dtype == torch.float64


@pytest.mark.parametrize("width", [0, 3, -2])
def test_an_odd_width_has_no_table(width: int) -> None:
    """Channels turn in pairs."""
    with pytest.raises(ParameterError, match=r"qsa: rotary_dim is -?\d; allowed: an even number of at least 2"):
        rope.cos_sin_table(4, width)


def test_a_width_beyond_the_row_is_refused() -> None:
    """A table of another head dimension is named with both numbers."""
    with pytest.raises(ParameterError, match=r"rotary_dim is 64; allowed: an even number up to 32, the width of x"):
        rope.rotate(torch.ones(32), rope.cos_sin_table(1, 64)[0])
