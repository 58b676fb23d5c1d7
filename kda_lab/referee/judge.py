"""From a claim to its verdict: all checks, then the gravest finding, then the statistics.

The order is fixed: invalid, not comparable, cold cache, superseded, inconclusive; only what passes these gets the
word of its numbers. The same claim gets the same judgement, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from kda_lab.errors import Reason, RefereeError
from kda_lab.referee.checks import CHECKS, equality, gates, scores, separation
from kda_lab.referee.claim import Claim, Fact
from kda_lab.referee.finding import DECIDING, Finding, Severity
from kda_lab.referee.metrics import METRICS

Verdict = Literal["faster", "slower", "equivalent", "inconclusive", "invalid", "identical", "differs", "not comparable"]
REACHED: tuple[Verdict, ...] = ("faster", "slower", "equivalent", "identical", "differs")
"""Verdicts that answer the claim's question."""


class Judgement(Fact):
    """What became of one claim."""

    name: str
    title: str = ""
    thread: str = ""
    question: str
    metric: str = ""
    """Metric of a speed question; empty for others."""
    verdict: Verdict
    detail: str = ""
    """What stands in the verdict's parentheses: a margin, an MDE, a reason."""
    reasons: tuple[str, ...] = ()
    """Sentences of the findings that decided, the first one first."""
    findings: tuple[Finding, ...] = ()
    numbers: dict[str, float] = Field(default_factory=dict)
    """Results of the check that answers the question: `change_percent`, `p`, `mde_percent`, ..."""

    def __str__(self) -> str:
        return f"{self.verdict}({self.detail})" if self.detail else self.verdict

    @property
    def reached(self) -> bool:
        """Whether the claim's question got an answer."""
        return self.verdict in REACHED

    def of(self, check: str) -> tuple[Finding, ...]:
        """Findings of one check."""
        return tuple(f for f in self.findings if f.check == check)


def judge(claim: Claim) -> Judgement:
    """Judge one claim; nothing in it is changed and nothing is measured."""
    findings = tuple(f for check in CHECKS for f in check(claim))
    decided = next(((s, [f for f in findings if f.severity == s]) for s in DECIDING if _has(findings, s)), None)
    if decided is None:
        verdict, detail, reasons = _answer(claim, findings)
    else:
        severity, found = decided
        verdict, detail = _refusal(severity, found[0])
        reasons = [f.sentence for f in found]
    return Judgement(
        name=claim.name,
        title=claim.title,
        thread=claim.thread,
        question=claim.question,
        metric=claim.metric if claim.question == "speed" else "",
        verdict=verdict,
        detail=detail,
        reasons=tuple(reasons),
        findings=findings,
        numbers=_numbers([f for f in findings if f.check == ANSWERS[claim.question]], reasons),
    )


def judge_all(claims: Iterable[Claim]) -> list[Judgement]:
    """Judge claims in the order given.

    Raises:
        RefereeError: two claims share a name.
    """
    found: dict[str, Judgement] = {}
    for claim in claims:
        if claim.name in found:
            raise RefereeError("referee", [Reason("claim", repr(claim.name), "each name once", f"{claim.source}")])
        found[claim.name] = judge(claim)
    return list(found.values())


ANSWERS = {
    "speed": separation.CHECK,
    "equality": equality.CHECK,
    "score": scores.CHECK,
    "gate": gates.CHECK,
}


def _numbers(mine: list[Finding], reasons: Iterable[str]) -> dict[str, float]:
    """Numbers of the finding that decided, else the first that has any."""
    told = set(reasons)
    return next((f.numbers for f in sorted(mine, key=lambda f: f.sentence not in told) if f.numbers), {})


def _has(findings: tuple[Finding, ...], severity: Severity) -> bool:
    return any(f.severity == severity for f in findings)


def _refusal(severity: Severity, finding: Finding) -> tuple[Verdict, str]:
    if severity == "not comparable":
        return "not comparable", finding.short
    if severity == "inconclusive":
        return "inconclusive", finding.short
    if severity == "superseded":
        return "invalid", f"superseded: {finding.short}"
    return "invalid", finding.short


def _answer(claim: Claim, findings: tuple[Finding, ...]) -> tuple[Verdict, str, list[str]]:
    """The verdict of a claim that no finding stops."""
    mine = [f for f in findings if f.check == ANSWERS[claim.question]]
    if not mine:
        return "inconclusive", "nothing to judge", ["The claim holds no numbers for its question."]
    if claim.question == "speed":
        main = next((f for f in mine if f.severity == "passed"), mine[0])
        return (*_speed(claim, main), [main.sentence])
    # One difference that was seen outweighs any number of agreements elsewhere.
    differing, agreeing = ([f for f in mine if f.severity == s] for s in ("note", "passed"))
    decided = differing or agreeing
    if not decided:
        return "inconclusive", mine[0].short, [f.sentence for f in mine]
    same: Verdict = "identical" if claim.question == "equality" else "equivalent"
    shown = "; ".join(dict.fromkeys(f.short for f in decided))
    return "differs" if differing else same, shown, [f.sentence for f in decided]


def _speed(claim: Claim, main: Finding) -> tuple[Verdict, str]:
    direction = main.numbers.get("direction")
    if direction is None:
        return "inconclusive", main.short
    if direction == 0:
        return "equivalent", main.short
    better = METRICS[claim.metric].better
    if better == "neither":
        return "differs", main.short
    return ("faster" if (direction > 0) == (better == "higher") else "slower"), main.short
