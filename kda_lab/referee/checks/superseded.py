"""Superseded numbers (REF-10): every number is bound to a commit; those of an earlier one do not count."""

from __future__ import annotations

from kda_lab.referee.arms import baseline_arms
from kda_lab.referee.claim import Claim, Run, Score
from kda_lab.referee.finding import Finding

CHECK = "superseded"


def check(claim: Claim) -> tuple[Finding, ...]:
    """Find runs and scores that were replaced, taken at another commit, or mixed within an arm."""
    entries: list[Run | Score] = [*claim.runs, *claim.scores]
    old = [e for e in entries if e.superseded]
    live = [e for e in entries if not e.superseded]
    found = []
    for arm in dict.fromkeys((*baseline_arms(claim), claim.candidate)):
        commits = sorted({e.commit for e in live if e.arm == arm and e.commit})
        if len(commits) > 1:
            words = f"Numbers of {arm} come from {len(commits)} commits: {', '.join(commits)}. Keep those of one."
            found.append(_finding("invalid", "mixed commits", words))
    stale = sorted({e.commit for e in live if e.arm == claim.candidate and e.commit and e.commit != claim.commit})
    if claim.commit and stale:
        words = f"The candidate's numbers are of {', '.join(stale)}, judged is {claim.commit}. Measure that one."
        found.append(_finding("superseded", "taken before the final commit", words))
    if old and not any(e.arm == claim.candidate for e in live):
        found.append(
            _finding("superseded", "every number was replaced", "All numbers of the candidate were superseded.")
        )
    elif old:
        found.append(_finding("note", "superseded numbers left out", f"{len(old)} superseded numbers are left out."))
    return tuple(found)


def _finding(severity: str, short: str, sentence: str) -> Finding:
    return Finding.model_validate({"check": CHECK, "severity": severity, "short": short, "sentence": sentence})
