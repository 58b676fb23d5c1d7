"""A cell's numbers on requests with known answers, and the words for what failed."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.referee.metrics import METRICS
from kda_lab.referee.serving.load import Measured
from kda_lab.referee.serving.stream import Outcome
from kda_lab.referee.serving.summary import failure_of, metrics_of, notes_of, samples_of, statistics


def answered(index: int, ttft_ms: float, tpot_ms: float, tokens: int = 11) -> Outcome:
    """A request with even gaps."""
    e2e_ms = ttft_ms + tpot_ms * (tokens - 1)
    gaps = (tpot_ms,) * (tokens - 1)
    return Outcome(index, 0.0, "", "", ttft_ms, e2e_ms, tpot_ms, gaps, 8, tokens)


def cell(*outcomes: Outcome, wall_s: float = 2.0, lag_ms: tuple[float, ...] = (), failure: str = "") -> Measured:
    """A measured cell."""
    return Measured(0.0, list(outcomes), wall_s, list(lag_ms), {}, failure)


def test_rates_and_means_of_two_requests() -> None:
    """Tokens and requests over the wall time; times over the requests."""
    found = metrics_of(cell(answered(0, 10, 5), answered(1, 30, 7)))
    assert (found["throughput_tok_s"], found["request_rate_s"], found["duration_s"]) == (11.0, 1.0, 2.0)
    assert (found["ttft_mean_ms"], found["tpot_mean_ms"], found["e2e_mean_ms"]) == (20.0, 6.0, 80.0)
    assert (found["itl_median_ms"], found["completed"], found["failed"]) == (6.0, 2.0, 0.0)
    assert set(found) <= set(METRICS)


def test_a_failed_cell_keeps_counts_and_no_rates() -> None:
    """A rate over the requests that survived compares with nothing."""
    lost = Outcome(1, 0.0, "http 500", "boom")
    assert metrics_of(cell(answered(0, 10, 5), lost)) == {"completed": 1.0, "failed": 1.0}


def test_failures_are_counted_by_kind() -> None:
    """The words of a failed cell: how many, of which kind, and the first details."""
    lost = [Outcome(n, 0.0, kind, detail) for n, (kind, detail) in enumerate([("timeout", "t"), ("http 500", "b"), ("timeout", "t")])]  # fmt: skip
    assert failure_of(cell(answered(3, 10, 5), *lost)) == "3 of 4 requests failed: 1 http 500, 2 timeout (t; b)"
    assert failure_of(cell(answered(0, 10, 5))) == ""
    assert failure_of(cell(failure="no model")) == "no model"
    assert failure_of(cell()) == "no request was sent"


def test_notes_say_what_a_reader_must_know() -> None:
    """Short answers, tokens counted by events, and a client too busy to measure."""
    by_events = Outcome(1, 0.0, "", "", 10.0, 60.0, 5.0, (), None, 11, "events")
    notes = notes_of(cell(answered(0, 10, 5, tokens=3), by_events, lag_ms=(0.1, 4.0)), 11)
    assert notes[0] == "1 of 2 answers are not 11 tokens long"
    assert notes[1] == "1 of 2 answers came without usage: tokens counted by events"
    assert notes[2].startswith("this client woke up to 4.0 ms late (p99) at 5.0 ms a token")
    assert notes_of(cell(answered(0, 10, 5), lag_ms=(0.1, 0.2)), 11) == ()


def test_samples_leave_out_what_was_not_measured() -> None:
    """A request of one token has no time per token; failed requests have no times."""
    one = Outcome(0, 0.0, "", "", 10.0, 10.0, None, (), 8, 1)
    assert samples_of([one, Outcome(1, 0.0, "timeout")]) == {"ttft": [10.0], "tpot": [], "e2e": [10.0]}


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=30))
def test_statistics_stand_in_order(values: list[float]) -> None:
    """Median, 90th, 95th and 99th percentile rise, and all lie within the values."""
    found = statistics("ttft", values)
    rising = [min(values), *(found[f"ttft_{p}_ms"] for p in ("median", "p90", "p95", "p99")), max(values)]
    assert all(a <= b or math.isclose(a, b) for a, b in pairwise(rising))
    assert found["ttft_mean_ms"] == pytest.approx(sum(values) / len(values))
    assert statistics("ttft", []) == {}
