"""Every suite on values passes a right arm and fails one with the very mistake it is there for."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kda_lab.suites import qsa_values
from kda_lab.suites.suite import Suite, run_suite

# Suite to the arms that it must fail.
MISTAKES = {
    "known_shapes": ("scale_omitted", "raises"),
    "every_batch": ("batch_offset", "tail_mask"),
    "padded_rows": ("padding_as_empty", "sixteen_heads"),
    "empty_rows": ("empty_row_nan", "untouched"),
    "guard_bands": ("sixteen_heads", "half_width_output", "tail_mask"),
    "permutations": ("last_row_dropped", "batch_offset"),
    "shifts": ("sink",),
    "analytic": ("keys_as_values", "all_zero"),
    "ranks_agree": ("head_map",),
}
CASES = 6


def run(bench_of: Any, name: str, arm: str) -> Any:
    """The first cases of a suite on an arm: the clock ticks once a case."""
    ticks = itertools.count()
    return run_suite(Suite(name, "", getattr(qsa_values, name)), bench_of(arm), CASES, clock=lambda: next(ticks))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_right_arm_passes(bench_of: Any, name: str) -> None:
    """No fault in any case that was run."""
    found = run(bench_of, name, "right")
    assert found.faults == () and found.passed and found.launches >= found.cases


@pytest.mark.parametrize(("name", "arm"), [(name, arm) for name, arms in MISTAKES.items() for arm in arms])
def test_the_mistake_is_found(bench_of: Any, name: str, arm: str) -> None:
    """The wrong arm fails with a fault in words."""
    found = run(bench_of, name, arm)
    assert not found.passed and found.faults


def test_batches_are_all_of_them(bench_of: Any) -> None:
    """1 to 128 on both topologies, and the thread's rows in order of their size."""
    bench = bench_of("right")
    names = [case.name for case in qsa_values.every_batch(bench)]
    assert len(names) == 256 and names[0] == "tp1-B1" and names[-1] == "tp2-B128"
    shapes = [case.name for case in qsa_values.known_shapes(bench)]
    assert len(shapes) == 12 and shapes[0] == "12/1: 1" and shapes[-1].startswith("24/2: ")


def test_constant_values_may_not_drift(bench_of: Any) -> None:
    """2^-8 of the constant is allowed to a rounded P, and a scale of two is far outside."""
    right = qsa_values._constant(bench_of("right"))
    assert right.fault == "" and right.note.startswith("largest deviation")
    assert "allowed: 0.00390625" in qsa_values._constant(bench_of("all_zero")).fault


def test_symmetries_say_whether_bits_agree(bench_of: Any) -> None:
    """Rows that are computed one by one give the same bits in any order."""
    found = run(bench_of, "permutations", "right")
    assert any(note.endswith("same bits") for note in found.notes)
