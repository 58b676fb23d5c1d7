"""Suites on graphs, counters and streams: each fails the arm with its mistake; the GPU's own are judged by parts here."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.suites import qsa_lifetime
from kda_lab.suites.suite import Suite, run_suite
from kda_lab.timing.activity import Activity

CASES = {"alternating_batches": 3}
"""Cases that are run, where it is not one: a batch of one has no offset to get wrong."""
MISTAKES = {
    "graph_lengths": ("lengths_baked",),
    "lengths_each_replay": ("lengths_baked", "counting"),
    "alternating_batches": ("batch_offset", "counting"),
    "counters": ("counting", "counter_kept"),
    "stressed_captures": ("drifting", "counting", "raises"),
}


def run(bench_of: Any, name: str, arm: str) -> Any:
    """The first cases of a suite on an arm: the clock ticks once a case."""
    ticks = itertools.count()
    return run_suite(
        Suite(name, "", getattr(qsa_lifetime, name)), bench_of(arm), CASES.get(name, 1), clock=lambda: next(ticks)
    )


@pytest.mark.parametrize("name", MISTAKES)
def test_a_right_arm_passes(bench_of: Any, name: str) -> None:
    """No fault in any case that was run."""
    found = run(bench_of, name, "right")
    assert found.faults == () and found.passed and found.launches > found.cases - 1


@pytest.mark.parametrize(("name", "arm"), [(name, arm) for name, arms in MISTAKES.items() for arm in arms])
def test_the_mistake_is_found(bench_of: Any, name: str, arm: str) -> None:
    """The wrong arm fails with a fault in words."""
    found = run(bench_of, name, arm)
    assert not found.passed and found.faults


def test_the_walk_changes_lengths_every_time(bench_of: Any) -> None:
    """Fifty different ends, ascending, within the rows that are there; the next case has others."""
    walk = qsa_lifetime._Walk(bench_of("right"))
    call = walk.bench.call((20, 7), (24, 2), guard_rows=0)
    first = walk._ends(call)
    walk.step = 1
    assert len({tuple(e.tolist()) for e in first}) > 25 and len(first) == 50
    assert all(e.tolist() == sorted(e.tolist()) and 0 <= int(e[-1]) <= 27 for e in first)
    assert [e.tolist() for e in walk._ends(call)] != [e.tolist() for e in first]


def bench_with(bench_of: Any, words: str, arm: str = "right") -> Any:
    """A bench whose arm has a contract with these words on overlapping launches."""
    bench = bench_of(arm)
    declaration = SimpleNamespace(state=SimpleNamespace(concurrency=words), kernels_per_call=1)
    object.__setattr__(bench.arm, "declaration", declaration)
    return bench


@pytest.mark.parametrize(
    ("streams", "wrong", "words", "fault", "note"),
    [
        (1, 0, "", "", ""),
        (1, 2, "replays must not overlap", "2 of 9 rounds gave other bits; allowed: 0", ""),
        (2, 0, "any", "", "right in 9 rounds on two streams; the contract allows it"),
        (2, 0, "replays must not overlap", "", "right in 9 rounds on two streams; the contract forbids it"),
        (2, 2, "replays must not overlap", "", "2 of 9 rounds gave other bits, which the contract forbids"),
        (2, 2, "any", "2 of 9 rounds gave other bits; allowed: 0, or a contract whose", ""),
    ],
)
def test_graphs_that_overlap_are_right_or_forbidden(
    bench_of: Any, streams: int, wrong: int, words: str, fault: str, note: str
) -> None:
    """On one stream always right; on two the contract decides, and what was seen is recorded."""
    found = qsa_lifetime._judge_overlap(bench_with(bench_of, words), streams, wrong, 9)
    assert found.fault.startswith(fault) and bool(found.fault) == bool(fault) and found.note == note


def test_state_left_by_graphs_that_overlapped_is_a_finding(bench_of: Any) -> None:
    """A counter that stays is as wrong as other bits."""
    bench = bench_with(bench_of, "any", "counting")
    bench.arm.count.fill_(1)
    assert "state is not zero" in qsa_lifetime._judge_overlap(bench, 2, 0, 9).fault
    assert "state is not zero" in qsa_lifetime._judge_overlap(bench, 1, 0, 9).fault


@pytest.mark.parametrize(
    ("kernels", "fault"),
    [
        ({"_kernel": 1}, ""),
        ({"_kernel": 1, "Memset": 1}, "2 activities a call, {'_kernel': 1, 'Memset': 1}; allowed: 1"),
        (None, "nothing was seen: no CUPTI"),
    ],
)
def test_a_call_is_one_activity(bench_of: Any, monkeypatch: pytest.MonkeyPatch, kernels: Any, fault: str) -> None:
    """A copy or a fill counts too, and a profiler that saw nothing is no proof."""
    seen = Activity(kernels, "" if kernels else "no CUPTI")
    monkeypatch.setattr(qsa_lifetime, "profile_call", lambda launch, device: seen)
    assert qsa_lifetime._profiled(bench_of("right"), (12, 1), (3,)).fault == fault


@pytest.mark.parametrize("grown", [0, 512])
def test_memory_that_grows_is_a_fault(bench_of: Any, monkeypatch: pytest.MonkeyPatch, grown: int) -> None:
    """Bytes after a thousand launches against bytes before them."""
    readings = iter([100, 100 + grown])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(readings))
    bench = bench_of("right")
    launched: list[int] = []
    found = qsa_lifetime._flat(bench, (12, 1), (3,), lambda call: lambda: launched.append(1))
    assert found.fault == (f"memory grew by {grown} bytes in 1000 launches; allowed: 0" if grown else "")
    assert len(launched) == 1003


def test_gpu_suites_plan_their_cases_without_a_gpu(bench_of: Any) -> None:
    """Both topologies, one stream and two, eager and graph."""
    bench = bench_of("right")
    assert len(qsa_lifetime.two_graphs(bench)) == 8
    assert len(qsa_lifetime.flat_memory(bench)) == 6
    assert len(qsa_lifetime.one_activity(bench)) == 12


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["two_graphs", "flat_memory", "one_activity"])
def test_gpu_suites_pass_a_baseline(bench_of: Any, name: str) -> None:
    """The per-head kernel keeps no state, so its graphs may overlap."""
    bench = bench_of("right")
    bench.arm, bench.device = bench.op.baselines.ARMS[0], torch.device("cuda", 0)
    found = run_suite(Suite(name, "", getattr(qsa_lifetime, name), True), bench, 5.0)
    assert found.faults == () and found.passed
