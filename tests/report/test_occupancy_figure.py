"""Throughput against requests in flight: what is drawn, and what the title says."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report import style
from kda_lab.report.occupancy_figure import OccupiedArm, occupancy, occupancy_title

BASE = OccupiedArm("old", 20.0, 100.0)


def test_the_title_says_both_changes() -> None:
    """As measured, and with the same number in flight: the sign may turn."""
    title = occupancy_title(BASE, [OccupiedArm("new", 24.0, 108.0)])
    assert title == "+8.0 % with 20.0 against 24.0 requests in flight is −10.0 % at the same number"


def test_equal_latency_is_no_change() -> None:
    """An arm that only held more in flight stands on the baseline's line."""
    assert BASE.throughput_at(24.0) == pytest.approx(120.0)
    assert "is +0.0 % at the same number" in occupancy_title(BASE, [OccupiedArm("new", 24.0, 120.0)])


def test_every_run_is_drawn_and_the_bytes_are_the_same() -> None:
    """Lines of both arms, marks of every run, the moved baseline; twice the same picture."""
    runs = [OccupiedArm("new", 24.0, 108.0), OccupiedArm("new", 24.1, 107.0)]
    first, second = (occupancy(BASE, runs, foot="source") for _ in range(2))
    assert style.svg_text(first) == style.svg_text(second)
    (axes,) = first.axes
    shown = [(float(x[0]), float(y[0])) for x, y in (line.get_data() for line in axes.lines) if len(x) == 1]
    assert shown[:3] == [(20.0, 100.0), (24.0, 108.0), (24.1, 107.0)]
    assert shown[3] == pytest.approx((24.05, 120.25))


@pytest.mark.parametrize("runs", [[], [OccupiedArm("new", 0.0, 1.0)], [OccupiedArm("new", 1.0, float("nan"))]])
def test_arms_without_numbers_are_refused(runs: list[OccupiedArm]) -> None:
    """No candidate, or nothing in flight."""
    with pytest.raises(ParameterError, match="arms are without a positive number in flight and throughput"):
        occupancy(BASE, runs)
