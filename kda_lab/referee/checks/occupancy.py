"""Occupancy (REF-6): requests in flight by Little's law, and what the arms would do at the same number in flight.

In flight = requests a second * latency. A closed loop that keeps N requests in flight has N / latency requests a
second, so at equal occupancy only latency can tell two arms apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from kda_lab.referee.arms import end_to_end_ms, request_rate_s, sides, typical, usable
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.finding import Finding, figure, signed

CHECK = "occupancy"
ALLOWED_PERCENT = 1.0
"""Difference in requests in flight that is let pass unremarked."""
ROUND_ALLOWED_PERCENT = 5.0
"""The same within one round, where a short run's filling and emptying weighs more."""
CROWDED = 1.5
"""Requests in flight over the stated concurrency from which a unit must be wrong."""
LATENCIES = ("ttft_", "tpot_", "itl_", "e2e_")
ARRIVALS = "request_rate"
"""Resolved setting that names a fixed arrival rate, in requests a second."""
BY_OCCUPANCY = ("throughput_tok_s", "total_throughput_tok_s", "input_throughput_tok_s", "request_rate_s", "duration_s")


@dataclass(frozen=True)
class Occupancy:
    """What one arm had in flight: means over its runs."""

    arm: str
    rate_req_s: float
    latency_s: float
    lines: tuple[str, ...]

    @property
    def in_flight(self) -> float:
        return self.rate_req_s * self.latency_s


def occupancy_of(arm: str, runs: list[Run]) -> Occupancy | None:
    """Mean rate and latency over the runs that have both; None when none has."""
    found, lines = [], []
    for run in runs:
        rate, latency_ms = request_rate_s(run), end_to_end_ms(run)
        if rate is None or latency_ms is None or not usable(rate) or not usable(latency_ms):
            continue
        found.append((rate, latency_ms / 1e3))
        lines += _lines(arm, run, rate, latency_ms / 1e3)
    if not found:
        return None
    rate = sum(r for r, _ in found) / len(found)
    latency_s = sum(r * s for r, s in found) / sum(r for r, _ in found)
    return Occupancy(arm, rate, latency_s, tuple(lines))


def check(claim: Claim) -> tuple[Finding, ...]:
    """Compare requests in flight, and the arms at equal occupancy."""
    if claim.question != "speed":
        return ()
    base_runs, cand_runs = sides(claim)
    base, cand = occupancy_of(claim.baseline, base_runs), occupancy_of(claim.candidate, cand_runs)
    if base is None or cand is None:
        if "equal_occupancy" not in claim.requires:
            return ()
        words = "Requests in flight are unknown: give request rate or throughput, and latency or TTFT and TPOT."
        return (Finding(check=CHECK, severity="inconclusive", short="occupancy unknown", sentence=words),)
    crowded = [f for runs in (base_runs, cand_runs) for r in runs if (f := _above_concurrency(r)) is not None]
    if crowded:
        return (crowded[0],)
    whole = _judge(claim, base, cand)
    if whole.severity == "not comparable":
        return (whole,)
    # Means over rounds can agree while no two runs that are compared do.
    by_round = (_judge(claim, b, c, f"Round {n}: ") for n, b, c in _rounds(claim, base_runs, cand_runs))
    return (next((f for f in by_round if f.severity == "not comparable"), whole),)


def _rounds(claim: Claim, base: list[Run], cand: list[Run]) -> list[tuple[int, Occupancy, Occupancy]]:
    numbers = sorted({r.round for r in base if r.round is not None} & {r.round for r in cand})
    found = []
    for number in numbers:
        left = occupancy_of(claim.baseline, [r for r in base if r.round == number])
        right = occupancy_of(claim.candidate, [r for r in cand if r.round == number])
        if left is not None and right is not None:
            found.append((number, left, right))
    return found


def _above_concurrency(run: Run) -> Finding | None:
    found = occupancy_of(run.arm, [run])
    if run.concurrency is None or found is None or found.in_flight <= CROWDED * run.concurrency:
        return None
    words = (
        f"A run of {run.arm} had {figure(found.in_flight, 4)} requests in flight at concurrency {run.concurrency}: "
        f"its rate and its latency contradict. Look at their units. {run.source}"
    ).strip()
    short = "more in flight than the concurrency: units?"
    return Finding(check=CHECK, severity="invalid", short=short, sentence=words, arithmetic=found.lines)


