"""Counters: bounded, resettable, printed in a table."""

from __future__ import annotations

import logging

import pytest

from kda_lab.dispatch.statistics import OTHERS, REFUSALS_KEPT, Counters, Statistics


def test_refusals_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """After the kept number of distinct refusals the rest is counted under one name and logged once."""
    counters = Counters()
    with caplog.at_level(logging.WARNING, logger="kda_lab.dispatch"):
        for i in range(REFUSALS_KEPT + 10):
            counters.miss(f"refusal {i}", "raised").count += 1
    misses = counters.snapshot(0).misses
    assert len(misses) == REFUSALS_KEPT + 1
    assert misses[OTHERS] == 10
    assert len(caplog.records) == REFUSALS_KEPT + 1
    assert caplog.records[-1].getMessage() == "other refusals: only counted from now on"


def test_known_refusal_is_still_counted_by_name_when_full() -> None:
    """A refusal that was seen before the limit keeps its own count."""
    counters = Counters()
    for i in range(REFUSALS_KEPT + 1):
        counters.miss(f"refusal {i}", "raised")
    counters.miss("refusal 3", "raised").count += 1
    assert counters.snapshot(0).misses == {"refusal 3": 1}


def test_a_tally_outlives_a_reset() -> None:
    """A selection that keeps its tally counts into the same place after a reset."""
    counters = Counters()
    tally = counters.hit("op", "alpha")
    tally.count += 5
    counters.reset()
    tally.count += 1
    assert counters.hit("op", "alpha") is tally
    assert counters.snapshot(7) == Statistics({"op: alpha": 1}, {}, {}, 7)


def test_statistics_print_as_a_table() -> None:
    """Counts stand right-aligned before what they count; nothing counted is said in words."""
    text = str(Statistics({"op: alpha": 12}, {"op: plain": 3}, {"op: x is 1; allowed: 2.": 4}, 1))
    assert text.splitlines() == [
        "        12  hit       op: alpha",
        "         3  fallback  op: plain",
        "         4  miss      op: x is 1; allowed: 2.",
    ]
    assert str(Statistics({}, {}, {}, 0)) == "no call was dispatched"


def test_a_fallback_is_logged_once_with_its_reasons(caplog: pytest.LogCaptureFixture) -> None:
    """The first call says which fallback runs and why; later ones are counted under their reasons, and not logged."""
    counters = Counters()
    with caplog.at_level(logging.INFO, logger="kda_lab.dispatch"):
        for reason in ("op: x is 1; allowed: 2.", "op: x is 3; allowed: 2."):
            counters.miss(reason, "fallback plain").count += 1
            counters.fallback("op", "plain", reason).count += 1
    assert [r.getMessage() for r in caplog.records] == ["op: fallback plain runs, because op: x is 1; allowed: 2."]
    snapshot = counters.snapshot(0)
    assert snapshot.fallbacks == {"op: plain": 2}
    assert snapshot.misses == {
        "op: x is 1; allowed: 2. -> fallback plain": 1,
        "op: x is 3; allowed: 2. -> fallback plain": 1,
    }
