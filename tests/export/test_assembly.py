"""Putting the contract together: what is counted, what is left out, and what the folder holds."""

from __future__ import annotations

from typing import Any

from kda_lab.contracts.model import BenchRow
from kda_lab.export import assembly
from kda_lab.export.evidence import ArchitectureEvidence


def mutant(name: str, killed: bool, applies: bool = True, by: str = "error_fp32") -> dict[str, Any]:
    return {"name": name, "killed": killed, "by": by if killed else "", "applies": applies, "why_not": ""}


def power_of(*captures: list[dict[str, Any]]) -> Any:
    found = ArchitectureEvidence((9, 0), powers=[{"mutants": list(c)} for c in captures])
    return assembly._gate_power({(9, 0): found})


def test_mutant_counts_once_and_must_die_everywhere() -> None:
    """A mutant is one in the total, killed only when it was killed on every capture it applied to."""
    found = power_of([mutant("a", True), mutant("b", True)], [mutant("a", True), mutant("b", False)])
    assert (found.killed, found.total) == (1, 2)
    assert [(m.name, m.killed, m.captures) for m in found.mutants] == [("a", True, 2), ("b", False, 2)]


def test_mutant_that_never_applied_is_listed_and_not_counted() -> None:
    """It is neither killed nor part of the total, but it is not hidden."""
    found = power_of([mutant("a", True), mutant("c", False, applies=False)])
    assert (found.killed, found.total) == (1, 1)
    assert [(m.name, m.captures) for m in found.mutants] == [("a", 1), ("c", 0)]


def bench(baseline: str, ratio: float) -> BenchRow:
    return BenchRow.model_construct(baseline=baseline, ratio=ratio)


def test_headline_has_geomean_minimum_and_count_a_baseline() -> None:
    """All timed rows enter, slower ones too; baselines are not mixed."""
    found = assembly._headlines([bench("slow", 2.0), bench("slow", 0.5), bench("library", 3.0)])
    assert [(h.baseline, round(h.geomean, 12), h.minimum, h.count) for h in found] == [
        ("slow", 1.0, 0.5, 2),
        ("library", 3.0, 3.0, 1),
    ]


def test_tolerances_are_the_largest_limits_that_were_applied() -> None:
    """One tolerance a check and kind of capture, with the check's own words."""
    replays = [
        {"capture_kind": kind, "checks": [{"name": "error_fp32", "limit": limit}]}
        for kind, limit in (("real", 0.002), ("real", 0.003), ("synthetic", 0.005))
    ]
    found = assembly._tolerances("qsa.packed_decode", {(9, 0): ArchitectureEvidence((9, 0), replays=replays)})
    assert [(t.gate, t.limit) for t in found] == [("error_fp32 (real)", 0.003), ("error_fp32 (synthetic)", 0.005)]
    assert found[0].source.startswith("largest limit of 2 replays") and found[0].metric != "error_fp32"
