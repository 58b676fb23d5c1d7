"""Occupancy: Little's law, and the comparison at the same number in flight."""

from __future__ import annotations

from typing import Any

import pytest

from kda_lab.referee.checks import occupancy
from kda_lab.referee.claim import Claim, Run


def run(arm: str, throughput: float, ttft: float, tpot: float) -> Run:
    """One run of 1024 output tokens at concurrency 24."""
    metrics = {"throughput_tok_s": throughput, "ttft_mean_ms": ttft, "tpot_mean_ms": tpot}
    return Run(arm=arm, concurrency=24, output_tokens=1024, metrics=metrics)


KERNELS = (run("baseline", 843.14, 4606, 22.87), run("candidate", 858.38, 4748, 23.34))


def test_a_fuller_arm_is_not_comparable() -> None:
    """The kernel thread's table: 23.06 against 24.00 in flight takes +1.8 % to -2.2 %."""
    (found,) = occupancy.check(Claim(name="x", runs=KERNELS))
    assert found.severity == "not comparable"
    assert found.numbers["baseline_in_flight_count"] == pytest.approx(23.06, abs=0.005)
    assert found.numbers["candidate_in_flight_count"] == pytest.approx(24.00, abs=0.005)
    assert found.numbers["equal_occupancy_change_percent"] == pytest.approx(-2.18, abs=0.01)
    assert "at equal occupancy it is -2.18 %" in found.sentence


def test_the_arithmetic_can_be_redone() -> None:
    """Each line holds its inputs and its result."""
    (found,) = occupancy.check(Claim(name="x", runs=KERNELS))
    assert "baseline: latency 4606 ms + 1023 * 22.87 ms = 28.002 s" in found.arithmetic
    assert "baseline: 843.14 tok/s / 1024 tok * 28.002 s = 23.06 in flight" in found.arithmetic


def test_a_latency_is_only_warned_about() -> None:
    """A claim about TPOT gets a warning with the change at equal occupancy."""
    (found,) = occupancy.check(Claim(name="x", runs=KERNELS, metric="tpot_mean_ms"))
    assert (found.severity, "+4.07 %" in found.sentence) == ("warning", True)


def test_equal_occupancy_passes() -> None:
    """Rate up and latency down by the same: nothing to remark."""
    runs = (run("baseline", 1000, 1000, 10), run("candidate", 1000 * 11.23 / 10.73, 500, 10))
    (found,) = occupancy.check(Claim(name="x", runs=runs))
    assert found.severity == "passed"


def test_measured_rate_and_latency_come_first() -> None:
    """Where request rate and latency were measured, nothing is rebuilt."""
    metrics = {"throughput_tok_s": 3055.28, "request_rate_s": 2.9837, "e2e_mean_ms": 161229.0}
    runs = tuple(Run(arm=a, metrics=metrics) for a in ("baseline", "candidate"))
    (found,) = occupancy.check(Claim(name="x", runs=runs))
    assert "baseline: 2.9837 req/s * 161.229 s = 481.1 in flight" in found.arithmetic


def test_unknown_occupancy_counts_when_it_is_required() -> None:
    """Nothing is said without latencies, unless the claim requires them."""
    runs = tuple(Run(arm=a, metrics={"throughput_tok_s": 1.0}) for a in ("baseline", "candidate"))
    assert occupancy.check(Claim(name="x", runs=runs)) == ()
    (found,) = occupancy.check(Claim(name="x", runs=runs, requires=("equal_occupancy",)))
    assert (found.severity, found.short) == ("inconclusive", "occupancy unknown")
    assert "give request rate or throughput, and latency or TTFT and TPOT" in found.sentence


def test_a_nan_latency_is_no_occupancy() -> None:
    """A value that cannot be divided by is left out."""
    runs = (run("baseline", 843.0, float("nan"), 22.0), run("candidate", 843.0, 4606, 22.0))
    assert occupancy.check(Claim(name="x", runs=runs)) == ()


def loaded(arm: str, latency_ms: float, rate: float, **fields: Any) -> Run:
    """One run with its request rate and latency."""
    metrics = {"throughput_tok_s": 100.0 * rate, "e2e_mean_ms": latency_ms, "request_rate_s": rate}
    return Run.model_validate({"arm": arm, "metrics": metrics, **fields})


def test_a_latency_won_by_less_load_is_not_comparable() -> None:
    """Half the requests in flight halve the latency; at a stated arrival rate they are few because each is fast."""
    for settings, severity in (({}, "not comparable"), ({"request_rate": 25.0}, "warning")):
        runs = (loaded("baseline", 4000, 25, resolved=settings), loaded("candidate", 2000, 25, resolved=settings))
        (found,) = occupancy.check(Claim(name="x", metric="e2e_mean_ms", runs=runs))
        assert found.severity == severity


def test_rounds_that_cancel_in_the_mean_are_seen() -> None:
    """One round had the candidate twice as full, the next the baseline."""
    pairs = ((1000, 2000), (2000, 1000))
    runs = tuple(
        loaded(arm, latency, 10, round=n)
        for n, latencies in enumerate(pairs)
        for arm, latency in zip(("baseline", "candidate"), latencies, strict=True)
    )
    (found,) = occupancy.check(Claim(name="x", runs=runs))
    assert (found.severity, found.sentence[:9]) == ("not comparable", "Round 0: ")


def test_more_in_flight_than_the_concurrency_is_a_fault_of_units() -> None:
    """900 requests in flight at concurrency 24: a rate or a latency is in another unit."""
    runs = (loaded("baseline", 90000, 10, concurrency=24), loaded("candidate", 82000, 11, concurrency=24))
    (found,) = occupancy.check(Claim(name="x", runs=runs))
    assert (found.severity, found.short) == ("invalid", "more in flight than the concurrency: units?")
    assert "had 900 requests in flight at concurrency 24" in found.sentence
