"""Coverage (REF-14): a run on one machine validates no other, and a skipped test is not a passed one."""

from __future__ import annotations

from kda_lab.referee.claim import Claim, Coverage
from kda_lab.referee.finding import Finding

CHECK = "coverage"


def check(claim: Claim) -> tuple[Finding, ...]:
    """One finding for each set of tests."""
    return tuple(_judge(item) for item in claim.coverage)


def _judge(item: Coverage) -> Finding:
    counted = f"{item.passed} passed, {item.failed} failed, {item.skipped} skipped on {item.ran_on}"
    faults = []
    if item.failed:
        faults.append("tests failed")
    if item.claimed_for and item.claimed_for != item.ran_on:
        faults.append(f"nothing was run on {item.claimed_for}")
    if item.passed == 0:
        faults.append("no test passed")
    if item.runs_the_change is False:
        faults.append("the changed code was not run: this does not cover it")
    if item.skipped:
        faults.append("skips are no passes")
    serious = [f for f in faults if f != "skips are no passes"]
    severity = "warning" if serious else "note" if faults or item.runs_the_change is None else "passed"
    words = f"{item.name}: {counted}" + (f"; {'; '.join(faults)}" if faults else "")
    short = serious[0] if serious else "skips counted apart"
    return Finding.model_validate({"check": CHECK, "severity": severity, "short": short, "sentence": f"{words}."})
