"""Throughput rebuilt from TTFT and TPOT."""

from __future__ import annotations

import pytest

from kda_lab.referee.checks import rebuilt
from kda_lab.referee.claim import Claim, Run


def claim(seen: float = 98.70, concurrency: int = 1) -> Claim:
    """The kernel thread's cold pass: 256 tokens, one request in flight."""
    rows = (("baseline", 105.42, 266.0), ("candidate", seen, 438.0))
    runs = tuple(
        Run(
            arm=arm,
            concurrency=concurrency,
            output_tokens=256,
            metrics={"throughput_tok_s": value, "ttft_mean_ms": ttft, "tpot_mean_ms": 8.47},
        )
        for arm, value, ttft in rows
    )
    return Claim(name="x", runs=runs)


def test_the_parts_give_the_whole() -> None:
    """105.53 and 98.54 predicted, 105.42 and 98.70 measured: the deficit is the first token's."""
    (found,) = rebuilt.check(claim())
    assert found.severity == "passed"
    assert "256 / (266 ms + 255 * 8.47 ms) = 105.53 tok/s, measured 105.42, residual -0.10 %" in found.arithmetic[0]
    assert "256 / (438 ms + 255 * 8.47 ms) = 98.54 tok/s, measured 98.7, residual +0.16 %" in found.arithmetic[1]
    assert "the change lies in the first token" in found.sentence
    assert found.numbers["ttft_change_ms"] == 172.0


def test_parts_that_miss_the_whole_are_remarked() -> None:
    """A residual above 1 % says that something else takes time."""
    (found,) = rebuilt.check(claim(seen=90.0))
    assert (found.severity, "The parts miss the measured throughput by -8.67 %" in found.sentence) == ("warning", True)


def test_only_one_request_in_flight_can_be_rebuilt() -> None:
    """At higher concurrency the parts do not add up to throughput; that is the occupancy's business."""
    assert rebuilt.check(claim(concurrency=24)) == ()


def test_the_formula() -> None:
    """One token needs the first only; two in flight double the rate."""
    assert rebuilt.predicted_tok_s(1, 500.0, 10.0) == pytest.approx(2.0)
    assert rebuilt.predicted_tok_s(11, 500.0, 50.0, concurrency=2) == pytest.approx(22.0)
