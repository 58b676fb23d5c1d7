"""Levels: what of an inner saving arrives outside, and what is unexplained."""

from __future__ import annotations

import pytest

from kda_lab.referee.checks import levels
from kda_lab.referee.claim import Claim, Level

FUSION = (
    Level(name="prologue", baseline_us=140.064, candidate_us=117.281, per_next=3),
    Level(name="slice", baseline_us=1977.695, candidate_us=1951.731, per_next=23),
    Level(name="graph", baseline_us=45262, candidate_us=44807),
    Level(name="step", baseline_us=95160, candidate_us=93123),
)


def test_the_fusion_threads_levels() -> None:
    """38 % of the prologues' saving reaches the slice; the graph explains 22 % of the step's."""
    inner, middle, outer = levels.check(Claim(name="x", levels=FUSION))
    assert inner.sentence == "38 % of what prologue saves arrives in slice."
    assert middle.numbers["realised_percent"] == pytest.approx(76.2, abs=0.05)
    assert (outer.severity, outer.sentence) == (
        "warning",
        "graph explains 22 % of what step saves; the rest is unexplained.",
    )


def test_an_inner_loss_explains_no_gain() -> None:
    """An outer saving over an inner loss is unexplained; over a saving, an outer loss is remarked."""
    loss = Level(name="kernel", baseline_us=10, candidate_us=11)
    gain = Level(name="graph", baseline_us=100, candidate_us=90)
    (found,) = levels.check(Claim(name="x", levels=(loss, gain)))
    assert (found.severity, "saves 10 us that it does not explain" in found.sentence) == ("warning", True)
    swapped = (gain, loss)
    (found,) = levels.check(Claim(name="x", levels=swapped))
    assert (found.severity, found.sentence) == ("warning", "graph saves time, kernel loses 1 us.")
