"""Values (the floor under every other check): both arms are there, and each number can be divided by."""

from __future__ import annotations

from collections import Counter

import scipy.stats

from kda_lab.referee.arms import comparable, sides, usable
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.finding import Finding
from kda_lab.referee.statistics import ALPHA, LARGEST_FACTOR

CHECK = "values"
MOST_FAILED = 0.05
"""Share of an arm's requests that may fail before what is left is another load."""


def check(claim: Claim) -> tuple[Finding, ...]:
    """Refuse missing arms, NaN, zero and negative values, and a run that stands twice."""
    if claim.question != "speed":
        return ()
    found = []
    for arm in (claim.baseline, claim.candidate):
        if not any(r.arm == arm for r in claim.runs):
            found.append(_invalid("missing arm", f"No run of the arm {arm!r}; both arms are needed."))
        elif not any(r.arm == arm and claim.metric in r.metrics for r in claim.runs):
            found.append(_invalid("metric missing", f"No run of {arm!r} carries {claim.metric}."))
    judged = [r for side in sides(claim) for r in side]
    for run in judged:
        value = run.metrics[claim.metric]
        if not usable(value):
            word = "zero" if value == 0 else "NaN" if value != value else "not positive and finite"
            sentence = f"{claim.metric} of {run.arm} is {value!r}; allowed: positive and finite. {run.source}".strip()
            found.append(_invalid(f"{'baseline ' if run.arm != claim.candidate else ''}value is {word}", sentence))
    numbers = [r.metrics[claim.metric] for r in judged]
    if all(usable(v) for v in numbers) and not comparable(numbers):
        words = f"{claim.metric} runs from {min(numbers):g} to {max(numbers):g}; allowed: within a factor {LARGEST_FACTOR:g}."
        found.append(_invalid("values too far apart", f"{words} Give every run in one unit."))
    return (*found, *_duplicates(claim), *_failures(claim))


def _failures(claim: Claim) -> list[Finding]:
    arms = {arm: claim.of(arm) for arm in (claim.baseline, claim.candidate)}
    counts = {arm: sum(r.metrics.get("failed", 0.0) for r in runs) for arm, runs in arms.items()}
    if not any(count > 0 for count in counts.values()):
        return []
    lost = _lost(claim, arms)
    if lost:
        return [Finding(check=CHECK, severity="not comparable", short="requests failed", sentence=lost)]
    words = ", ".join(f"{count:g} of {arm}" for arm, count in counts.items())
    sentence = f"Requests failed: {words}. What did not finish is in no latency; find out why."
    return [Finding(check=CHECK, severity="warning", short="requests failed", sentence=sentence)]


def _lost(claim: Claim, arms: dict[str, tuple[Run, ...]]) -> str:
    """Why the arms did not do the same work: too many failures, or other shares of them; empty where they did."""
    counted = {}
    for arm, runs in arms.items():
        known = [r for r in runs if "completed" in r.metrics and r.metrics["completed"] >= 0]
        failed, done = (round(sum(r.metrics.get(m, 0.0) for r in known)) for m in ("failed", "completed"))
        if failed + done > 0:
            counted[arm] = (failed, done)
    words = ", ".join(f"{failed} of {failed + done} of {arm}" for arm, (failed, done) in counted.items())
    if any(failed > MOST_FAILED * (failed + done) for failed, done in counted.values()):
        return f"Requests failed: {words}; allowed: {100 * MOST_FAILED:g} %. The arms did not serve the same requests."
    if len(counted) == 2 and float(scipy.stats.fisher_exact(list(counted.values())).pvalue) <= ALPHA:
        return f"Requests failed: {words}: not the same share. The arms did not serve the same requests."
    return ""


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
