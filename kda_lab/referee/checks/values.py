"""Values (the floor under every other check): both arms are there, and each number can be divided by."""

from __future__ import annotations

from collections import Counter

from kda_lab.referee.arms import baseline_arms, usable
from kda_lab.referee.claim import Claim
from kda_lab.referee.finding import Finding

CHECK = "values"


def check(claim: Claim) -> tuple[Finding, ...]:
    """Refuse missing arms, NaN, zero and negative values, and a run that stands twice."""
    if claim.question != "speed":
        return ()
    arms = (*baseline_arms(claim), claim.candidate)
    found = []
    for arm in (claim.baseline, claim.candidate):
        if not any(r.arm == arm for r in claim.runs):
            found.append(_invalid("missing arm", f"No run of the arm {arm!r}; both arms are needed."))
        elif not any(r.arm == arm and claim.metric in r.metrics for r in claim.runs):
            found.append(_invalid("metric missing", f"No run of {arm!r} carries {claim.metric}."))
    for run in claim.runs:
        value = run.metrics.get(claim.metric, 1.0)
        if run.arm in arms and not usable(value):
            word = "zero" if value == 0 else "NaN" if value != value else "not positive and finite"
            sentence = f"{claim.metric} of {run.arm} is {value!r}; allowed: positive and finite. {run.source}".strip()
            found.append(_invalid(f"{'baseline ' if run.arm != claim.candidate else ''}value is {word}", sentence))
    return (*found, *_duplicates(claim), *_failures(claim))


def _failures(claim: Claim) -> list[Finding]:
    counts = {
        arm: sum(r.metrics.get("failed", 0.0) for r in claim.of(arm)) for arm in (claim.baseline, claim.candidate)
    }
    if not any(count > 0 for count in counts.values()):
        return []
    words = ", ".join(f"{count:g} of {arm}" for arm, count in counts.items())
    sentence = f"Requests failed: {words}. What did not finish is in no latency; find out why."
    return [Finding(check=CHECK, severity="warning", short="requests failed", sentence=sentence)]


def _duplicates(claim: Claim) -> list[Finding]:
    repeated_within = {c.arm for c in claim.controls if c.arm == c.repeats}
    placed = Counter(
        (r.arm, r.round, r.mode)
        for r in claim.runs
        if r.round is not None and not r.superseded and claim.metric in r.metrics and r.arm not in repeated_within
    )
    ordered = Counter(r.order for r in claim.runs if r.order is not None and not r.superseded)
    twice = [f"round {key[1]} of {key[0]}" for key, count in placed.items() if count > 1]
    twice += [f"place {order} in the order" for order, count in ordered.items() if count > 1]
    if not twice:
        return []
    return [
        _invalid("duplicated run", f"Given more than once: {', '.join(twice)}. Remove the copies, or name a control.")
    ]


def _invalid(short: str, sentence: str) -> Finding:
    return Finding(check=CHECK, severity="invalid", short=short, sentence=sentence)
