"""Superseded numbers (REF-10): every number is bound to a commit; those of an earlier one do not count."""

from __future__ import annotations

from kda_lab.referee.arms import baseline_arms
from kda_lab.referee.claim import Claim, Run, Score
from kda_lab.referee.finding import Finding

CHECK = "superseded"
SHORTEST = 7
"""Characters from which the beginning of a hash stands for it."""


def check(claim: Claim) -> tuple[Finding, ...]:
    """Find runs and scores that were replaced, taken at another commit, or mixed within an arm."""
    entries: list[Run | Score] = [*claim.runs, *claim.scores]
    old = [e for e in entries if e.superseded]
    live = [e for e in entries if not e.superseded]
    found = []
    for arm in dict.fromkeys((*baseline_arms(claim), claim.candidate)):
        commits = _distinct({e.commit for e in live if e.arm == arm and e.commit})
        if len(commits) > 1:
            words = f"Numbers of {arm} come from {len(commits)} commits: {', '.join(commits)}. Keep those of one."
            found.append(_finding("invalid", "mixed commits", words))
    stale = sorted(
        {e.commit for e in live if e.arm == claim.candidate and e.commit and not _same(e.commit, claim.commit)}
    )
    if claim.commit and stale:
        words = f"The candidate's numbers are of {', '.join(stale)}, judged is {claim.commit}. Measure that one."
        found.append(_finding("superseded", "taken before the final commit", words))
    replaced = [
        (word, arm)
        for word, arm in (("baseline", claim.baseline), ("candidate", claim.candidate))
        if any(e.arm == arm for e in old) and not any(e.arm == arm for e in live)
    ]
    for word, arm in replaced:
        words = f"All numbers of the {word} ({arm}) were superseded. Measure it again."
        short = "every number was replaced" if arm == claim.candidate else "every number of the baseline was replaced"
        found.append(_finding("superseded", short, words))
    if old and not replaced:
        found.append(_finding("note", "superseded numbers left out", f"{len(old)} superseded numbers are left out."))
    return tuple(found)


def _same(one: str, other: str) -> bool:
    """Whether two hashes name one commit: equal, or one the beginning of the other, as Git shortens them."""
    short, long = sorted((one.lower(), other.lower()), key=len)
    return short == long or (len(short) >= SHORTEST and long.startswith(short))


def _distinct(commits: set[str]) -> list[str]:
    """One name a commit, its longest."""
    kept: list[str] = []
    for commit in sorted(commits, key=lambda c: (-len(c), c)):
        if not any(_same(commit, k) for k in kept):
            kept.append(commit)
    return sorted(kept)


def _finding(severity: str, short: str, sentence: str) -> Finding:
    return Finding.model_validate({"check": CHECK, "severity": severity, "short": short, "sentence": sentence})
