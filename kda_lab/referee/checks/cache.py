"""Cache policy and cold compiles (REF-3, REF-4): one arm on a cold cache and one on a warm one are two experiments.

A cold compile hits the first requests only: the mean and the 99th percentile of the first token rise, its median
and the time per token stay.
"""

from __future__ import annotations

from statistics import median

from kda_lab.referee.arms import sides, typical, usable
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.finding import Finding, figure, signed
from kda_lab.referee.metrics import METRICS

CHECK = "cache"
TAIL_TO_MEDIAN, MEAN_TO_MEDIAN, STEP_PERCENT = 3.0, 1.3, 1.0
FIRST_SHARE, LEAST_SAMPLES = 0.1, 10
"""Share of a run's samples that count as its start, and the samples below which a start is not judged."""


def check(claim: Claim) -> tuple[Finding, ...]:
    """Compare the stated cache states and look for the fingerprint of a cold compile in one arm only."""
    if claim.question != "speed":
        return ()
    base, cand = sides(claim)
    if not base or not cand:
        return ()
    return (
        *_built_during(base, cand),
        *_fingerprint(claim, base, cand),
        *_slow_start(claim, base, cand),
        *_policy(claim, base, cand),
    )


def _policy(claim: Claim, base: list[Run], cand: list[Run]) -> tuple[Finding, ...]:
    stated = [sorted({r.cache_state for r in runs}) for runs in (base, cand)]
    words = [", ".join(s or "not stated" for s in states) for states in stated]
    if "" in stated[0] + stated[1]:
        severity = "inconclusive" if "cache_state" in claim.requires else "note"
        sentence = (
            f"Cache state: {words[0]} ({claim.baseline}), {words[1]} ({claim.candidate}). State it for both arms."
        )
    elif (mixed := _mixed(base, cand)) and stated[0] == stated[1]:
        severity = "cold cache"
        sentence = f"Runs with caches {words[0]} stand together in {mixed}. Compare runs of one state, or by rounds."
    elif stated[0] != stated[1]:
        severity = "cold cache"
        sentence = f"Caches were {words[0]} for {claim.baseline} and {words[1]} for {claim.candidate}: two experiments."
    else:
        severity, sentence = "passed", f"Both arms ran with caches {words[0]}."
    short = "cache state unknown" if severity in ("inconclusive", "note") else "cache policy differs"
    return (Finding.model_validate({"check": CHECK, "severity": severity, "short": short, "sentence": sentence}),)


def _mixed(base: list[Run], cand: list[Run]) -> str:
    """Where runs of unlike cache states would be compared: an arm without rounds, or a round; empty text nowhere."""
    everything = [*base, *cand]
    if any(r.round is None for r in everything):
        return "one arm" if len({r.cache_state for r in everything}) > 1 else ""
    numbers = sorted({r.round for r in everything if r.round is not None})
    apart = [n for n in numbers if len({r.cache_state for r in everything if r.round == n}) > 1]
    return f"round {apart[0]}" if apart else ""


def _built_during(base: list[Run], cand: list[Run]) -> tuple[Finding, ...]:
    built = [typical(runs, "artifacts_built") or 0.0 for runs in (base, cand)]
    if (built[0] > 0) == (built[1] > 0):
        return ()
    counted = any("artifacts_built" in r.metrics for r in (base if built[1] else cand))
    other = "none during the other arm's" if counted else "those of the other arm were not counted"
    sentence = (
        f"{figure(max(built))} compiled artifacts appeared during the runs of the "
        f"{'candidate' if built[1] else 'baseline'}, {other}. Run it again on a warm cache."
    )
    return (Finding(check=CHECK, severity="cold cache", short="cold JIT: compiled while timed", sentence=sentence),)


