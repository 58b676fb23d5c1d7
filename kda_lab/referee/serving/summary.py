"""A cell's numbers from its requests: what the referee calls metrics, and why a cell failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from kda_lab.referee.serving.load import Measured
from kda_lab.referee.serving.stream import Outcome

LAG_SHARE = 0.1
"""A loop that wakes later than this share of the gap between tokens blurs the gaps that it measures."""
SHOWN_DETAILS = 2


def metrics_of(measured: Measured) -> dict[str, float]:
    """Metrics of a cell over its answered requests, named and in the units of `kda_lab.referee.metrics`.

    A failed cell keeps only the counts: rates over the requests that happened to survive compare with nothing.
    """
    good = [outcome for outcome in measured.outcomes if outcome.ok]
    counts = {"completed": float(len(good)), "failed": float(len(measured.outcomes) - len(good))}
    if failure_of(measured) or not good:
        return counts
    tokens = sum(outcome.output_tokens for outcome in good)
    found = counts | {
        "duration_s": measured.wall_s,
        "throughput_tok_s": tokens / measured.wall_s,
        "request_rate_s": len(good) / measured.wall_s,
    }
    for stem, values in samples_of(good).items():
        found |= statistics(stem, values)
    gaps = [gap for outcome in good for gap in outcome.itl_ms]
    return found | statistics("itl", gaps)


def samples_of(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Milliseconds of each answered request under `ttft`, `tpot` and `e2e`, in order of the prompts."""
    read: dict[str, Callable[[Outcome], float | None]] = {
        "ttft": lambda o: o.ttft_ms,
        "tpot": lambda o: o.tpot_ms,
        "e2e": lambda o: o.e2e_ms,
    }
    return {stem: [value for o in outcomes if o.ok and (value := of(o)) is not None] for stem, of in read.items()}


def statistics(stem: str, values: Sequence[float]) -> dict[str, float]:
    """Mean, median, 90th, 95th and 99th percentile and standard deviation; nothing of nothing."""
    if not values:
        return {}
    p50, p90, p95, p99 = (float(v) for v in np.percentile(values, (50, 90, 95, 99)))
    found = {"mean": float(np.mean(values)), "median": p50, "p90": p90, "p95": p95, "p99": p99}
    found["std"] = float(np.std(values))
    return {f"{stem}_{name}_ms": value for name, value in found.items()}


def failure_of(measured: Measured) -> str:
    """Why the cell does not count, in words; empty where it does."""
    if measured.failure:
        return measured.failure
    failed = [outcome for outcome in measured.outcomes if not outcome.ok]
    if not failed:
        return "" if measured.outcomes else "no request was sent"
    kinds = Counter(outcome.failure for outcome in failed)
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    details = "; ".join(list(dict.fromkeys(o.detail for o in failed if o.detail))[:SHOWN_DETAILS])
    return f"{len(failed)} of {len(measured.outcomes)} requests failed: {listed}" + (f" ({details})" if details else "")


def notes_of(measured: Measured, output_tokens: int) -> tuple[str, ...]:
    """What a reader has to know about a cell that counts.

    Args:
        measured: the cell.
        output_tokens: what every request asked for.
    """
    good = [outcome for outcome in measured.outcomes if outcome.ok]
    found = []
    short = sum(outcome.output_tokens != output_tokens for outcome in good)
    if short:
        found.append(f"{short} of {len(good)} answers are not {output_tokens} tokens long")
    events = sum(outcome.counted_by == "events" for outcome in good)
    if events:
        found.append(f"{events} of {len(good)} answers came without usage: tokens counted by events")
    tpot_ms = samples_of(good)["tpot"]
    if tpot_ms and measured.lag_ms:
        lag_ms, gap_ms = float(np.percentile(measured.lag_ms, 99)), float(np.median(tpot_ms))
        if lag_ms > LAG_SHARE * gap_ms:
            found.append(f"this client woke up to {lag_ms:.1f} ms late (p99) at {gap_ms:.1f} ms a token: too busy")
    return tuple(found)
