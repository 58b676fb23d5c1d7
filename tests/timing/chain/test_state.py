"""The state surrogate is read whole, written in part, and a missing touch shows."""

from __future__ import annotations

import math

import pytest
import torch

from kda_lab.timing.chain.state import STATE_ROWS, LayerState, deviation

CPU = torch.device("cpu")


@pytest.mark.parametrize(("wanted", "held"), [(0, 16_384), (16_384, 16_384), (250_000, 245_760)])
def test_a_state_has_whole_rows(wanted: int, held: int) -> None:
    """A state holds the wanted bytes, cut to whole 16 bytes a row, and at least one such piece."""
    state = LayerState.of(wanted, CPU)
    assert state.size_bytes == held
    assert state.values.shape[0] == STATE_ROWS


@pytest.mark.parametrize("touches", [1, 2, 6])
def test_touches_leave_what_is_expected(touches: int) -> None:
    """After n touches the summary is the mean that n touches leave behind, and column 0 holds it."""
    state = LayerState.of(40_000, CPU)
    state.fill(3)
    expected = state.expected(touches)
    for _ in range(touches):
        state.touch()
    assert deviation(state, expected) <= 1
    assert torch.equal(state.values[:, 0], state.summary)


def test_a_touch_that_never_ran_shows() -> None:
    """Filling poisons the summary, so a chain that skips the touch cannot pass."""
    state = LayerState.of(40_000, CPU)
    state.fill(3)
    assert deviation(state, state.expected(1)) == math.inf


def test_a_touch_of_old_values_shows() -> None:
    """A summary of other values is far outside of the tolerance."""
    state = LayerState.of(40_000, CPU)
    state.fill(3)
    state.touch()
    old = state.summary.clone()
    state.fill(4)
    state.summary.copy_(old)
    assert deviation(state, state.expected(1)) > 100


def test_one_wrong_row_shows() -> None:
    """A single row that was not summed fails the whole state."""
    state = LayerState.of(40_000, CPU)
    state.fill(3)
    expected = state.expected(1)
    state.touch()
    state.summary[17] = 0
    assert deviation(state, expected) > 1


def test_a_seed_gives_the_same_values() -> None:
    """Two states of one seed are equal, of two seeds they differ."""
    one, two = LayerState.of(16_384, CPU), LayerState.of(16_384, CPU)
    one.fill(5)
    two.fill(5)
    assert torch.equal(one.values, two.values)
    two.fill(6)
    assert not torch.equal(one.values, two.values)
