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


def test_only_runs_that_are_judged_can_void_the_claim() -> None:
    """NaN in a replaced run, or in a run of the mode that is not judged, is no fault of the others."""
    base, cand = (r.model_copy(update={"mode": "graph"}) for r in runs(1.0, 2.0))
    bad = cand.model_copy(update={"metrics": {"kernel_us": math.nan}})
    for other in ({"superseded": True}, {"mode": "eager"}):
        extra = bad.model_copy(update=other)
        assert not values.check(Claim(name="x", metric="kernel_us", runs=(base, cand, extra)))
    (found,) = values.check(Claim(name="x", metric="kernel_us", runs=(base, cand, bad)))
    assert found.severity == "invalid"


@pytest.mark.parametrize(
    ("base", "cand", "severity"),
    [((128, 0), (1, 127), "not comparable"), ((1000, 0), (970, 30), "not comparable"), ((100, 1), (100, 2), "warning")],
    ids=["nearly all", "another share", "a few in both"],
)
def test_an_arm_that_lost_its_requests_is_not_comparable(
    base: tuple[int, int], cand: tuple[int, int], severity: str
) -> None:
    """More than 5 % failed, or significantly more in one arm: the arms did not serve the same load."""
    made = tuple(
        r.model_copy(update={"metrics": {**r.metrics, "completed": float(done), "failed": float(failed)}})
        for r, (done, failed) in zip(runs(1.0, 2.0), (base, cand), strict=True)
    )
    (found,) = values.check(Claim(name="x", metric="kernel_us", runs=made))
    assert (found.severity, found.short) == (severity, "requests failed")
