"""From records to verdicts: ratio of medians, bootstrap interval paired by trial, A/A noise band."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.stats

from kda_lab.errors import ParameterError, Reason
from kda_lab.timing import roofline
from kda_lab.timing.graph import GraphTimer
from kda_lab.timing.protocol import Protocol, mode_of

Verdict = Literal["faster", "slower", "same", "ambiguous", ""]
STATES = ("invalid", "warm", "cold")
"""Worst first: the state of an arm is the worst of its trials."""
NO_VERDICT: dict[str, str] = {
    "warm": "timed on one input set: a warm row has no verdict, even where the set is larger than the L2",
    "eight": "timed with eight input sets, to compare with the source thread's protocol: no verdict",
}
"""Why rows of these modes have no verdict where their bytes alone would make them cold."""


@dataclass(frozen=True)
class RowResult:
    """One arm on one row, against the baseline. None where nothing was measured."""

    op: str
    row: str
    axes: dict[str, Any]
    arm: str
    role: str
    baseline: str
    baseline_us: float | None
    """Median over the good trials of the baseline's medians."""
    arm_us: float | None
    ratio: float | None
    """baseline_us / arm_us: above 1 the arm is faster."""
    low: float | None
    high: float | None
    """Bootstrap interval of the ratio; None with fewer than two good pairs."""
    noise: float | None
    """Half width of the row's A/A band, relative: 0.012 is ±1.2 %."""
    verdict: Verdict
    trials: int
    """Good trials that the arm shares with the baseline."""
    dropped_trials: int
    roof_us: float | None
    roof_share: float | None
    """roof_us / arm_us: 1 is at the roof."""
    bandwidth_gb_s: float | None
    state: str
    """`cold`, `warm`, `invalid` or `refused`."""
    reason: str
    """Why there is no verdict, or why it is ambiguous; empty otherwise."""


@dataclass(frozen=True)
class Interval:
    """A ratio of medians with its bootstrap interval."""

    ratio: float
    low: float | None
    high: float | None
    pairs: int


@dataclass(frozen=True)
class Headline:
    """The ratios of one arm in three numbers that are only shown together."""

    baseline: str
    arm: str
    geomean: float
    minimum: float
    count: int


@dataclass(frozen=True)
class _Arm:
    """The records of one arm on one row, sorted out."""

    records: tuple[dict[str, Any], ...]
    refused: str
    good: dict[int, float]
    """Trial number to median in us, of trials that were not dropped."""
    dropped: int
    state: str
    state_reason: str


def summarise(
    records: Sequence[dict[str, Any]], *, baseline: str | None = None, protocol: Protocol | None = None
) -> list[RowResult]:
    """One `RowResult` a (row, arm, role), in the order of the records.

    Args:
        records: lines of `timing.jsonl`; other kinds of lines are ignored.
        baseline: the arm to divide by; None takes the arm with the role `baseline`. The noise band
            is always the one of the A/A control.
        protocol: trials, resamples, confidence and seed; v1 when None.

    The baseline's and the control's own results have no verdict. Neither has an arm that was refused,
    or whose time (or whose baseline's time) is warm or invalid.
    """
    protocol = protocol or Protocol()
    results = []
    for row_records in _group(records, ("op", "row")).values():
        arms = {key: _sort_out(lines, protocol) for key, lines in _group(row_records, ("arm", "role")).items()}
        results += _row_results(arms, baseline, protocol)
    return results


def headline(rows: Sequence[RowResult], arm: str) -> Headline | None:
    """Geometric mean, minimum and count of an arm's ratios over its rows with a verdict; None without any.

    Raises:
        ParameterError: the rows divide by more than one baseline.
    """
    found = [r for r in rows if r.arm == arm and r.role != "control" and r.verdict and r.ratio]
    baselines = sorted({r.baseline for r in found})
    if len(baselines) > 1:
        raise ParameterError("timing", [Reason("baseline", repr(baselines), "one baseline", "Summarise each alone.")])
    if not found:
        return None
    ratios = [r.ratio for r in found if r.ratio]
    geomean = math.exp(math.fsum(math.log(r) for r in ratios) / len(ratios))
    return Headline(baselines[0], arm, geomean, min(ratios), len(ratios))


