"""Separation (REF-7): are the arms further apart than relabelled runs would be, and what could have been seen?"""

from __future__ import annotations

from kda_lab.referee.arms import comparable, rounds_of, sides
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.finding import Finding, figure, signed
from kda_lab.referee.statistics import Comparison, Strata, compare, mde_percent, relabellings, runs_needed

CHECK = "separation"
SHOWN = 6
NO_SPREAD_PERCENT = 1e-9
"""Noise below which runs are copies of each other, up to the rounding of their logarithms."""


def comparison_of(claim: Claim) -> Comparison | None:
    """The comparison of the claim's metric in the judged mode; None where an arm has no usable run."""
    base, cand = _exchangeable(*sides(claim), claim.baseline)
    values = [r.metrics[claim.metric] for r in (*base, *cand)]
    if not base or not cand or not comparable(values):
        return None
    return compare(rounds_of(base, cand, claim.metric)[0], claim.margin_percent)


def check(claim: Claim) -> tuple[Finding, ...]:
    """Say p, its floor, the interval, the noise and the smallest visible change; inconclusive where undecided."""
    if claim.question != "speed":
        return ()
    found = comparison_of(claim)
    if found is None:
        return ()
    base, cand = _exchangeable(*sides(claim), claim.baseline)
    notes = [_left_out(rounds_of(base, cand, claim.metric)[1])]
    if "rounds" in claim.requires and not found.paired:
        notes.append(("inconclusive", "no rounds", "Rounds are required, and too few have both arms."))
    lost = _summary_lost(base, cand)
    severity, short, sentence = lost or _verdict(claim, found)
    main = Finding.model_validate(
        {
            "check": CHECK,
            "severity": severity,
            "short": short,
            "sentence": sentence,
            "arithmetic": _lines(claim, found, base, cand),
            "numbers": _numbers(found),
        }
    )
    rest = [{"check": CHECK, "severity": s, "short": w, "sentence": t} for s, w, t in notes if s]
    return (main, *(Finding.model_validate(r) for r in rest))


def _exchangeable(base: list[Run], cand: list[Run], baseline: str) -> tuple[list[Run], list[Run]]:
    """Runs that may be relabelled among each other: a control that summarises fewer runs than the rest is left out."""
    if len({r.summarises for r in (*base, *cand)}) > 1:
        base = [r for r in base if r.arm == baseline]
    return base, cand


def _summary_lost(base: list[Run], cand: list[Run]) -> tuple[str, str, str] | None:
    counts = {r.summarises for r in (*base, *cand)}
    if counts == {1} or (len(counts) == 1 and len(base) > 1 and len(cand) > 1):
        return None
    words = f"Only summaries of {', '.join(map(str, sorted(counts)))} runs were printed: the spread is lost. "
    return "inconclusive", "MDE unknown, runs not printed", f"{words}Give the value of each run."


def _verdict(claim: Claim, found: Comparison) -> tuple[str, str, str]:
    change = signed(found.change_percent)
    decided = signed(found.decided_percent)
    if found.word == "equivalent":
        return "passed", f"margin {claim.margin_percent:g} %", f"The change lies within {claim.margin_percent:g} %."
    if found.word in ("higher", "lower"):
        return "passed", f"{decided}, p = {found.p:.2g}", f"{claim.metric} moves {decided} (p = {found.p:.2g})."
    runs = " v ".join(str(sum(s[i] for s in found.strata)) for i in (0, 1))
    if not found.decidable:
        least = min(sum(s[i] for s in found.strata) for i in (0, 1))
        head = "separated, " if found.separated and least > 1 else ""
        alone = "one run an arm" if runs == "1 v 1" else f"{runs} runs"
        short = f"{head}p = {found.p:.2f}, n = {least}" if least > 1 else f"MDE unknown, {alone}"
        words = f"{runs} runs cannot give p below {found.attainable_p:.2g}, whatever the effect."
        return "inconclusive", short, f"{words} {_remedy(found)}"
    if not found.noise_percent or found.noise_percent < NO_SPREAD_PERCENT:
        words = "All runs of an arm gave the same value: the noise of a run is unknown. Give more digits, or real runs."
        return "inconclusive", "MDE unknown, no spread", words
    mde = f"MDE {found.mde_percent:.2f} %" if found.mde_percent is not None else "MDE unknown"
    words = f"{change} is not told from noise (p = {found.p:.2g}); a change is found from {mde[4:]} on."
    return "inconclusive", mde, f"{words} {_remedy(found)}"


