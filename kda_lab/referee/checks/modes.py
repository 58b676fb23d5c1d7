"""Eager and graph (REF-19): two results. A win that is gone under graph capture was dispatch cost."""

from __future__ import annotations

from kda_lab.referee.arms import judged_mode, sides, typical
from kda_lab.referee.claim import Claim
from kda_lab.referee.finding import Finding, figure, signed

CHECK = "modes"
REALISED = 0.5
"""Share of the eager gain that must be left under a graph for the gain to be the kernel's."""


def check(claim: Claim) -> tuple[Finding, ...]:
    """Say which mode the verdict is about, and hold the eager change against the graph's."""
    if claim.question != "speed":
        return ()
    modes = [{r.mode for r in claim.of(arm, claim.metric)} for arm in (claim.baseline, claim.candidate)]
    if not modes[0] or not modes[1]:
        return ()
    if not modes[0] & modes[1]:
        shown = [", ".join(sorted(m or "not stated" for m in found)) for found in modes]
        words = f"{claim.baseline} ran in mode {shown[0]}, {claim.candidate} in mode {shown[1]}. Run both in one mode."
        return (Finding(check=CHECK, severity="not comparable", short="eager against graph", sentence=words),)
    if {"eager", "graph"} <= modes[0] & modes[1]:
        return _both(claim)
    if judged_mode(claim) == "eager":
        words = (
            "Both arms ran eagerly: a change may be dispatch cost, which a graph removes. Measure it in a graph too."
        )
        return (Finding(check=CHECK, severity="warning", short="eager only", sentence=words),)
    return ()


def _both(claim: Claim) -> tuple[Finding, ...]:
    changes, lines = {}, []
    for mode in ("eager", "graph"):
        base, cand = (
            typical(runs, claim.metric) for runs in sides(claim, mode="eager" if mode == "eager" else "graph")
        )
        if base is None or cand is None:
            return ()
        changes[mode] = 100 * (cand / base - 1)
        lines.append(f"{mode}: {figure(cand)} / {figure(base)} - 1 = {signed(changes[mode])}")
    shrinks = changes["eager"] * changes["graph"] <= 0 or abs(changes["graph"]) < REALISED * abs(changes["eager"])
    words = f"{claim.metric} moves {signed(changes['eager'])} eagerly, {signed(changes['graph'])} in a graph; "
    words += "the eager change is mostly dispatch cost." if shrinks else "the change stays under a graph."
    return (
        Finding(
            check=CHECK,
            severity="warning" if shrinks else "note",
            short="dispatch cost" if shrinks else "verdict is for graph mode",
            sentence=f"{words} The verdict is about the graph.",
            arithmetic=tuple(lines),
            numbers={f"{m}_change_percent": v for m, v in changes.items()},
        ),
    )
