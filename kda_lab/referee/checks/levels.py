"""Levels (REF-13): what is saved in a kernel bounds what is saved in the slice, the graph and the step around it.

The realised fraction is the outer saving over the inner savings that it contains. Above 1 the inner level does not
explain the outer one: something else changed, or one of the two was measured differently.
"""

from __future__ import annotations

from kda_lab.referee.claim import Claim, Level
from kda_lab.referee.finding import Finding, figure

CHECK = "levels"
ALLOWED = 1.1
"""Realised fraction up to which rounding and noise explain an outer saving above the inner one."""


def realised(inner: Level, outer: Level) -> float | None:
    """Outer saving over the inner savings in it; None where the inner level saves nothing."""
    saved = (inner.baseline_us - inner.candidate_us) * inner.per_next
    return (outer.baseline_us - outer.candidate_us) / saved if saved > 0 else None


def check(claim: Claim) -> tuple[Finding, ...]:
    """One finding for each pair of neighbouring levels."""
    return tuple(_pair(inner, outer) for inner, outer in zip(claim.levels, claim.levels[1:], strict=False))


def _pair(inner: Level, outer: Level) -> Finding:
    one = inner.baseline_us - inner.candidate_us
    whole = outer.baseline_us - outer.candidate_us
    lines: tuple[str, ...] = (
        f"{inner.name}: {figure(inner.baseline_us, 8)} - {figure(inner.candidate_us, 8)} = {figure(one)} us, "
        f"* {figure(inner.per_next)} = {figure(one * inner.per_next)} us in one {outer.name}",
        f"{outer.name}: {figure(outer.baseline_us, 8)} - {figure(outer.candidate_us, 8)} = {figure(whole)} us",
    )
    share = realised(inner, outer)
    if share is None:
        severity = "warning" if whole > 0 else "note"
        sentence = f"{inner.name} saves nothing; {outer.name} saves {figure(whole)} us that it does not explain."
        numbers: dict[str, float] = {}
    else:
        numbers = {"realised_percent": 100 * share}
        lines = (*lines, f"realised: {figure(whole)} / {figure(one * inner.per_next)} = {100 * share:.0f} %")
        if share > ALLOWED:
            severity = "warning"
            sentence = f"{inner.name} explains {100 / share:.0f} % of what {outer.name} saves; the rest is unexplained."
        elif share < 0:
            severity, sentence = "warning", f"{inner.name} saves time, {outer.name} loses {figure(-whole)} us."
        else:
            severity, sentence = "note", f"{100 * share:.0f} % of what {inner.name} saves arrives in {outer.name}."
    short = "outer saving unexplained" if severity == "warning" else "realised fraction"
    return Finding.model_validate(
        {
            "check": CHECK,
            "severity": severity,
            "short": short,
            "sentence": sentence,
            "arithmetic": lines,
            "numbers": numbers,
        }
    )
