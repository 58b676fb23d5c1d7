"""Builders of the fused weights: order of rows, padding, shared memory, missing parts, the low-rank form."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.projection import weights
from kda_lab.projection.sizes import SMALL, splits


def numbered(rows: int, first: int) -> torch.Tensor:
    """[rows, 3] with the row's own number in every column."""
    return torch.arange(first, first + rows).float()[:, None].expand(rows, 3).contiguous().bfloat16()


def test_q_k_v_and_the_gate_stand_below_each_other() -> None:
    """Rows in the order q, k, v, gate."""
    q, k, v, gate = (numbered(2, 10 * i) for i in range(4))
    assert weights.fuse_qkvg(q, k, v, gate)[:, 0].tolist() == [0, 1, 10, 11, 20, 21, 30, 31]
    with pytest.raises(ParameterError, match=r"q, k, v, gate is .*; allowed: four matrices of one shape and dtype"):
        weights.fuse_qkvg(q, k, v, gate[:1])


def test_f_a_comes_first_and_padding_is_zero() -> None:
    """f_a, b, zeros up to a multiple of 8 rows."""
    merged = weights.merge_bfa(numbered(3, 50), numbered(6, 1), numbered(4, 0))
    assert merged is not None
    assert merged.buffer[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 50, 51, 52, 0, 0, 0, 0, 0, 0, 0]
    assert merged.rows == (6, 3, 7)


def test_nothing_is_padded_where_the_rows_fit() -> None:
    """Eight rows stay eight."""
    merged = weights.merge_bfa(numbered(2, 0), numbered(6, 1), numbered(1, 0))
    assert merged is not None
    assert (len(merged.buffer), merged.rows) == (8, (6, 2, 0))


def test_an_update_in_place_reaches_the_fused_weight() -> None:
    """The two modules' weights are views: writing one writes the buffer, and there is no second copy."""
    merged = weights.merge_bfa(numbered(3, 50), numbered(6, 1), numbered(4, 0))
    assert merged is not None
    merged.b.mul_(2)
    merged.f_a[0] = 99
    assert merged.buffer[:9, 0].tolist() == [99, 2, 3, 4, 5, 6, 100, 102, 104]
    assert merged.buffer.data_ptr() == merged.f_a.data_ptr()


@pytest.mark.parametrize("missing", range(3))
def test_without_one_of_three_nothing_is_merged(missing: int) -> None:
    """b, f_a and f_b: all or none."""
    parts = [numbered(3, 0), numbered(6, 0), numbered(2, 0)]
    parts[missing] = None
    assert weights.merge_bfa(*parts) is None


def test_parts_of_two_widths_are_refused() -> None:
    """One GEMM needs one width."""
    with pytest.raises(ParameterError, match=r"b and f_a is \(3, 3\).*; allowed: one width and dtype"):
        weights.merge_bfa(numbered(3, 0), numbered(6, 0)[:, :2], numbered(1, 0))


def test_the_unfused_weights_are_the_same_bytes() -> None:
    """Both arms read one memory, so that neither has the better placed weights."""
    fused = weights.draw(splits(4, SMALL), 0)
    five = fused.five
    assert five.qkv.shape == (192, 64)
    assert five.qkv.data_ptr() == fused.qkvg.data_ptr()
    assert torch.equal(torch.cat([five.qkv, five.gate]), fused.qkvg)
    assert five.f_a.data_ptr() == fused.bfa.buffer.data_ptr()
    assert five.b.shape == (8, 64)


def test_draws_depend_on_the_seed_and_have_the_size_of_x() -> None:
    """Two seeds differ, one repeats; a product of normal tokens stays near 1."""
    size = splits(2, SMALL)
    first, again, other = (weights.draw(size, seed) for seed in (0, 0, 1))
    assert torch.equal(first.qkvg, again.qkvg)
    assert not torch.equal(first.qkvg, other.qkvg)
    assert float(first.qkvg.float().std()) == pytest.approx(64**-0.5, rel=0.05)


def test_the_low_rank_form_is_stacked() -> None:
    """One weight of all first rows, one batch of the two second ones."""
    qkvb = (numbered(2, 0), numbered(2, 10), numbered(2, 20), numbered(1, 30))
    made = weights.fuse_low_rank(qkvb, (numbered(2, 40), numbered(2, 50)), (numbered(4, 60), numbered(4, 70)))
    assert made.first[:, 0].tolist() == [0, 1, 10, 11, 20, 21, 30, 40, 41, 50, 51]
    assert (made.rows, tuple(made.second.shape)) == ((6, 1, 4), (2, 4, 3))
    with pytest.raises(ParameterError, match=r"f_a, g_a, f_b, g_b is .*; allowed: two pairs of one shape each"):
        weights.fuse_low_rank(qkvb, (numbered(2, 0), numbered(3, 0)), (numbered(4, 0), numbered(4, 0)))
