"""Which runs of a claim stand against which: arms, controls, rounds, operating points."""

from __future__ import annotations

import math
from statistics import median

from kda_lab.referee.claim import Claim, Mode, Run
from kda_lab.referee.statistics import LARGEST_FACTOR, Round


def baseline_arms(claim: Claim) -> tuple[str, ...]:
    """The baseline and the arms that repeat its code as A/A controls."""
    judged = (claim.baseline, claim.candidate)
    repeats = [c.arm for c in claim.controls if c.repeats == claim.baseline and c.arm not in judged]
    return tuple(dict.fromkeys((claim.baseline, *repeats)))


def judged_mode(claim: Claim) -> Mode:
    """The mode that the verdict is about: `graph` where both arms have it, else the one that both have."""
    base = {r.mode for r in claim.of(claim.baseline, claim.metric)}
    cand = {r.mode for r in claim.of(claim.candidate, claim.metric)}
    shared = base & cand
    order: tuple[Mode, ...] = ("graph", "", "eager")
    return next((m for m in order if m in shared), "")


def runs_of(claim: Claim, arms: tuple[str, ...], metric: str, mode: Mode | None) -> list[Run]:
    """Runs that count, of some arms, with a metric; of one mode, or of all where it is None."""
    # One pass: asking `claim.of` for each run compares every run with every other, field by field.
    counted = (r for r in claim.runs if r.arm in arms and not r.superseded and mode in (None, r.mode))
    return [r for r in counted if not metric or metric in r.metrics]


def sides(claim: Claim, metric: str = "", mode: Mode | None = None) -> tuple[list[Run], list[Run]]:
    """Runs of the baseline with its controls, and of the candidate.

    Args:
        claim: whose runs.
        metric: the claim's own when left out.
        mode: the judged one when None.
    """
    named, chosen = metric or claim.metric, judged_mode(claim) if mode is None else mode
    return (
        runs_of(claim, baseline_arms(claim), named, chosen),
        runs_of(claim, (claim.candidate,), named, chosen),
    )


def rounds_of(base: list[Run], cand: list[Run], metric: str) -> tuple[list[Round], int]:
    """Values of each round, and how many runs were left out since their round lacks the other arm.

    One entry holds all runs where any run has no round, or where no round has both arms.
    """
    values = [(r.round, side, r.metrics[metric]) for side, runs in enumerate((base, cand)) for r in runs]
    shared = {r.round for r in base} & {r.round for r in cand}
    if any(number is None for number, _, _ in values) or not shared:
        whole = [tuple(v for _, side, v in values if side == wanted) for wanted in (0, 1)]
        return [(whole[0], whole[1])], 0
    found: list[Round] = []
    for number in sorted(n for n in shared if n is not None):
        both = [tuple(v for n, side, v in values if (n, side) == (number, wanted)) for wanted in (0, 1)]
        found.append((both[0], both[1]))
    return found, sum(number not in shared for number, _, _ in values)


def typical(runs: list[Run] | tuple[Run, ...], metric: str) -> float | None:
    """Median of a metric over the runs that carry a usable value of it; None without any."""
    values = [r.metrics[metric] for r in runs if metric in r.metrics and usable(r.metrics[metric])]
    return median(values) if values else None


def usable(value: float) -> bool:
    """Whether a measured value can be divided by: finite and positive."""
    return math.isfinite(value) and value > 0


def comparable(values: list[float]) -> bool:
    """Whether values of one metric can be held against each other: usable, and within a factor `LARGEST_FACTOR`."""
    return all(usable(v) for v in values) and (not values or max(values) <= LARGEST_FACTOR * min(values))


def end_to_end_ms(run: Run) -> float | None:
    """Mean latency of a request in ms: as measured, or TTFT + (tokens - 1) * TPOT; None where neither is known."""
    metrics = run.metrics
    if "e2e_mean_ms" in metrics:
        return metrics["e2e_mean_ms"]
    if run.output_tokens and "ttft_mean_ms" in metrics and "tpot_mean_ms" in metrics:
        return metrics["ttft_mean_ms"] + (run.output_tokens - 1) * metrics["tpot_mean_ms"]
    return None


def request_rate_s(run: Run) -> float | None:
    """Finished requests a second: as measured, or output tokens a second over tokens a request."""
    if "request_rate_s" in run.metrics:
        return run.metrics["request_rate_s"]
    if "throughput_tok_s" in run.metrics and run.output_tokens:
        return run.metrics["throughput_tok_s"] / run.output_tokens
    return None
