"""What about a run's chain records must fail its verdict: wrong values, unequal bits, noise, gaps. Never a speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kda_lab.timing.chain.assembly import STATE_STEP
from kda_lab.timing.chain.measure import WHOLE
from kda_lab.timing.protocol import Protocol
from kda_lab.timing.statistics import Interval, noise_of, paired_interval

NOISE_LIMIT = 0.02
"""Half width of the A/A band above which the chain says nothing of policies, which differ by about 1 %."""
SAME_BITS = ("reference", "policy", "control")
NEEDED = ("reference", "policy", "baseline", "state")
"""Roles whose refusal or missing trials fail a run; a peer that cannot run is a finding about the peer."""

Record = dict[str, Any]


def faults(
    records: Sequence[Record], *, kernels_per_call: Mapping[str, int] | None = None, protocol: Protocol | None = None
) -> list[str]:
    """One sentence for each thing that is wrong or missing; empty when the run stands.

    Args:
        records: lines of `chain.jsonl`.
        kernels_per_call: arm to the device kernels that its declaration promises for one product.
        protocol: trials an arm needs; v1 when None.
    """
    protocol = protocol or Protocol()
    found = [*_wrong(records), *_unequal_bits(records), *_refused(records)]
    timed = [r for r in records if r["kind"] == "chain"]
    if timed:
        found += [*_gaps(timed, protocol), *_noisy(timed, protocol), *_kernels(timed, kernels_per_call or {})]
    return list(dict.fromkeys(found))


def _wrong(records: Sequence[Record]) -> list[str]:
    checks = [r for r in records if r["kind"] == "check"]
    found = [f"{r['arm']}: {r['recheck']['detail']}" for r in checks if not r["recheck"]["passed"]]
    found += [
        f"{r['arm']} in trial {r['trial']}: {r['recheck']['detail']}"
        for r in records
        if r["kind"] == "chain" and not r["recheck"]["passed"]
    ]
    checked = {r["arm"] for r in checks if r["role"] in ("reference", "policy")}
    return found if len(checked) > 1 else [*found, f"{len(checked)} policies were checked; needed: at least 2"]


def _unequal_bits(records: Sequence[Record]) -> list[str]:
    """Policies are hints: where one changes a bit, it is another kernel."""
    places: dict[str, dict[str, list[str]]] = {}
    for record in records:
        if record["kind"] != "refused" and record["role"] in SAME_BITS:
            place = f"trial {record['trial']}" if record["kind"] == "chain" else "the check"
            places.setdefault(place, {}).setdefault(record["outputs_sha256"], []).append(record["arm"])
    return [
        f"outputs differ between policies in {place}: {' | '.join(', '.join(arms) for arms in hashes.values())}"
        for place, hashes in places.items()
        if len(hashes) > 1
    ]


def _refused(records: Sequence[Record]) -> list[str]:
    return [f"{r['arm']} was refused: {r['reason']}" for r in records if r["kind"] == "refused" and r["role"] in NEEDED]


def _gaps(timed: Sequence[Record], protocol: Protocol) -> list[str]:
    found = []
    for arm in dict.fromkeys((r["arm"], r["role"]) for r in timed):
        lines = [r for r in timed if (r["arm"], r["role"]) == arm]
        good = sum(not r["dropped"] for r in lines)
        if good < protocol.trials and arm[1] != "peer":
            why = "; ".join(sorted({r["dropped"] for r in lines if r["dropped"]}))
            found.append(
                f"{arm[0]} ({arm[1]}): {good} good trials; needed: {protocol.trials}{f' ({why})' if why else ''}"
            )
    return found


def _noisy(timed: Sequence[Record], protocol: Protocol) -> list[str]:
    band = control_interval(timed, protocol)
    noise = noise_of(band)
    if band is None or noise is None:
        return ["the chain has no A/A band: reference and control share fewer than 2 good trials"]
    if noise <= NOISE_LIMIT:
        return []
    remedy = "Free the GPU, or run more trials."
    return [f"the A/A band of the chain is ±{100 * noise:.2f} %; allowed: at most ±{100 * NOISE_LIMIT:g} %. {remedy}"]


def control_interval(timed: Sequence[Record], protocol: Protocol) -> Interval | None:
    """The reference against itself in the chain; None without common trials."""
    times = {
        role: {r["trial"]: r["median_us"] for r in timed if r["role"] == role and not r["dropped"]}
        for role in ("reference", "control")
    }
    return paired_interval(times["reference"], times["control"], protocol)


def _kernels(timed: Sequence[Record], kernels_per_call: Mapping[str, int]) -> list[str]:
    found = []
    for record in timed:
        steps = {kind: counts for kind, counts in record["kernels"].items() if counts is not None}
        products = [kind for kind in steps if kind not in (STATE_STEP, WHOLE)]
        promised = kernels_per_call.get(record["arm"])
        for kind in products if promised is not None else []:
            ran = sum(steps[kind].values())
            if ran != promised:
                found.append(f"{record['arm']}: {ran} kernels for {kind}, declared {promised}")
        if record["role"] in SAME_BITS and len(steps) == len(record["kernels"]):
            found += _whole_pass(record, products)
    return found


def _whole_pass(record: Record, products: Sequence[str]) -> list[str]:
    """A pass must hold exactly the activities of its steps."""
    expected: Counter[str] = Counter()
    for kind in products:
        expected.update({name: count * record["layers"] for name, count in record["kernels"][kind].items()})
    touches = record["layers"] * record["touches_per_layer"]
    expected.update({name: count * touches for name, count in record["kernels"].get(STATE_STEP, {}).items()})
    if expected == Counter(record["kernels"][WHOLE]):
        return []
    return [f"{record['arm']}: a pass ran {record['kernels'][WHOLE]}; its steps give {dict(expected)}"]