def _fingerprint(claim: Claim, base: list[Run], cand: list[Run]) -> tuple[Finding, ...]:
    """The ratio rule: p99 at least 3 times and mean at least 1.3 times the median, in one arm, at the same TPOT."""
    steps = [typical(runs, "tpot_mean_ms") for runs in (base, cand)]
    if steps[0] is None or steps[1] is None or abs(100 * (steps[1] / steps[0] - 1)) > STEP_PERCENT:
        return ()
    looks = [_looks(runs, other) for runs, other in ((base, cand), (cand, base))]
    cold = [name for name, (is_cold, _) in zip((claim.baseline, claim.candidate), looks, strict=True) if is_cold]
    if len(cold) != 1:
        return ()
    change = signed(100 * (steps[1] / steps[0] - 1))
    arithmetic = [
        line
        for name, (_, lines) in zip((claim.baseline, claim.candidate), looks, strict=True)
        for line in (f"{name}: {text}" for text in lines)
    ]
    arithmetic.append(f"TPOT: {figure(steps[1])} ms / {figure(steps[0])} ms - 1 = {change}")
    sentence = (
        f"The first token of {cold[0]} has a tail that its time per token does not share: a cold compile. "
        "Run it again on a warm cache, or clear the caches of both arms."
    )
    return (
        Finding(
            check=CHECK,
            severity="cold cache",
            short="cold JIT suspected: re-run",
            sentence=sentence,
            arithmetic=tuple(arithmetic),
        ),
    )


def _looks(runs: list[Run], other: list[Run]) -> tuple[bool, list[str]]:
    """Whether an arm's first token looks cold, with the ratios.

    Where its median was not printed, its mean stands in for the tail's ratio (it can only be larger, which makes
    the rule stricter), and the other arm's mean for the mean's ratio.
    """
    mean, middle, tail = (typical(runs, f"ttft_{s}_ms") for s in ("mean", "median", "p99"))
    if mean is None or tail is None:
        return False, []
    reference, word = (middle, "median") if middle is not None else (mean, "mean")
    centre = middle if middle is not None else typical(other, "ttft_mean_ms")
    centre_word = "median" if middle is not None else "the other arm's mean"
    lines = [f"TTFT p99 {figure(tail)} ms / {word} {figure(reference)} ms = {tail / reference:.2f}"]
    if centre is None:
        return False, lines
    lines.append(f"TTFT mean {figure(mean)} ms / {centre_word} {figure(centre)} ms = {mean / centre:.2f}")
    return tail / reference >= TAIL_TO_MEDIAN and mean / centre >= MEAN_TO_MEDIAN, lines


def _slow_start(claim: Claim, base: list[Run], cand: list[Run]) -> tuple[Finding, ...]:
    """The first samples of one arm's run are slow against its others: the same sign, in single samples."""
    starts = {
        arm: [s for r in runs for s in _starts(r)]
        for arm, runs in zip((claim.baseline, claim.candidate), (base, cand), strict=True)
    }
    cold = {arm: [line for ratio, line in found if ratio >= TAIL_TO_MEDIAN] for arm, found in starts.items()}
    named = [arm for arm, lines in cold.items() if lines]
    if len(named) != 1 or not all(starts.values()):
        return ()
    words = (
        f"The first samples of {named[0]} are slow against its others: compiled or filled while timed. Warm up, re-run."
    )
    lines = tuple(f"{named[0]}: {line}" for line in cold[named[0]])
    short = "cold start in single samples"
    return (Finding(check=CHECK, severity="cold cache", short=short, sentence=words, arithmetic=lines),)


def _starts(run: Run) -> list[tuple[float, str]]:
    found = []
    for metric, values in run.samples.items():
        count = max(1, int(len(values) * FIRST_SHARE))
        if len(values) < LEAST_SAMPLES or METRICS[metric].better != "lower" or not all(map(usable, values)):
            continue
        first, rest = median(values[:count]), median(values[count:])
        found.append(
            (first / rest, f"{metric}: first {count} {figure(first)} / others {figure(rest)} = {first / rest:.2f}")
        )
    return found
