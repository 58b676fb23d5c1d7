"""A/A controls (REF-8) and drift: the baseline against itself, and the baseline beside the candidate.

A control that tells two equal arms apart voids the comparison. One adjacent run cannot be tested; its distance from
the baseline's runs is a lower bound of the drift, and is held against the effect.
"""

from __future__ import annotations

from kda_lab.referee.arms import comparable, judged_mode, rounds_of, runs_of, sides
from kda_lab.referee.claim import Claim, Control
from kda_lab.referee.finding import Finding, signed
from kda_lab.referee.statistics import compare

CHECK = "control"
DRIFT_SHARE = 0.5
"""Share of the effect at which a drift of the baseline voids it."""


def check(claim: Claim) -> tuple[Finding, ...]:
    """Test each A/A control, hold drift against the effect, and look whether the order of runs separates the two."""
    if claim.question != "speed":
        return ()
    judged = [_judge(claim, control) for control in claim.controls]
    found = [f for findings in judged for f in findings]
    empty = [f"{c.arm} repeats {c.repeats}" for c, findings in zip(claim.controls, judged, strict=True) if not findings]
    if empty:
        words = f"A/A control without runs of both arms in the judged mode: {'; '.join(empty)}. It shows nothing."
        found.append(Finding(check=CHECK, severity="warning", short="control without runs", sentence=words))
    if not any(judged) and "control" in claim.requires:
        words = "No A/A control; run the baseline against itself, next to the candidate."
        found.append(Finding(check=CHECK, severity="inconclusive", short="no A/A control", sentence=words))
    return (*found, *_blocked(claim))


def _judge(claim: Claim, control: Control) -> list[Finding]:
    mode = judged_mode(claim)
    base = runs_of(claim, (control.repeats,), claim.metric, mode)
    again = runs_of(claim, (control.arm,), claim.metric, mode)
    cand = runs_of(claim, (claim.candidate,), claim.metric, mode)
    if control.arm == claim.candidate != control.repeats:
        return []
    if control.arm == control.repeats:
        base, again = base[0::2], base[1::2]
    values = [r.metrics[claim.metric] for r in (*base, *again, *cand)]
    if not base or not again or not cand or not comparable(values):
        return []
    found = compare(rounds_of(base, again, claim.metric)[0], claim.margin_percent)
    line = f"A/A {control.arm} against {control.repeats}: {signed(found.change_percent)}, p = {found.p:.3g}"
    if found.word in ("higher", "lower"):
        words = f"The baseline against itself differs by {signed(found.decided_percent)} (p = {found.p:.3g}): drift."
        return [Finding(check=CHECK, severity="invalid", short="A/A failed", sentence=words, arithmetic=(line,))]
    effect = compare(rounds_of(base, cand, claim.metric)[0], claim.margin_percent)
    return [_drift(found.change_percent, effect.change_percent, claim.margin_percent, line)]


def _drift(drift: float, effect: float, margin_percent: float, line: str) -> Finding:
    large = abs(drift) >= DRIFT_SHARE * abs(effect) and abs(drift) > margin_percent / 2
    sentence = f"The control lies {signed(drift)} from the baseline, against an effect of {signed(effect)}."
    return Finding(
        check=CHECK,
        severity="inconclusive" if large else "passed",
        short="drift as large as the effect" if large else "drift is small",
        sentence=sentence,
        arithmetic=(line, f"A/B: {signed(effect)}; drift / effect = {abs(drift / effect) if effect else 0:.2f}"),
        numbers={"drift_percent": drift, "effect_percent": effect},
    )


def _blocked(claim: Claim) -> list[Finding]:
    """Whether one arm ran wholly before the other, with no control beside the later one."""
    base, cand = ([r.order for r in side] for side in sides(claim))
    first, second = [o for o in base if o is not None], [o for o in cand if o is not None]
    if len(first) < 2 or len(second) < 2 or len(first) < len(base) or len(second) < len(cand):
        return []
    if max(first) > min(second) and max(second) > min(first):
        return _always_first(claim)
    words = "One arm ran wholly before the other: a drift looks like an effect. Interleave (A B B A), or add a control."
    return [Finding(check=CHECK, severity="inconclusive", short="blocked order", sentence=words)]


def _always_first(claim: Claim) -> list[Finding]:
    """Whether one arm ran first in every round: a steady drift then moves every pair the same way."""
    base, cand = (
        {r.round: r.order for r in runs_of(claim, (arm,), claim.metric, judged_mode(claim))}
        for arm in (claim.baseline, claim.candidate)
    )
    ahead = [
        left < right
        for n, left in base.items()
        if n is not None and left is not None and (right := cand.get(n)) is not None
    ]
    if len(ahead) < 3 or len(set(ahead)) > 1 or claim.controls:
        return []
    first = claim.baseline if ahead[0] else claim.candidate
    words = f"{first} ran first in all {len(ahead)} rounds: a steady drift looks like an effect. Alternate (A B B A)."
    return [Finding(check=CHECK, severity="warning", short="same arm always first", sentence=words)]
