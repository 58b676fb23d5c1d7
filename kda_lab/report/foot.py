"""The small print of a figure: on what, how often, in which order, and how cold it was measured."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from kda_lab.report.numbers import measured, span
from kda_lab.report.records import RunRecords
from kda_lab.timing.protocol import Protocol, mode_of
from kda_lab.timing.statistics import present_state

_MIB = 1024 * 1024


def foot(records: RunRecords) -> str:
    """GPU, clocks, driver, trials, arm order, cold proof and capture hash, as far as the records tell.

    Rows of another mode than the cold one (`… (eight sets)`) have their own proof and are left out.
    """
    device = records.device
    trials = [r for r in records.trials if mode_of(str(r["row"])) == "cold"]
    parts = [
        str(device.get("name", "unknown device")),
        _clocks(trials),
        f"driver {device['driver']}" if device.get("driver") else "",
        _trials(trials),
        _cold_proof(trials),
        records.not_timed,
        ", ".join(dict.fromkeys(f"{r['arm']}: {r['stand_in']}" for r in records.replays if r.get("stand_in"))),
        f"captures sha256:{records.captures_sha256[:12]}" if records.captures_sha256 else "",
    ]
    return " · ".join(p for p in parts if p)


def _numbers(trials: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [float(r[name]) for r in trials if measured(r.get(name))]


def _clocks(trials: Sequence[dict[str, Any]]) -> str:
    telemetry = [r["telemetry"] for r in trials if isinstance(r.get("telemetry"), dict)]
    core = span(_numbers(telemetry, "sm_clock_mhz"), "MHz")
    memory = span(_numbers(telemetry, "memory_clock_mhz"), "MHz")
    return ", ".join(p for p in (f"SM {core}" if core else "", f"memory {memory}" if memory else "") if p)


def _trials(trials: Sequence[dict[str, Any]]) -> str:
    if not trials:
        return ""
    count = len({r["trial"] for r in trials if isinstance(r["trial"], int)})
    dropped = sum(bool(r.get("dropped")) for r in trials)
    protocols = ", ".join(sorted({str(r["protocol"]) for r in trials if r.get("protocol")}))
    order = order_words(trials)
    parts = [f"{count} trials per arm", f"{dropped} dropped", order, f"protocol {protocols}" if protocols else ""]
    return ", ".join(p for p in parts if p)


def order_words(trials: Sequence[dict[str, Any]]) -> str:
    """Read off the records, of rows or of one chain, whether the arms ran forwards, then backwards; empty with one trial."""
    runs: dict[Any, list[tuple[int, str]]] = {}
    for record in trials:
        if isinstance(record.get("order"), int):
            arm = f"{record['arm']}/{record['role']}"
            runs.setdefault((record.get("row", ""), record["trial"]), []).append((record["order"], arm))
    by_row: dict[str, list[list[str]]] = {}
    for (row, _), arms in sorted(runs.items(), key=lambda item: (str(item[0][0]), item[0][1])):
        by_row.setdefault(row, []).append([arm for _, arm in sorted(arms)])
    pairs = [_in_common(a, b) for orders in by_row.values() for a, b in itertools.pairwise(orders) if len(a) > 1]
    if not pairs:
        return ""
    return "order ABBA" if all(a == b[::-1] for a, b in pairs) else "order not ABBA"


def _in_common(first: list[str], second: list[str]) -> tuple[list[str], list[str]]:
    """Two orders without the arms that only one of them has, since an arm may drop out between trials."""
    return [a for a in first if a in second], [b for b in second if b in first]


def _cold_proof(trials: Sequence[dict[str, Any]]) -> str:
    states = sorted({present_state(r, Protocol())[0] for r in trials if r.get("state")})
    sets = span(_numbers(trials, "input_sets"), "input sets")
    shares = [
        r["bytes_rotated"] / r["l2_bytes"]
        for r in trials
        if measured(r.get("bytes_rotated")) and measured(r.get("l2_bytes")) and r["l2_bytes"] > 0
    ]
    if not states:
        return ""
    proof = [sets] if sets else []
    if shares:
        l2_mib = f"{max(_numbers(trials, 'l2_bytes')) / _MIB:.3g}"
        proof.append(f"at least {min(shares):.2g}× L2 ({l2_mib} MiB)")
    return f"{' and '.join(states)}: {', '.join(proof)}" if proof else " and ".join(states)
