"""Values: missing arms, NaN, zero, duplicates, failed requests."""

from __future__ import annotations

import math

import pytest

from kda_lab.referee.checks import values
from kda_lab.referee.claim import Claim, Control, Run, Source


def runs(base: float, cand: float) -> tuple[Run, ...]:
    """One run an arm, of the kernel's time."""
    source = Source(file="a.csv", line=7)
    pairs = (("baseline", base), ("candidate", cand))
    return tuple(Run(arm=a, metrics={"kernel_us": v}, source=source) for a, v in pairs)


@pytest.mark.parametrize(
    ("base", "cand", "short"),
    [
        (0.0, 1.0, "baseline value is zero"),
        (math.nan, 1.0, "baseline value is NaN"),
        (1.0, math.inf, "value is not positive and finite"),
        (1.0, -3.0, "value is not positive and finite"),
    ],
)
def test_a_value_that_cannot_be_divided_by_is_invalid(base: float, cand: float, short: str) -> None:
    """Zero, NaN, infinite and negative values are named with their place."""
    (found,) = values.check(Claim(name="x", metric="kernel_us", runs=runs(base, cand)))
    assert (found.severity, found.short) == ("invalid", short)
    assert "allowed: positive and finite. a.csv:7" in found.sentence


def test_both_arms_are_needed() -> None:
    """A missing arm and a missing metric are different faults."""
    (found,) = values.check(Claim(name="x", metric="kernel_us", runs=runs(1.0, 1.0)[:1]))
    assert (found.short, found.sentence) == ("missing arm", "No run of the arm 'candidate'; both arms are needed.")
    found_two = values.check(Claim(name="x", metric="graph_ms", runs=runs(1.0, 1.0)))
    assert {f.short for f in found_two} == {"metric missing"}


def test_a_run_that_stands_twice_is_invalid() -> None:
    """The same round of the same arm, or the same place in the order, is a copy."""
    twice = tuple(r.model_copy(update={"round": 1}) for r in (*runs(1.0, 2.0), *runs(1.0, 2.0)))
    (found,) = values.check(Claim(name="x", metric="kernel_us", runs=twice))
    assert "Given more than once: round 1 of baseline, round 1 of candidate." in found.sentence
    same = tuple(r.model_copy(update={"order": 4}) for r in runs(1.0, 2.0))
    (found,) = values.check(Claim(name="x", metric="kernel_us", runs=same))
    assert "place 4 in the order" in found.sentence


def test_a_named_repeat_is_no_copy() -> None:
    """An A/A control may run the baseline twice a round; eager and graph runs share a round too."""
    base, cand = (r.model_copy(update={"round": 1}) for r in runs(1.0, 2.0))
    control = Control(arm="baseline", repeats="baseline")
    assert not values.check(Claim(name="x", metric="kernel_us", runs=(base, base, cand), controls=(control,)))
    both = (base.model_copy(update={"mode": "eager"}), base.model_copy(update={"mode": "graph"}), cand)
    assert not values.check(Claim(name="x", metric="kernel_us", runs=both))


def test_failed_requests_are_remarked() -> None:
    """What did not finish is in no latency."""
    base, cand = runs(1.0, 2.0)
    cand = cand.model_copy(update={"metrics": {**cand.metrics, "failed": 3.0}})
    (found,) = values.check(Claim(name="x", metric="kernel_us", runs=(base, cand)))
    assert (found.severity, "Requests failed: 0 of baseline, 3 of candidate" in found.sentence) == ("warning", True)
