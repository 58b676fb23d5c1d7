"""The list of suites: names once, a sentence each, and cases for every one."""

from __future__ import annotations

from typing import Any

from kda_lab.suites.qsa_packed_decode import SUITES


def test_suites_have_names_sentences_and_cases(bench_of: Any) -> None:
    """Each name once, each with what must hold, each with at least one case."""
    assert len({s.name for s in SUITES}) == len(SUITES) == 17
    assert all(s.what.endswith(".") for s in SUITES)
    assert all(s.cases(bench_of("right")) for s in SUITES)


def test_only_what_needs_a_gpu_is_left_to_it() -> None:
    """Streams, memory and the profiler."""
    assert [s.name for s in SUITES if s.needs_gpu] == ["two_graphs", "flat_memory", "one_activity"]