def present_state(record: Mapping[str, Any], protocol: Protocol) -> tuple[str, str]:
    """State of a timing record and why it is not cold, by the present rules.

    It is the recorded one; but a bandwidth that made it warm is judged by the protocol's present allowance.
    """
    memory = max(record.get("copy_bandwidth_gb_s", math.inf), record.get("read_bandwidth_gb_s", 0.0))
    if record["state"] == "warm" and record["bandwidth_gb_s"] > memory:
        return roofline.record_state(record, protocol.copy_allowance)
    return record["state"], record.get("state_reason", "")


def paired_interval(baseline_us: dict[int, float], arm_us: dict[int, float], protocol: Protocol) -> Interval | None:
    """Ratio of medians over the trials that both have, with its percentile bootstrap interval.

    A pair is one trial: both arms ran within it, so that drift from trial to trial cancels.
    None without a common trial; no interval with fewer than two.
    """
    trials = sorted(baseline_us.keys() & arm_us.keys())
    if not trials:
        return None
    over = np.array([baseline_us[t] for t in trials])
    under = np.array([arm_us[t] for t in trials])
    ratio = float(_ratio_of_medians(over, under))
    if len(trials) < 2:
        return Interval(ratio, None, None, 1)
    found = scipy.stats.bootstrap(
        (over, under),
        _ratio_of_medians,
        paired=True,
        vectorized=True,
        n_resamples=protocol.resamples,
        confidence_level=protocol.confidence,
        method="percentile",
        random_state=np.random.default_rng(protocol.seed),
    ).confidence_interval
    return Interval(ratio, float(found.low), float(found.high), len(trials))


def noise_of(control: Interval | None) -> float | None:
    """Half width of the A/A band: how far the interval of the baseline against itself reaches from 1."""
    if control is None or control.low is None or control.high is None:
        return None
    return max(abs(control.high - 1), abs(1 - control.low))


def verdict_of(low: float, high: float, noise: float) -> Verdict:
    """Interval clear of the band 1 ± noise: faster or slower; inside it: same; else ambiguous."""
    if low > 1 + noise:
        return "faster"
    if high < 1 - noise:
        return "slower"
    return "same" if low >= 1 - noise and high <= 1 + noise else "ambiguous"


def _ratio_of_medians(over: np.ndarray, under: np.ndarray, axis: int = -1) -> Any:
    return np.median(over, axis=axis) / np.median(under, axis=axis)


