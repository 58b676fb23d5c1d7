"""Overlap (REF-12): with more than one stream, a sum of kernel durations counts shared time twice; wall does not."""

from __future__ import annotations

from kda_lab.referee.arms import runs_of, typical
from kda_lab.referee.claim import Claim
from kda_lab.referee.finding import Finding, figure, signed

CHECK = "overlap"
SLACK = 1.001
"""Printed values are rounded; a union longer than its wall by less than this is not a fault."""


def check(claim: Claim) -> tuple[Finding, ...]:
    """Compare wall, union and sum of each arm; refuse a verdict on the sum where kernels overlap."""
    arms = (claim.baseline, claim.candidate)
    totals = {a: {m: typical(runs_of(claim, (a,), m, None), m) for m in METRICS_READ} for a in arms}
    if any(totals[a]["summed_kernel_us"] is None for a in arms):
        return ()
    lines = [line for a in arms for line in _lines(a, totals[a])]
    over = [a for a in arms if _overlaps(totals[a])]
    impossible = [a for a in arms if _impossible(totals[a])]
    if impossible:
        words = f"Union, sum and wall of {impossible[0]} contradict: union <= sum and union <= wall must hold."
        return (_finding("invalid", "union exceeds wall or sum", words, lines),)
    summed = _change(totals, "summed_kernel_us")
    if claim.metric == "summed_kernel_us" and over:
        words = f"Kernels of {', '.join(over)} overlap; their sum is no time that anyone waits. Judge the wall time."
        return (_finding("invalid", "sum of overlapping kernels", words, lines),)
    wall = _change(totals, "wall_us")
    if wall is None or summed is None:
        return ()
    lines.append(f"sum {signed(summed)}, wall {signed(wall)}")
    if wall * summed < 0:
        words = f"The sum of durations moves {signed(summed)} while the wall moves {signed(wall)}: the wall counts."
        return (_finding("note", "sum and wall disagree", words, lines),)
    return (_finding("passed", "sum and wall agree", "Sum and wall move the same way.", lines),)


METRICS_READ = ("wall_us", "union_us", "summed_kernel_us", "streams")


def _overlaps(found: dict[str, float | None]) -> bool:
    summed, inner = found["summed_kernel_us"], found["union_us"] or found["wall_us"]
    return (found["streams"] or 1) > 1 or bool(inner and summed and summed > inner * SLACK)


def _impossible(found: dict[str, float | None]) -> bool:
    union, summed, wall = found["union_us"], found["summed_kernel_us"], found["wall_us"]
    return bool(union and ((summed and union > summed * SLACK) or (wall and union > wall * SLACK)))


def _change(totals: dict[str, dict[str, float | None]], metric: str) -> float | None:
    base, cand = (found[metric] for found in totals.values())
    return None if not base or not cand else 100 * (cand / base - 1)


def _lines(arm: str, found: dict[str, float | None]) -> list[str]:
    summed, union, wall = found["summed_kernel_us"], found["union_us"], found["wall_us"]
    parts = [f"{name} {figure(v)} us" for name, v in (("sum", summed), ("union", union), ("wall", wall)) if v]
    lines = [f"{arm}: {', '.join(parts)}"]
    if summed and union:
        lines.append(f"{arm}: overlap {figure(summed)} - {figure(union)} = {figure(summed - union)} us")
    elif summed and wall and summed > wall:
        lines.append(f"{arm}: overlap at least {figure(summed)} - {figure(wall)} = {figure(summed - wall)} us")
    return lines


def _finding(severity: str, short: str, sentence: str, lines: list[str]) -> Finding:
    return Finding.model_validate(
        {"check": CHECK, "severity": severity, "short": short, "sentence": sentence, "arithmetic": tuple(lines)}
    )
