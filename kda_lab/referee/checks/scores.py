"""Scores (REF-9): a percentage must be k of n for the n that is declared, and n bounds what can be seen.

Right answers are counted, so their noise is known without repeating anything: binomial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy.stats

from kda_lab.referee.claim import Claim, Score
from kda_lab.referee.finding import Finding
from kda_lab.referee.statistics import ALPHA, POWER

CHECK = "scores"
SEARCHED = (0.9, 1.06)
"""Denominators tried, as shares of the declared one."""


@dataclass(frozen=True)
class Sides:
    """Right answers and questions of the two arms, all repeats together."""

    baseline: tuple[int, int]
    candidate: tuple[int, int]
    repeats: tuple[int, int]

    @property
    def difference_points(self) -> float:
        return 100 * (self.candidate[0] / self.candidate[1] - self.baseline[0] / self.baseline[1])

    @property
    def error_points(self) -> float:
        """Standard error of the difference, both arms sharing one true share."""
        asked = self.baseline[1] + self.candidate[1]
        # One right and one wrong answer more keep the error above zero where nobody erred.
        share = (self.baseline[0] + self.candidate[0] + 1) / (asked + 2)
        plain = (self.baseline[0] + self.candidate[0]) / asked
        chosen = share if plain in (0.0, 1.0) else plain
        return 100 * math.sqrt(chosen * (1 - chosen) * (1 / self.baseline[1] + 1 / self.candidate[1]))

    @property
    def mde_points(self) -> float:
        """Smallest difference found with 80 % power."""
        return float(scipy.stats.norm.ppf(1 - ALPHA / 2) + scipy.stats.norm.ppf(POWER)) * self.error_points

    @property
    def half_width_points(self) -> float:
        return float(scipy.stats.norm.ppf(1 - ALPHA / 2)) * self.error_points


def explains(questions: int, scores: tuple[Score, ...]) -> bool:
    """Whether every score is a whole number of right answers of this many questions, to its printed digit."""
    for score in scores:
        right = round(score.value / 100 * questions)
        if not 0 <= right <= questions:
            return False
        if abs(100 * right / questions - score.value) > 0.5 * 10.0**-score.digits * (1 + 1e-6):
            return False
    return True


def denominators(declared: int, scores: tuple[Score, ...]) -> tuple[int, ...]:
    """Numbers of questions near the declared one that explain all scores."""
    low, high = math.floor(declared * SEARCHED[0]), math.ceil(declared * SEARCHED[1])
    return tuple(n for n in range(max(1, low), high + 1) if explains(n, scores))


def check(claim: Claim) -> tuple[Finding, ...]:
    """Check the denominators, then hold the difference against what this many questions can show."""
    found: list[Finding] = []
    for name in dict.fromkeys(s.name for s in claim.scores):
        scores = tuple(s for s in claim.scores if s.name == name and not s.superseded)
        broken = _broken(scores)
        if broken:
            found.append(broken)
            continue
        asked, warning = _asked(name, scores)
        found += [warning] if warning else []
        broken = _miscounted(scores, asked)
        if broken:
            found.append(broken)
            continue
        sides = _sides(claim, scores, asked)
        if sides is not None:
            found.append(_judge(claim, name, sides))
    if (
        claim.question == "score"
        and not any(f.numbers for f in found)
        and not any(f.severity == "invalid" for f in found)
    ):
        words = "Scores of both arms and the number of questions are needed."
        found.append(Finding(check=CHECK, severity="inconclusive", short="scores missing", sentence=words))
    return tuple(found)


def _broken(scores: tuple[Score, ...]) -> Finding | None:
    for score in scores:
        if not 0 <= score.value <= 100:
            words = f"A score of {score.arm} is {score.value!r}; allowed: 0 to 100 percent. {score.source}".strip()
            return Finding(check=CHECK, severity="invalid", short="score outside 0 to 100", sentence=words)
        if score.correct is not None and score.questions is not None:
            made = 100 * score.correct / score.questions
            if abs(made - score.value) > 0.5 * 10.0**-score.digits * (1 + 1e-6):
                line = f"{score.correct} / {score.questions} = {made:.6g} %, printed {score.value} %"
                words = f"A score of {score.arm} is not the share of its own counts."
                return Finding(
                    check=CHECK, severity="invalid", short="score is not k/n", sentence=words, arithmetic=(line,)
                )
    return None


def _miscounted(scores: tuple[Score, ...], asked: int | None) -> Finding | None:
    """Right answers without their own questions, held against the questions that another entry declares."""
    for score in scores:
        if score.correct is None or score.questions is not None or asked is None:
            continue
        made = 100 * score.correct / asked
        if score.correct > asked or abs(made - score.value) > 0.5 * 10.0**-score.digits * (1 + 1e-6):
            words = f"{score.correct} right answers of {score.arm} are not {score.value} % of {asked} questions."
            words = f"{words} State the questions of each arm. {score.source}".strip()
            return Finding(check=CHECK, severity="invalid", short="score is not k/n", sentence=words)
    return None


def _asked(name: str, scores: tuple[Score, ...]) -> tuple[int | None, Finding | None]:
    """The denominator to count with, and a warning where it is not the declared one."""
    declared = {s.questions for s in scores} - {None}
    if len(declared) != 1:
        return None, None
    (asked,) = declared
    if asked is None or explains(asked, scores):
        return asked, None
    others = denominators(asked, scores)
    worst = next(s for s in scores if not explains(asked, (s,)))
    right = worst.value / 100 * asked
    lines = [f"{worst.value} % of {asked} = {right:.3f} right answers, no whole number"]
    lines += [f"{s.value} % of {n} = {s.value / 100 * n:.3f}" for n in others[:1] for s in scores]
    told = f"{', '.join(map(str, others))} explains all" if others else "no denominator near it does"
    words = f"{name}: {asked} questions are declared, but the scores are no multiples of 1/{asked}; {told}."
    warning = Finding(
        check=CHECK,
        severity="warning",
        short=f"denominator is {others[0] if others else 'unknown'}, not {asked}",
        sentence=words,
        arithmetic=tuple(lines),
        sources=(worst.source,),
    )
    return (others[0] if len(others) == 1 else asked), warning


def _sides(claim: Claim, scores: tuple[Score, ...], asked: int | None) -> Sides | None:
    counted = []
    for arm in (claim.baseline, claim.candidate):
        mine = [(s, s.questions if asked is None else asked) for s in scores if s.arm == arm]
        known = [(s, n) for s, n in mine if n]
        if not known or len(known) < len(mine):
            return None
        right = sum(round(s.value / 100 * n) if s.correct is None else s.correct for s, n in known)
        counted.append((right, sum(n for _, n in known), len(known)))
    (a, n, r), (b, m, q) = counted
    return Sides((a, n), (b, m), (r, q))


def _judge(claim: Claim, name: str, sides: Sides) -> Finding:
    (a, n), (b, m) = sides.baseline, sides.candidate
    p = float(scipy.stats.fisher_exact([[b, m - b], [a, n - a]]).pvalue)
    lines = (
        f"{claim.baseline}: {a} of {n} right = {100 * a / n:.3f} % ({sides.repeats[0]} runs)",
        f"{claim.candidate}: {b} of {m} right = {100 * b / m:.3f} % ({sides.repeats[1]} runs)",
        f"difference {sides.difference_points:+.3f} points, Fisher's exact p = {p:.2g}",
        f"standard error of the difference {sides.error_points:.3f} points (binomial, runs independent)",
        f"95 % half width 1.96 * {sides.error_points:.3f} = {sides.half_width_points:.2f} points",
        f"smallest difference found with 80 % power 2.80 * {sides.error_points:.3f} = {sides.mde_points:.2f} points",
    )
    ninety = float(scipy.stats.norm.ppf(1 - ALPHA)) * sides.error_points
    inside = abs(sides.difference_points) + ninety <= claim.margin_percent
    if p <= ALPHA:
        severity, short = "note", f"{sides.difference_points:+.2f} points, p = {p:.2g}"
        sentence = f"{name}: the arms differ by {sides.difference_points:+.2f} points."
    elif inside:
        severity, short = "passed", f"margin {claim.margin_percent:g} points"
        sentence = f"{name}: the difference lies within {claim.margin_percent:g} points."
    else:
        severity, short = "inconclusive", f"MDE {sides.mde_points:.1f} points"
        sentence = f"{name}: no difference seen, and none below {sides.mde_points:.1f} points could have been."
    return Finding.model_validate(
        {
            "check": CHECK,
            "severity": severity if claim.question == "score" or severity != "inconclusive" else "note",
            "short": short,
            "sentence": sentence,
            "arithmetic": lines,
            "numbers": {
                "difference_points": sides.difference_points,
                "error_points": sides.error_points,
                "mde_points": sides.mde_points,
                "half_width_points": sides.half_width_points,
                "p": p,
                "baseline_questions": n,
                "candidate_questions": m,
            },
        }
    )
