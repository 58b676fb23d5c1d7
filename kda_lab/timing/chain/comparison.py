"""Isolated or in the chain: the same arms, trials and rule of verdict, so that a win that vanishes is seen."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kda_lab.timing.protocol import COLD_L2_MULTIPLE, SUFFIXES, Protocol
from kda_lab.timing.statistics import Interval, RowResult, Verdict, noise_of, paired_interval, verdict_of

CHAIN, ISOLATED = "in the chain", "isolated"
COLD = f"{ISOLATED}, cold"
ALONE = " alone"
"""In the name of a place where one product of the layer was timed: `9b_down alone, cold`."""
Times = dict[int, float]
"""Trial to microseconds of one layer, good trials only."""


@dataclass(frozen=True)
class _Timed:
    """One arm in one place."""

    arm: str
    role: str
    times: Times
    dropped: int
    refused: str = ""
    why_dropped: str = ""
    warm: str = ""
    """Why a time is not cold, where the place asks for that."""


def compare(
    chain: Sequence[dict[str, Any]],
    isolated: Sequence[dict[str, Any]],
    *,
    reference: str = "",
    protocol: Protocol | None = None,
) -> list[RowResult]:
    """One result a (place, arm), all in microseconds of one layer.

    An isolated time of a layer is the sum over its products, trial by trial, each timed in a loop of its own.
    Of the policies each product has a place of its own too, in microseconds of that product, since a win on
    one may hide in the sum.

    Args:
        chain: lines of `chain.jsonl`; other kinds than `chain` and `refused` are ignored.
        isolated: lines of `timing.jsonl` on the products of the chain, in any mode; the mode is in the label.
        reference: the arm to divide by; empty takes the one with the role `reference`. The noise band is
            always that of the A/A control of the place.
        protocol: trials, resamples, confidence and seed; v1 when None.

    Returns:
        `RowResult` whose `row` is the place: `isolated, cold`, `9b_down alone, cold`, `isolated (eight sets)`,
        `9b_down alone (eight sets)` or `in the chain`. Its `verdict` is by the usual rule in every place, and so
        also says what a warm loop would have concluded.
    """
    protocol = protocol or Protocol()
    lines = [r for r in chain if r["kind"] in ("chain", "refused")]
    if not lines:
        return []
    roles = {str(r["arm"]): str(r["role"]) for r in lines if r["role"] != "control"}
    named = reference or next((arm for arm, role in roles.items() if role == "reference"), "")
    found: list[RowResult] = []
    for place, arms in {**_isolated_places(isolated, lines[0]["axes"]["rows"], roles), CHAIN: _in_chain(lines)}.items():
        results = _place_results(place, arms, named, protocol)
        kept = [r for r in results if r.role == "policy"] if ALONE in place else results
        found += [replace(r, op=lines[0]["op"], axes=dict(lines[0]["axes"])) for r in kept]
    return found


def recorded_protocol(chain: Sequence[dict[str, Any]]) -> Protocol:
    """v1 with the trials that the labels of timed chains name: 7 for `chain v1 (trials=7)`; the most of several."""
    labels = {str(r["protocol"]) for r in chain if r["kind"] == "chain"}
    named = [re.search(r"\btrials=([1-9][0-9]{0,5})\b", label) for label in labels]
    standard = Protocol()
    trials = max((int(n[1]) if n else standard.trials for n in named), default=standard.trials)
    return replace(standard, trials=trials)


def _in_chain(lines: Sequence[dict[str, Any]]) -> list[_Timed]:
    told = [{**line, "state_reason": _warm_products(line)} for line in lines]
    return [_timed(arm, role, [of_arm]) for (arm, role), of_arm in _by_arm(told).items()]


def _warm_products(line: dict[str, Any]) -> str:
    """Why weights of one pass may still be in the L2 in the next; empty when they cannot."""
    if line["kind"] == "refused" or line["cold_products"]:
        return ""
    moved, needed = line["layers"] * line["product_bytes"], math.ceil(COLD_L2_MULTIPLE * line["l2_bytes"])
    return f"warm: the products of a pass move {moved} bytes; a cold pass needs {needed} ({COLD_L2_MULTIPLE:g} x L2)"


def _isolated_places(
    records: Sequence[dict[str, Any]], rows: Sequence[str], roles: dict[str, str]
) -> dict[str, list[_Timed]]:
    """Place to its arms: the layer, then each of several products; roles are those that the arms have in the chain."""
    labels = {r["row"] for r in records}
    suffixes = [suffix for suffix in SUFFIXES.values() if any(row + suffix in labels for row in rows)]
    places: dict[str, list[_Timed]] = {}
    for suffix in suffixes:
        of_rows = [[r for r in records if r["row"] == row + suffix] for row in rows]
        mode = suffix or COLD.removeprefix(ISOLATED)
        places[f"{ISOLATED}{mode}"] = _arms_over(of_rows, roles)
        for name, lines in zip(_short_names(rows), of_rows, strict=True) if len(rows) > 1 else ():
            places[f"{name}{ALONE}{mode}"] = _arms_over([lines], roles)
    return places


def _arms_over(by_row: Sequence[Sequence[dict[str, Any]]], roles: dict[str, str]) -> list[_Timed]:
    """Every arm of these rows, its times summed over them."""
    sorted_out = [_by_arm(lines) for lines in by_row]
    keys = dict.fromkeys(key for arms in sorted_out for key in arms)
    return [
        _timed(arm, role if role == "control" else roles.get(arm, role), [a.get((arm, role), []) for a in sorted_out])
        for arm, role in keys
    ]


def _short_names(rows: Sequence[str]) -> list[str]:
    """Shapes for labels like `9b_down-M8-random`; the labels themselves where shapes do not tell them apart."""
    shapes = [row.split("-")[0] for row in rows]
    return shapes if len(set(shapes)) == len(shapes) else list(rows)


def _by_arm(lines: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault((line["arm"], line["role"]), []).append(line)
    return found


def _timed(arm: str, role: str, by_row: Sequence[Sequence[dict[str, Any]]]) -> _Timed:
    """One arm from its lines, by row: a trial counts only where it is good on every row."""
    lines = [line for of_row in by_row for line in of_row]
    refused = next((line["reason"] for line in lines if line["kind"] == "refused"), "")
    good = [
        {r["trial"]: r["median_us"] for r in of_row if r["kind"] != "refused" and not r["dropped"]} for of_row in by_row
    ]
    trials = set.intersection(*(set(times) for times in good)) if good else set()
    why = sorted({line["dropped"] for line in lines if line.get("dropped")})
    seen = {line["trial"] for line in lines if line["kind"] != "refused"}
    times = {trial: sum(of_row[trial] for of_row in good) for trial in sorted(trials)}
    warm = next((line["state_reason"] for line in lines if line.get("state_reason")), "")
    return _Timed(arm, role, times, len(seen) - len(times), refused, "; ".join(why), warm)


def _place_results(place: str, arms: Sequence[_Timed], reference: str, protocol: Protocol) -> list[RowResult]:
    own = next((a for a in arms if a.role == "reference"), None)
    control = next((a for a in arms if a.role == "control"), None)
    base = next((a for a in arms if a.arm == reference and a.role != "control"), None)
    band = paired_interval(own.times, control.times, protocol) if own and control else None
    # A band of fewer pairs than an arm needs would be narrower than the noise it stands for.
    noise = noise_of(band) if band and band.pairs >= protocol.trials else None
    return [_result(place, arm, base, noise, protocol) for arm in arms]


def _result(place: str, arm: _Timed, base: _Timed | None, noise: float | None, protocol: Protocol) -> RowResult:
    interval = paired_interval(base.times, arm.times, protocol) if base else None
    shared = sorted(base.times.keys() & arm.times.keys()) if base else []
    verdict, reason = _judge(arm, base, interval, noise, protocol)
    return RowResult(
        op="",
        row=place,
        axes={},
        arm=arm.arm,
        role=arm.role,
        baseline=base.arm if base else "",
        baseline_us=statistics.median(base.times[t] for t in shared) if base and shared else None,
        arm_us=statistics.median(arm.times[t] for t in shared or arm.times) if arm.times else None,
        ratio=interval.ratio if interval else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        noise=noise,
        verdict=verdict,
        trials=interval.pairs if interval else len(arm.times),
        dropped_trials=arm.dropped,
        roof_us=None,
        roof_share=None,
        bandwidth_gb_s=None,
        state="refused" if arm.refused else place,
        reason=reason,
    )


def _judge(
    arm: _Timed, base: _Timed | None, interval: Interval | None, noise: float | None, protocol: Protocol
) -> tuple[Verdict, str]:
    """The verdict, and why it is empty or ambiguous."""
    if arm.refused:
        return "", arm.refused
    if arm.role == "control":
        return "", "A/A control: its interval is the noise band"
    if arm.role == "state":
        return "", "the chain without its products: what the state alone costs"
    if base is None or base.refused:
        return "", f"no reference was timed in this place{': ' + base.refused if base else ''}"
    if arm.arm == base.arm:
        return "", "the reference: every ratio divides by it"
    if interval is None or interval.low is None or interval.high is None or interval.pairs < protocol.trials:
        dropped = arm.why_dropped or base.why_dropped
        pairs = interval.pairs if interval else 0
        return (
            "ambiguous",
            f"{pairs} good trials; needed: {protocol.trials}{f' (dropped: {dropped})' if dropped else ''}",
        )
    if noise is None:
        return "ambiguous", f"no noise band: the A/A control has fewer than {protocol.trials} good trials"
    return verdict_of(interval.low, interval.high, noise), arm.warm


def gain_percent(ratio: float | None) -> str:
    """A ratio as a signed gain: 1.012 is `+1.20 %`; a dash where nothing was measured."""
    return "—" if ratio is None else f"{100 * (ratio - 1):+.2f} %"


def findings(results: Sequence[RowResult]) -> list[str]:
    """What became of each policy's isolated result in the chain, one sentence a (policy, isolated place).

    Of a single product only a win is told that the whole layer does not show: the one that a benchmark of that
    product would have shipped.
    """
    policies = [r for r in results if r.role == "policy"]
    chained = {r.arm: r for r in policies if r.row == CHAIN}
    layers = {(r.arm, r.row.removeprefix(ISOLATED)): r.verdict for r in policies if r.row.startswith(ISOLATED)}
    told = [r for r in policies if ALONE not in r.row or _wins_apart(r, layers)]
    found = [_finding(r, chained[r.arm]) for r in told if r.row != CHAIN and r.arm in chained]
    alone = [r for r in chained.values() if all(o.row == CHAIN for o in policies if o.arm == r.arm)]
    return found + [f"{r.arm}: in the chain {gain_percent(r.ratio)} ({r.verdict or r.reason})" for r in alone]


def _wins_apart(product: RowResult, layers: Mapping[tuple[str, str], str]) -> bool:
    """Whether one product is faster in a mode in which its layer is not."""
    mode = product.row.rpartition(ALONE)[2]
    return product.verdict == "faster" and layers.get((product.arm, mode)) != "faster"


def _finding(isolated: RowResult, chained: RowResult) -> str:
    measured = (
        f"{isolated.arm}: {isolated.row} {gain_percent(isolated.ratio)}, in the chain {gain_percent(chained.ratio)}"
    )
    return f"{measured}: {_words(isolated, chained)}"


def _words(isolated: RowResult, chained: RowResult) -> str:
    for result in (isolated, chained):
        if not result.verdict:
            return f"not compared, {result.row}: {result.reason}"
    alone, within = isolated.verdict, chained.verdict
    if "ambiguous" in (alone, within):
        return f"undecided ({alone} {isolated.row}, {within} in the chain)"
    if alone == within:
        return "no difference beyond noise in either place" if alone == "same" else f"{within} in both places"
    if alone == "faster":
        return "the isolated win vanishes" if within == "same" else "the isolated win turns into a loss"
    if alone == "slower":
        return "the isolated loss vanishes" if within == "same" else "the isolated loss turns into a win"
    return f"{within} only in the chain"