def _judge(claim: Claim, base: Occupancy, cand: Occupancy, where: str = "") -> Finding:
    allowed = ALLOWED_PERCENT if not where else ROUND_ALLOWED_PERCENT
    difference = 100 * (cand.in_flight / base.in_flight - 1)
    printed = 100 * (cand.rate_req_s / base.rate_req_s - 1)
    # At N in flight either arm finishes N / latency requests a second: N cancels.
    equal = 100 * (base.latency_s / cand.latency_s - 1)
    numbers = {
        "baseline_in_flight_count": base.in_flight,
        "candidate_in_flight_count": cand.in_flight,
        "difference_percent": difference,
        "rate_change_percent": printed,
        "equal_occupancy_change_percent": equal,
    }
    arithmetic = (
        *base.lines,
        *cand.lines,
        f"in flight: {figure(cand.in_flight, 4)} / {figure(base.in_flight, 4)} - 1 = {signed(difference)}",
        f"rate as measured: {figure(cand.rate_req_s)} / {figure(base.rate_req_s)} - 1 = {signed(printed)}",
        f"rate at equal occupancy: {figure(base.latency_s)} s / {figure(cand.latency_s)} s - 1 = {signed(equal)}",
    )
    apart = abs(difference) > allowed and abs(difference) > abs(printed) / 2
    emptier = claim.metric.startswith(LATENCIES) and _won_by_load(claim, difference, allowed)
    if emptier or (claim.metric in BY_OCCUPANCY and apart):
        severity = "not comparable"
        sentence = (
            f"{where}The arms had {figure(base.in_flight, 4)} and {figure(cand.in_flight, 4)} requests in flight: the rate "
            f"moved {signed(printed)}, at equal occupancy it is {signed(equal)}. Compare at the same number in flight."
        )
    elif abs(difference) > ALLOWED_PERCENT:
        severity = "warning"
        sentence = (
            f"Requests in flight differ by {signed(difference)}; at equal occupancy the rate moves {signed(equal)}."
        )
    else:
        severity = "passed"
        sentence = f"Requests in flight agree within {ALLOWED_PERCENT:g} %."
    return Finding.model_validate(
        {
            "check": CHECK,
            "severity": severity,
            "short": f"occupancy differs, {signed(equal, 1)} at equal occupancy",
            "sentence": sentence,
            "arithmetic": arithmetic,
            "numbers": numbers,
        }
    )


def _won_by_load(claim: Claim, difference: float, allowed: float) -> bool:
    """Whether a lower latency came with so many fewer requests in flight that these may be its cause.

    At a fixed arrival rate fewer are in flight because each is faster; that needs the rate among the resolved settings.
    """
    base, cand = sides(claim)
    before, after = typical(base, claim.metric), typical(cand, claim.metric)
    if before is None or after is None or _same_arrivals([*base, *cand]):
        return False
    gain = 100 * (1 - after / before)
    return gain > 0 and difference < -allowed and -difference > gain / 2


def _same_arrivals(runs: list[Run]) -> bool:
    rates = {r.resolved.get(ARRIVALS) for r in runs}
    return len(rates) == 1 and all(isinstance(r, (int, float)) and usable(float(r)) for r in rates)


def _lines(arm: str, run: Run, rate: float, latency_s: float) -> list[str]:
    lines, metrics, tokens = [], run.metrics, run.output_tokens
    if "e2e_mean_ms" not in metrics and tokens:
        lines.append(
            f"{arm}: latency {figure(metrics['ttft_mean_ms'])} ms + {tokens - 1} * {figure(metrics['tpot_mean_ms'])} ms"
            f" = {figure(latency_s)} s"
        )
    if "request_rate_s" in metrics:
        lines.append(f"{arm}: {figure(rate)} req/s * {figure(latency_s)} s = {figure(rate * latency_s, 4)} in flight")
    else:
        lines.append(
            f"{arm}: {figure(metrics['throughput_tok_s'])} tok/s / {tokens} tok * {figure(latency_s)} s"
            f" = {figure(rate * latency_s, 4)} in flight"
        )
    return lines
