"""Synthetic records of the size of a real run: 15 captures and a 48-row sweep, six arms each."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kda_lab.run_folder import RunFolder, write_json, write_json_lines
from kda_lab.timing.statistics import RowResult

OP = "demo.attention"
ARMS = (
    ("per_head", "baseline"),
    ("per_head", "control"),
    ("grouped", "candidate"),
    ("split_merge", "peer"),
    ("flashinfer_ragged_fa2", "peer"),
    ("flashinfer_ragged_fa3", "peer"),
)
TOPOLOGIES = {"tp1": {"HQ": 24, "HKV": 2}, "tp2": {"HQ": 12, "HKV": 1}}
CLASSES = {"short": 120, "medium": 700, "saturated": 2050, "mixed": 1100}
BATCHES = (1, 4, 12, 16, 32, 128)
CHECKS = (
    "error_fp32", "error_pinned", "row_max", "output_written", "output_finite", "guards", "inputs_unchanged",
    "repeat_bits", "changed_lengths_shorter", "changed_lengths_longer", "state_zero",
)  # fmt: skip
MUTANTS = ("all_zero", "untouched", "head_map", "tail_mask", "dropped_last_row", "scale_twice", "zero_length_nan")


def arm_time_us(arm: str, batch: int, length: int, kv_heads: int) -> float:
    """A plausible time: latency of the schedule plus the bytes at a share of the copy rate."""
    roof = roof_us(batch, length, kv_heads)
    scale = {
        "per_head": (8 + 0.125 * length, 18.0),
        "grouped": (4 + 0.0022 * length, 1.02),
        "split_merge": (7 + 0.004 * length, 1.12),
        "flashinfer_ragged_fa2": (9 + 0.0012 * length, 1.05),
        "flashinfer_ragged_fa3": (20 + 0.014 * length, 11.0),
    }[arm]
    return scale[0] + scale[1] * roof


def roof_us(batch: int, length: int, kv_heads: int) -> float:
    return batch * length * kv_heads * 1024 / 4.3e6


def summary(label: str, axes: dict[str, Any], arm: str, role: str, length: int, seed: random.Random) -> RowResult:
    """One row with an interval, a verdict by the rule, and now and then a refusal."""
    batch = axes["B"]
    base = arm_time_us("per_head", batch, length, axes["HKV"])
    roof = roof_us(batch, length, axes["HKV"])
    if arm == "flashinfer_ragged_fa3" and batch == 128 and axes["lengths"] == "mixed":
        reason = "unavailable, because the planner raised RuntimeError: workspace of 134217728 bytes is too small"
        return RowResult(OP, label, axes, arm, role, "per_head", base, None, None, None, None, 0.012, "", 0, 0, roof,
                       None, None, "refused", reason)  # fmt: skip
    time = base * seed.uniform(0.997, 1.003) if role == "control" else arm_time_us(arm, batch, length, axes["HKV"])
    ratio, noise = base / time, seed.uniform(0.006, 0.024)
    reason = ""
    if role in ("baseline", "control"):
        ratio, low, high, verdict, reason = base / time, 0.99, 1.01, "", f"the {role}: not compared"
    else:
        spread = seed.uniform(0.004, 0.05)
        low, high = ratio * (1 - spread), ratio * (1 + spread)
        band = (1 / (1 + noise), 1 + noise)
        verdict = "faster" if low > band[1] else "slower" if high < band[0] else "ambiguous"
        if band[0] <= low and high <= band[1]:
            verdict = "same"
    return RowResult(OP, label, axes, arm, role, "per_head", base, time, ratio, low, high, noise, verdict, 5, 0, roof,
                   roof / time, 4300 * roof / time, "cold", reason)  # fmt: skip


@pytest.fixture
def sweep() -> list[RowResult]:
    """48 rows: two topologies, six batches, four length classes; six arms each."""
    seed = random.Random(7)
    rows = []
    for topology, heads in TOPOLOGIES.items():
        for kind, length in CLASSES.items():
            for batch in BATCHES:
                axes = {**heads, "B": batch, "lengths": kind}
                rows += [summary(f"{topology}-B{batch}-{kind}", axes, a, r, length, seed) for a, r in ARMS]
    return rows


CAPTURES = tuple(
    (f"{t}-{q}", {**TOPOLOGIES["tp1" if t == "tp1" else "tp2"], "B": b, "lengths": k}, n)
    for t in ("tp1", "tp2r0", "tp2r1")
    for q, b, k, n in (
        ("q1", 1, "listed", 858), ("q3", 3, "mixed", 511), ("q4-short", 4, "short", 1071),
        ("q4-saturated", 4, "saturated", 2050), ("q12", 12, "mixed", 672),
    )
)  # fmt: skip


@pytest.fixture
def capture_rows() -> list[RowResult]:
    """15 captures as timed rows, six arms each; few batches a class."""
    seed = random.Random(3)
    return [summary(name, axes, a, r, n, seed) for name, axes, n in CAPTURES for a, r in ARMS]


def replay_record(capture: str, axes: dict[str, Any], arm: str, role: str, seed: random.Random) -> dict[str, Any]:
    floor = seed.uniform(1.3e-3, 1.6e-3)
    error = floor * seed.uniform(0.99, 1.04) * (2.4 if arm == "flashinfer_ragged_fa3" else 1)
    errors = {
        "fp32": error,
        "fp64": error,
        "pinned": error * 1.1,
        "row_max": error * 1.5,
        "floor": floor,
        "pinned_fp32": 1.2e-3,
    }
    limits = {"error_fp32": (error, 2e-3), "error_pinned": (error * 1.1, 2e-3), "row_max": (error * 1.5, 4e-3)}
    checks = []
    for name in CHECKS:
        value, limit = limits.get(name, (None, None))
        good = value is None or value <= limit
        checks.append({"name": name, "passed": good, "value": value, "limit": limit, "detail": ""})
    return {
        "kind": "replay", "op": OP, "capture": capture, "capture_sha256": hashlib.sha256(capture.encode()).hexdigest(),
        "capture_kind": "real", "axes": axes, "arm": arm, "role": role, "device": "cuda", "interpreter": False,
        "checks": checks, "passed": all(c["passed"] for c in checks), "errors": errors, "provenance": {},
    }  # fmt: skip


def power_record(capture: str, index: int) -> dict[str, Any]:
    mutants = []
    for number, name in enumerate(MUTANTS):
        applies = not (name == "zero_length_nan" or (name == "head_map" and not capture.startswith("tp1")))
        by = ("error_fp32", "row_max", "changed_lengths_longer")[(number + index) % 3] if applies else ""
        why = (
            ""
            if applies
            else "no zero-length row here"
            if name == "zero_length_nan"
            else "one KV head: both maps agree"
        )
        mutants.append({"name": name, "killed": applies, "by": by, "applies": applies, "why_not": why})
    total = sum(m["applies"] for m in mutants)
    return {
        "kind": "power",
        "op": OP,
        "capture": capture,
        "killed": total,
        "total": total,
        "mutants": mutants,
        "provenance": {},
    }


@pytest.fixture
def verify_records() -> list[dict[str, Any]]:
    """15 captures x 5 arms of replays, their gate power, and one refused arm."""
    seed = random.Random(5)
    records = []
    for index, (name, axes, _) in enumerate(CAPTURES):
        records += [replay_record(name, axes, a, r, seed) for a, r in ARMS if r != "control"]
        records.append(power_record(name, index))
    records.append({"kind": "refused", "op": OP, "capture": "tp1-q1", "arm": "cute", "role": "peer",
                    "reason": "unavailable, because importing cutlass raised ImportError"})  # fmt: skip
    return records


def provenance(kind: str = "cuda") -> dict[str, Any]:
    device: dict[str, Any] = {"type": "cpu", "name": "x86_64", "interpreter": True}
    if kind == "cuda":
        device = {"type": "cuda", "name": "NVIDIA H200", "capability": [9, 0], "sm_count": 132, "l2_bytes": 62914560,
                  "driver": "580.159.04", "cuda": "13.0", "interpreter": False}  # fmt: skip
    return {"kda_lab": "0.1.0", "git": {"commit": "0123456789abcdef", "dirty": False}, "started_utc": "2026-11-29T16:00:00Z",
            "command": "kda-lab run 30_verify.ipynb", "versions": {"python": "3.12.3", "torch": "2.11.0+cu130"},
            "device": device, "environment": {}}  # fmt: skip


def timing_records(rows: list[RowResult], trials: int = 5) -> list[dict[str, Any]]:
    """Raw lines as the timing room writes them, from summaries: jittered medians in ABBA order."""
    seed = random.Random(11)
    records = []
    by_row: dict[str, list[RowResult]] = {}
    for row in rows:
        by_row.setdefault(row.row, []).append(row)
    for members in by_row.values():
        for member in members:
            if member.state == "refused":
                records.append({"kind": "refused", "op": member.op, "row": member.row, "axes": member.axes, "arm": member.arm,
                                "role": member.role, "reason": member.reason, "provenance": {}})  # fmt: skip
        timed = [m for m in members if m.state != "refused"]
        for trial in range(trials):
            for order, member in enumerate(timed if trial % 2 == 0 else timed[::-1]):
                records.append(_trial(member, trial, order, seed))
    return records


def _trial(row: RowResult, trial: int, order: int, seed: random.Random) -> dict[str, Any]:
    median = (row.arm_us or 0) * seed.uniform(0.99, 1.01)
    size = int((row.roof_us or 1) * 4.3e6)
    sets = max(2, -(-5 * 62914560 // size))
    return {
        "kind": "timing", "op": row.op, "row": row.row, "axes": row.axes, "arm": row.arm, "role": row.role,
        "baseline": row.baseline, "trial": trial, "order": order, "state": "cold", "state_reason": "", "dropped": "",
        "samples_us": [median], "median_us": median, "calls_per_graph": sets, "input_sets": sets, "bytes_per_call": size,
        "bytes_rotated": size * sets, "l2_bytes": 62914560, "flops": size * 12, "bandwidth_gb_s": size / median / 1e3,
        "copy_bandwidth_gb_s": 4300.0, "roof_us": row.roof_us, "kernels": {f"_{row.arm}_kernel": 1}, "kernels_reason": "",
        "prepare_us": 12.0, "timer": "cuda graph, events", "protocol": "v1", "provenance": {},
        "telemetry": {"sm_clock_mhz": seed.choice((1755, 1965, 1980)), "memory_clock_mhz": 3201, "power_w": 300.0,
                      "temperature_c": 40, "throttle": [], "other_processes": 0, "reason": ""},
        "recheck": {"passed": True, "error": 0.0021, "limit": 0.005, "detail": ""},
    }  # fmt: skip


def fill(folder: Path, rows: list[RowResult], verify: list[dict[str, Any]], kind: str = "cuda") -> RunFolder:
    """A whole run folder, notebook included."""
    run = RunFolder.at(folder)
    write_json_lines(run.timing_records, timing_records(rows))
    write_json_lines(run.verify_records, verify)
    write_json(run.provenance, provenance(kind))
    write_json(run.parameters, {"op": OP, "arms": ["grouped", "split_merge"], "trials": 5, "device": "auto"})
    write_json(run.verdict, {"passed": True, "sentence": "pass: 75 of 75 replays passed; killed 90/90 mutants",
                             "evidence": {"replays": 75, "killed": 90, "mutants": 90}, "failures": []})  # fmt: skip
    run.executed_notebook.write_text(json.dumps(NOTEBOOK))
    return run


NOTEBOOK: dict[str, Any] = {
    "nbformat": 4, "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    "cells": [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# Is it right?\n\nTolerance $2 \\cdot 10^{-3}$."},
        {"cell_type": "code", "id": "b", "metadata": {}, "execution_count": 1, "source": "print('<b>1</b> & 2')",
         "outputs": [{"output_type": "stream", "name": "stdout", "text": "<b>1</b> & 2\n"},
                     {"output_type": "display_data", "metadata": {}, "data": {
                         "text/html": "<script src='https://cdn.example/x.js'></script><table><tr><td>cell</td></tr></table>"}}]},
    ],
}  # fmt: skip


POLICIES = {"streamed stream/stream": 1.0, "streamed stream/persist": 0.98, "streamed persist/persist": 1.05}
PRODUCTS = {"9b_gate_up-M8-random": 18.0, "9b_down-M8-random": 12.0}


def chain_run(folder: Path, trials: int = 5) -> RunFolder:
    """A run of notebook 24: `down` wins with stream/persist apart, `gate_up` loses, and the chain loses more."""
    run = fill(folder, [], [])
    run.verify_records.unlink()
    shared = {"op": "nvfp4.gemm", "layers": 4, "state_bytes": 24_000_000, "source_sha256": "s",
              "axes": {"model": "9b", "M": 8, "rows": list(PRODUCTS)}, "provenance": provenance()}  # fmt: skip
    arms = [(a, "reference" if share == 1 else "policy", share) for a, share in POLICIES.items()]
    arms += [("cublas_bf16", "baseline", 2.5), ("streamed stream/stream", "control", 1.0)]
    label = "v1" if trials == 5 else f"v1 (trials={trials})"
    lines = [_check(shared, arm, role) for arm, role, _ in arms if role != "control"]
    for trial in range(trials):
        for order, (arm, role, share) in enumerate(arms if trial % 2 == 0 else arms[::-1]):
            lines.append(_chained(shared, arm, role, 60 * share**-3 if share < 1 else 60 * share, trial, order, label))
    write_json_lines(run.path / "chain.jsonl", lines)
    roles = {"reference": "baseline", "policy": "candidate", "baseline": "peer", "control": "control"}
    timed = []
    for number, (row, us) in enumerate(PRODUCTS.items()):
        for mode in ("", " (eight sets)"):
            factors = [
                (a, roles[r], s if number or r != "policy" else 1.05) for a, r, s in arms if not mode or r != "baseline"
            ]
            rows = [_product(row, mode, arm, role, us * share) for arm, role, share in factors]
            for record in timing_records(rows, trials):
                median = us * {a: share for a, _, share in factors}[record["arm"]] * _jitter(record)
                timed.append({**record, "median_us": median, "samples_us": [median], "protocol": label})
    write_json_lines(run.timing_records, timed)
    return run


def _jitter(record: dict[str, Any]) -> float:
    """Up to 0.1 %, so that noise bands are narrow and known."""
    return 1 + 0.0005 * ((record["trial"] * 7 + record["order"]) % 3)


def _product(row: str, mode: str, arm: str, role: str, us: float) -> RowResult:
    axes = {"M": 8, "N": 4096, "K": 12288, "kind": "random"}
    return RowResult("nvfp4.gemm", row + mode, axes, arm, role, "streamed stream/stream", us, us, 1.0, None, None, None, "", 5,
                     0, us / 2, 0.5, 2000.0, "cold", "")  # fmt: skip


def _check(shared: dict[str, Any], arm: str, role: str) -> dict[str, Any]:
    return {**shared, "kind": "check", "arm": arm, "role": role, "device": "cuda", "interpreter": False,
            "outputs_sha256": "abc", "recheck": {"passed": True, "error": 0.00166, "limit": 0.002, "detail": ""}}  # fmt: skip


def _chained(
    shared: dict[str, Any], arm: str, role: str, us: float, trial: int, order: int, label: str
) -> dict[str, Any]:
    median = us * _jitter({"trial": trial, "order": order})
    return {
        **shared, "kind": "chain", "arm": arm, "role": role, "reference": "streamed stream/stream", "trial": trial,
        "order": order, "samples_us": [median], "median_us": median, "passes_per_graph": 4, "product_bytes": 85_600_000,
        "touches_per_layer": 2, "l2_bytes": 62_914_560, "cold_products": 4 * 85_600_000 >= 5 * 62_914_560,
        "l2_reset_reason": "", "copy_bandwidth_gb_s": 4300.0, "roof_us": 19.9, "kernels": {"chain": {"gemm": 8}},
        "timer": "cuda graph, events", "outputs_sha256": "abc", "protocol": f"chain {label}",
        "telemetry": {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "power_w": 300.0, "temperature_c": 40, "throttle": [],
                      "other_processes": 0, "reason": ""},
        "recheck": {"passed": True, "error": 0.00166, "limit": 0.002, "detail": ""},
    }  # fmt: skip


@pytest.fixture
def fill_chain() -> Callable[..., RunFolder]:
    """The function that fills a run folder as notebook 24 does."""
    return chain_run


@pytest.fixture
def fill_run() -> Callable[..., RunFolder]:
    """The function that fills a run folder with given rows and verify records."""
    return fill


@pytest.fixture
def one_row() -> Callable[..., RowResult]:
    """Make one summarised row; any field can be named."""

    def make(**fields: Any) -> RowResult:
        values: dict[str, Any] = {
            "op": OP, "row": "tp1-B4-short", "axes": {"HQ": 24, "HKV": 2, "B": 4, "lengths": "short"}, "arm": "grouped",
            "role": "candidate", "baseline": "per_head", "baseline_us": 20.0, "arm_us": 10.0, "ratio": 2.0, "low": 1.9,
            "high": 2.1, "noise": 0.01, "verdict": "faster", "trials": 5, "dropped_trials": 0, "roof_us": 4.0,
            "roof_share": 0.4, "bandwidth_gb_s": 1720.0, "state": "cold", "reason": "",
        }  # fmt: skip
        return RowResult(**{**values, **fields})

    return make