def _remedy(found: Comparison) -> str:
    if not found.noise_percent or not found.change_percent:
        return "Run each arm at least 6 times, interleaved (A B B A)."
    needed = runs_needed(found.change_percent, found.noise_percent, found.paired)
    if needed is None:
        return "Not even 40 runs an arm would decide a change of this size."
    how = f"{needed} rounds of both arms find" if found.paired else f"{needed} interleaved runs of each arm find"
    return f"{how} a change of this size 4 times in 5."


def _lines(claim: Claim, found: Comparison, base: list[Run], cand: list[Run]) -> tuple[str, ...]:
    shown = [", ".join(figure(r.metrics[claim.metric], 7) for r in runs[:SHOWN]) for runs in (base, cand)]
    total = relabellings(found.strata)
    lines = [
        f"{claim.baseline}: {shown[0]}{' …' if len(base) > SHOWN else ''}",
        f"{claim.candidate}: {shown[1]}{' …' if len(cand) > SHOWN else ''}",
        f"change of geometric means {signed(found.decided_percent)}, which the test is about",
        f"change of medians {signed(found.change_percent)}, of means {signed(found.change_of_means_percent)}"
        + (f" ({len(found.strata)} rounds, each its own ratio)" if found.paired else ""),
        f"{total} relabellings{' within rounds' if found.paired else ''}: p = {found.p:.3g}, "
        f"attainable minimum {found.attainable_p:.3g}",
    ]
    if found.interval_percent:
        lines.append(f"bootstrap 95 % of it: {_span(found.interval_percent)}")
    if found.equivalence_percent:
        lines.append(f"90 % t interval of the change: {_span(found.equivalence_percent)}")
    if found.noise_percent is not None:
        lines.append(f"noise of one run {found.noise_percent:.3f} %; {_visible(found)}")
    return tuple(lines)


def _visible(found: Comparison) -> str:
    if found.mde_percent is not None:
        return f"smallest change found with 80 % power {found.mde_percent:.2f} %"
    more: Strata = ((1, 1),) * 8 if found.paired else ((5, 5),)
    there, words = mde_percent(more, found.noise_percent or 0.0), "8 rounds" if found.paired else "5 v 5"
    return f"no change is found at this number of runs; with {words} one of {there or 0:.2f} % would be"


DIRECTIONS = {"higher": 1.0, "lower": -1.0, "equivalent": 0.0}
"""Word of a decided comparison to the finding's number `direction`; undecided ones have none."""


def _numbers(found: Comparison) -> dict[str, float]:
    # The sign beside a verdict is that of the statistic which decided, not of another one.
    change = found.decided_percent if found.word in DIRECTIONS else found.change_percent
    made = {
        "change_percent": change,
        "change_of_medians_percent": found.change_percent,
        "p": found.p,
        "attainable_p": found.attainable_p,
    }
    if found.word in DIRECTIONS:
        made["direction"] = DIRECTIONS[found.word]
    if found.noise_percent is not None:
        made["noise_percent"] = found.noise_percent
    if found.mde_percent is not None:
        made["mde_percent"] = found.mde_percent
    if found.interval_percent:
        made["interval_low_percent"], made["interval_high_percent"] = found.interval_percent
    return made


def _span(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:+.2f} to {bounds[1]:+.2f} %"


def _left_out(count: int) -> tuple[str, str, str]:
    if not count:
        return "", "", ""
    return "warning", "runs left out", f"{count} runs stand in rounds that lack the other arm, and are left out."
