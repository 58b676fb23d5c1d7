"""The roofline: the copy rate that this device reaches, and what a time implies against it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch

from kda_lab.ops.protocol import Work
from kda_lab.timing.protocol import COLD_L2_MULTIPLE

COPY_BYTES = 1 << 30
"""Size of the measured copy and reduction: far above any L2."""
COPY_REPEATS = 15
PROBE_WARM_UP = 60
"""Launches before a probe is timed, some 20 ms: after three, one run in four read 12 % too low, its clocks still rising."""
INVALID_ABOVE = 2.0
"""Bandwidth above this many times the memory rate is no cache effect: work is missing."""


def measure_copy_bandwidth(device: torch.device) -> float:
    """Median rate of a large device-to-device copy in GB/s (1e9 bytes a second), read and written bytes both counted."""
    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return bandwidth_gb_s(2 * COPY_BYTES, _median_us(lambda: target.copy_(source), device))


def measure_read_bandwidth(device: torch.device) -> float:
    """Median rate of a large reduction in GB/s: memory that is only read can be faster than a copy."""
    source = torch.ones(COPY_BYTES // 4, dtype=torch.float32, device=device)
    return bandwidth_gb_s(COPY_BYTES, _median_us(lambda: torch.sum(source), device))


def _median_us(launch: Callable[[], object], device: torch.device) -> float:
    with torch.cuda.device(device):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(COPY_REPEATS + 1)]
        for _ in range(PROBE_WARM_UP):
            launch()
        marks[0].record()
        for mark in marks[1:]:
            launch()
            mark.record()
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return statistics.median(a.elapsed_time(b) * 1e3 for a, b in pairwise(marks))


def bandwidth_gb_s(bytes_moved: int, time_us: float) -> float:
    """Bytes moved in `time_us`, as GB/s."""
    return bytes_moved / time_us / 1e3


def roof_us(work: Work, copy_gb_s: float) -> float:
    """Least time of a call that is bound by memory alone, in microseconds."""
    return work.bytes_moved / copy_gb_s / 1e3


def record_state(record: Mapping[str, Any], allowance: float) -> tuple[str, str]:
    """State of one timing record from what it measured, and why it is not cold; the reason of `cold` is empty.

    Args:
        record: with `recheck`, `bytes_rotated`, `l2_bytes`, `bandwidth_gb_s`, `copy_bandwidth_gb_s` and
            `read_bandwidth_gb_s`. What the record itself calls its state is not asked: rules may have changed since.
        allowance: of the protocol.
    """
    if not record["recheck"]["passed"]:
        return "invalid", f"invalid: recheck failed: {record['recheck']['detail']}"
    memory = max(record["copy_bandwidth_gb_s"], record["read_bandwidth_gb_s"])
    state, reason = state_of(record["bandwidth_gb_s"], memory, allowance)
    needed = math.ceil(COLD_L2_MULTIPLE * record["l2_bytes"])
    if state == "cold" and record["bytes_rotated"] < needed:
        rotated = f"warm: the input sets rotate over {record['bytes_rotated']} bytes"
        if record["bytes_rotated"] <= record["l2_bytes"]:
            rotated = f"{rotated}, which all fit in the L2 of {record['l2_bytes']} bytes"
        return "warm", f"{rotated}; a cold time needs {needed} ({COLD_L2_MULTIPLE:g} x L2)"
    return state, reason


def state_of(implied_gb_s: float, memory_gb_s: float, allowance: float) -> tuple[str, str]:
    """`cold`, `warm` or `invalid` from the implied bandwidth, and why; the reason of `cold` is empty.

    `memory_gb_s` is the faster of the measured copy and read rates: see docs/decisions/0001-cold-ceiling.md.
    """
    share = implied_gb_s / memory_gb_s
    if share > INVALID_ABOVE:
        text = (
            f"implied bandwidth is {implied_gb_s:.0f} GB/s, {share:.2f} times the memory rate of {memory_gb_s:.0f} GB/s"
        )
        return "invalid", f"invalid: {text}; work is missing or the work model is wrong"
    if share > allowance:
        return "warm", (
            f"warm: implied bandwidth is {implied_gb_s:.0f} GB/s, above the memory rate of {memory_gb_s:.0f} GB/s; "
            "some bytes came from a cache"
        )
    return "cold", ""