def _group(records: Sequence[dict[str, Any]], keys: tuple[str, str]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        if record.get("kind") in ("timing", "refused"):
            groups.setdefault((record[keys[0]], record[keys[1]]), []).append(record)
    return groups


def _sort_out(lines: list[dict[str, Any]], protocol: Protocol) -> _Arm:
    timed = [r for r in lines if r["kind"] == "timing"]
    refused = next((r["reason"] for r in lines if r["kind"] == "refused"), "")
    good = {r["trial"]: r["median_us"] for r in timed if not r["dropped"]}
    found = dict(present_state(r, protocol) for r in timed)
    state = next((s for s in STATES if s in found), "refused")
    return _Arm(tuple(lines), refused, good, len(timed) - len(good), state, found.get(state, ""))


def _row_results(arms: dict[tuple[str, str], _Arm], baseline: str | None, protocol: Protocol) -> list[RowResult]:
    named = next(((name, arm) for (name, role), arm in arms.items() if role == "baseline"), ("", None))
    control = next((arm for (_, role), arm in arms.items() if role == "control"), None)
    base_name, base = named
    if baseline is not None:
        base_name, base = baseline, next((a for (n, r), a in arms.items() if n == baseline and r != "control"), None)
    band = paired_interval(named[1].good, control.good, protocol) if named[1] and control else None
    # A band of fewer pairs than an arm needs would be narrower than the noise it stands for.
    noise = noise_of(band) if band and band.pairs >= protocol.trials else None
    return [_result(key, arm, (base_name, base), noise, protocol) for key, arm in arms.items()]


def _result(
    key: tuple[str, str], arm: _Arm, base: tuple[str, _Arm | None], noise: float | None, protocol: Protocol
) -> RowResult:
    base_good = base[1].good if base[1] else {}
    interval = paired_interval(base_good, arm.good, protocol)
    # Both absolute times come from the trials that the ratio comes from, so that they divide to it.
    shared = sorted(base_good.keys() & arm.good.keys())
    arm_us = _median([arm.good[t] for t in shared or arm.good])
    first = next((r for r in arm.records if r["kind"] == "timing"), arm.records[0])
    roof = first.get("roof_us")
    verdict, reason = _judge(key, arm, base, interval, noise, protocol)
    return RowResult(
        op=first["op"],
        row=first["row"],
        axes=first["axes"],
        arm=key[0],
        role=key[1],
        baseline=base[0],
        baseline_us=_median([base_good[t] for t in shared or base_good]),
        arm_us=arm_us,
        ratio=interval.ratio if interval else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        noise=noise,
        verdict=verdict,
        trials=interval.pairs if interval else len(arm.good),
        dropped_trials=arm.dropped,
        roof_us=roof,
        roof_share=roof / arm_us if roof and arm_us else None,
        bandwidth_gb_s=first["bytes_per_call"] / arm_us / 1e3 if arm_us else None,
        state="refused" if arm.refused else arm.state,
        reason=reason,
    )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _judge(
    key: tuple[str, str],
    arm: _Arm,
    base: tuple[str, _Arm | None],
    interval: Interval | None,
    noise: float | None,
    protocol: Protocol,
) -> tuple[Verdict, str]:
    """The verdict, and why it is empty or ambiguous."""
    obstacle = _obstacle(arm) or _no_contest(key, base)
    if obstacle:
        return "", obstacle
    if interval is None:
        return "", f"no good trial in common with the baseline{_why_dropped(arm, base[1])}"
    if interval.low is None or interval.high is None or interval.pairs < protocol.trials:
        return "ambiguous", f"{interval.pairs} good trials; needed: {protocol.trials}{_why_dropped(arm, base[1])}"
    if noise is None:
        return "ambiguous", f"no noise band: the A/A control has fewer than {protocol.trials} good trials"
    verdict = verdict_of(interval.low, interval.high, noise)
    crossing = (
        f"the interval {interval.low:.4g} to {interval.high:.4g} crosses the edge of the noise band 1 ± {noise:.2g}"
    )
    return verdict, crossing if verdict == "ambiguous" else ""


def _obstacle(arm: _Arm) -> str:
    """Why an arm's own times cannot be used; empty when they can."""
    if arm.refused:
        return arm.refused
    timers = sorted({r["timer"] for r in arm.records if r["kind"] == "timing"} - {GraphTimer.name})
    mode = mode_of(arm.records[0]["row"])
    if arm.state == "cold" and mode in NO_VERDICT:
        return NO_VERDICT[mode]
    if arm.state == "cold" and timers:
        return f"timed by {', '.join(timers)}: the host's launch cost is in the time; a verdict needs {GraphTimer.name}"
    return "" if arm.state == "cold" else arm.state_reason


def _no_contest(key: tuple[str, str], base: tuple[str, _Arm | None]) -> str:
    """Why an arm is not compared, apart from its own times; empty when it is."""
    name, role = key
    if role == "control":
        return "A/A control: its interval is the noise band"
    if name == base[0]:
        return "the baseline: every ratio divides by it"
    if base[1] is None:
        return f"the baseline {base[0]!r} was not timed on this row" if base[0] else "no baseline was timed on this row"
    blocked = _obstacle(base[1])
    return f"the baseline {base[0]!r} has no cold time: {blocked}" if blocked else ""


def _why_dropped(*arms: _Arm | None) -> str:
    reasons = sorted({r["dropped"] for arm in arms if arm for r in arm.records if r.get("dropped")})
    return f" (dropped: {'; '.join(reasons)})" if reasons else ""
