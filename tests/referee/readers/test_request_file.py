"""Records of single requests, gathered into runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.claim import Run
from kda_lab.referee.readers.request_file import is_request_record, request_runs

PATH = Path("requests.jsonl")


def request(**changes: Any) -> dict[str, Any]:
    """One answered request."""
    record = {"arm": "baseline", "round": 1, "concurrency": 2, "request": 0, "ttft_ms": 100.0, "tpot_ms": 10.0}
    return record | {"input_tokens": 8, "output_tokens": 11, "start_s": 0.0, "end_s": 0.2, "error": ""} | changes


def test_requests_of_a_round_are_one_run() -> None:
    """Means, medians and tails over the answered ones, their samples, and the throughput of the whole round."""
    records = [
        request(),
        request(request=1, ttft_ms=140.0, start_s=0.1, end_s=0.4),
        request(request=2, error="refused"),
    ]
    ((line, fields), (other, _)) = request_runs(PATH, list(enumerate([*records, request(round=2)], 1)))
    run = Run.model_validate(fields)
    assert (line, other, run.arm, run.round, run.concurrency, run.output_tokens) == (1, 4, "baseline", 1, 2, 11)
    assert run.metrics["ttft_mean_ms"] == 120.0
    assert (run.metrics["completed"], run.metrics["failed"]) == (2, 1)
    assert run.metrics["e2e_mean_ms"] == pytest.approx(220)
    assert run.metrics["throughput_tok_s"] == pytest.approx(22 / 0.4)
    assert run.samples["ttft_mean_ms"] == (100.0, 140.0)


@pytest.mark.parametrize(
    ("given_as", "e2e_ms", "tpot_ms"),
    [({"itl_ms": [10.0] * 10}, 200.0, 10.0), ({"e2e_ms": 300.0}, 300.0, 20.0), ({"tpot_ms": 5.0}, 150.0, 5.0)],
)
def test_latency_and_time_per_token_follow_from_each_other(given_as: dict, e2e_ms: float, tpot_ms: float) -> None:
    """Gaps, the whole latency or the time per token: one of them is enough."""
    record = {k: v for k, v in request().items() if k != "tpot_ms"} | given_as
    ((_, fields),) = request_runs(PATH, [(1, record)])
    assert fields["metrics"]["e2e_mean_ms"] == pytest.approx(e2e_ms)
    assert fields["metrics"]["tpot_mean_ms"] == pytest.approx(tpot_ms)


def test_without_clocks_there_is_no_throughput() -> None:
    """It is not made up from latencies."""
    record = {k: v for k, v in request().items() if not k.endswith("_s")}
    ((_, fields),) = request_runs(PATH, [(1, record)])
    assert "throughput_tok_s" not in fields["metrics"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arm": ""}, r"requests\.jsonl:1: arm is ''; allowed: a name"),
        ({"round": [1]}, r"run is .*allowed: arm, round, order"),
        ({"ttft_ms": "x"}, r"ttft_ms is 'x'; allowed: a number"),
        (
            {"output_tokens": None},
            r"output_tokens is missing; allowed: a number\. A request that failed has an `error`",
        ),
        ({"tpot_ms": None}, r"request is no tpot_ms, itl_ms or e2e_ms; allowed: one of them"),
        ({"tpot_ms": None, "itl_ms": 3}, r"itl_ms is 3; allowed: a list of gaps"),
        ({"error": "refused"}, r"requests is none that was answered; allowed: at least one without an error"),
    ],
)
def test_a_wrong_request_is_refused(changes: dict[str, Any], message: str) -> None:
    """The field and the line are named."""
    with pytest.raises(RefereeError, match=message):
        request_runs(PATH, [(1, request(**changes))])


def test_a_request_stands_once() -> None:
    """A file that was appended twice is no longer run."""
    with pytest.raises(RefereeError, match=r"requests\.jsonl:2: request is 0; allowed: each request of a round once"):
        request_runs(PATH, [(1, request()), (2, request())])


@given(st.lists(st.floats(0.1, 1e5), min_size=1, max_size=20))
def test_samples_are_the_requests_in_order(ttfts_ms: list[float]) -> None:
    """Nothing is sorted, rounded or lost, and the mean lies between the ends."""
    records = [(n, request(request=n, ttft_ms=t)) for n, t in enumerate(ttfts_ms)]
    ((_, fields),) = request_runs(PATH, records)
    assert fields["samples"]["ttft_mean_ms"] == ttfts_ms
    assert min(ttfts_ms) * (1 - 1e-9) <= fields["metrics"]["ttft_mean_ms"] <= max(ttfts_ms) * (1 + 1e-9)


def test_other_records_are_no_requests() -> None:
    """A run with metrics is one already."""
    assert is_request_record(request())
    assert not is_request_record({"arm": "a", "metrics": {}, "ttft_ms": 1})
