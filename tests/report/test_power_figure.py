"""Relabelled runs and power curves: the counts are those of the exact test."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.referee.statistics import compare
from kda_lab.report import style
from kda_lab.report.power_figure import PowerCurve, power, power_title, relabelled_percent

CURVE = PowerCurve(3, [0.0, 1.0], [0.0, 0.0], None)


def test_the_observed_labelling_comes_first() -> None:
    """Twenty ways at three against three, each once, mirrored for arms of one size."""
    found = relabelled_percent([100.0, 101.0, 102.0], [110.0, 111.0, 112.0])
    assert len(found) == 20
    assert found[0] == pytest.approx(
        100
        * (math.exp(sum(map(math.log, (110, 111, 112))) / 3) / math.exp(sum(map(math.log, (100, 101, 102))) / 3) - 1)
    )
    assert found[0] == max(found)


@given(st.lists(st.floats(90, 110), min_size=6, max_size=6, unique=True))
def test_the_figure_counts_as_the_referee_does(values: list[float]) -> None:
    """The p of the title is the p of the exact test."""
    base, cand = values[:3], values[3:]
    p = compare([(tuple(base), tuple(cand))], 1.0).p
    assert f"p = {p:.2f}" in power_title(relabelled_percent(base, cand), 3, 3)


def test_the_bytes_are_the_same_and_curves_are_named() -> None:
    """Each number of runs has its line and says where it reaches 80 %."""
    curves = [CURVE, PowerCurve(4, [0.0, 1.0], [0.02, 0.9], 0.87)]
    first, second = (power([100.0, 101.0, 102.0], [103.0, 104.0, 105.0], curves, 0.5) for _ in range(2))
    assert style.svg_text(first) == style.svg_text(second)
    svg = style.svg_text(first)
    assert "3 v 3: never 80 %" in svg
    assert "4 v 4: 80 % at 0.87 %" in svg


def test_a_slower_arm_is_drawn_as_well() -> None:
    """The observed labelling may be the lowest; its sign stands in the title."""
    picture = power([103.0, 104.0], [100.0, 101.0], [CURVE], 0.5)
    assert picture.title.startswith("−2.90 % between the means of 2 and 2 runs: 2 of 6 relabellings")


@pytest.mark.parametrize(
    ("base", "cand", "message"),
    [
        ([], [1.0], "runs are 0 against 1 values, 1 ways; allowed: positive values of both arms"),
        ([0.0], [1.0], "allowed: positive values"),
        ([1.0] * 8, [1.0] * 8, "12870 ways; allowed: positive values of both arms, at most 1000 ways"),
    ],
)
def test_runs_that_cannot_be_relabelled_are_refused(base: list[float], cand: list[float], message: str) -> None:
    """An empty arm, a zero, more ways than a picture can show."""
    with pytest.raises(ParameterError, match=message):
        relabelled_percent(base, cand)


def test_no_curve_is_refused() -> None:
    """Half a figure is none."""
    with pytest.raises(ParameterError, match="curves are empty; allowed: at least one power curve"):
        power([1.0], [2.0], [], 0.5)
