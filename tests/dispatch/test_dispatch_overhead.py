"""The overhead benchmark runs and measures dispatched calls; its number is judged by the benchmark, not here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kda_lab.dispatch.loader import load_source

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "dispatch_overhead.py"


def test_benchmark_times_calls_that_reach_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every timed call is a hit of the kernel, and what dispatch adds is a positive time."""
    benchmark = load_source(BENCHMARK)
    monkeypatch.setattr(benchmark, "CALLS_PER_BATCH", 50)
    for case in benchmark.cases():
        result = benchmark.measure(4, case)
        assert result["calls"] == 200
        assert 0.0 < result["median_us"] <= result["p90_us"]


@pytest.mark.parametrize(("limit", "code", "word"), [("1e9", 0, "pass"), ("0", 1, "FAIL")])
def test_benchmark_exits_by_its_limit(
    limit: str, code: int, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above the limit the exit code is 1 and the line says FAIL."""
    benchmark = load_source(BENCHMARK)
    monkeypatch.setattr(benchmark, "CALLS_PER_BATCH", 50)
    monkeypatch.setattr(sys, "argv", ["dispatch_overhead.py", "--batches", "4", "--limit-us", limit])
    assert benchmark.main() == code
    assert word in capsys.readouterr().out
