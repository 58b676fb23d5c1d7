"""Metrics that a run may carry, their units, and the conversions between units.

A metric's name ends in its unit. A value typed in another unit of the same dimension is converted on reading;
one of another dimension is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from kda_lab.errors import Reason, RefereeError

Dimension = Literal["time", "token rate", "request rate", "share", "count", "bandwidth"]

# Unit as written to (dimension, factor to the dimension's base unit: seconds, tokens/s, requests/s, 1, 1, bytes/s).
UNITS: MappingProxyType[str, tuple[Dimension, float]] = MappingProxyType(
    {
        "s": ("time", 1.0),
        "ms": ("time", 1e-3),
        "us": ("time", 1e-6),
        "ns": ("time", 1e-9),
        "min": ("time", 60.0),
        "tok/s": ("token rate", 1.0),
        "tok/ms": ("token rate", 1e3),
        "ktok/s": ("token rate", 1e3),
        "tok/min": ("token rate", 1 / 60),
        "req/s": ("request rate", 1.0),
        "req/min": ("request rate", 1 / 60),
        "fraction": ("share", 1.0),
        "percent": ("share", 1e-2),
        "count": ("count", 1.0),
        "GB/s": ("bandwidth", 1e9),
        "TB/s": ("bandwidth", 1e12),
    }
)
SUFFIXES: MappingProxyType[str, str] = MappingProxyType(
    {"tok_s": "tok/s", "req_s": "req/s", "gb_s": "GB/s", "ms": "ms", "us": "us", "s": "s", "percent": "percent"}
)


@dataclass(frozen=True)
class Metric:
    """One measured quantity."""

    name: str
    unit: str
    """Unit of the stored value, a key of `UNITS`."""
    better: Literal["higher", "lower", "neither"]
    words: str


def _metrics() -> dict[str, Metric]:
    made = [
        Metric("throughput_tok_s", "tok/s", "higher", "output tokens a second, all requests"),
        Metric("total_throughput_tok_s", "tok/s", "higher", "input and output tokens a second"),
        Metric("input_throughput_tok_s", "tok/s", "higher", "input tokens a second"),
        Metric("request_rate_s", "req/s", "higher", "finished requests a second"),
        Metric("duration_s", "s", "lower", "wall time of the run"),
        Metric("kernel_us", "us", "lower", "one kernel, or one call of an op"),
        Metric("prologue_us", "us", "lower", "the kernels before one layer's main kernel"),
        Metric("wall_us", "us", "lower", "a slice from its first start to its end"),
        Metric("union_us", "us", "lower", "union of the kernels' intervals in a slice"),
        Metric("summed_kernel_us", "us", "lower", "sum of kernel durations in a slice, overlap counted twice"),
        Metric("graph_ms", "ms", "lower", "one replay of a whole CUDA graph"),
        Metric("step_ms", "ms", "lower", "one decode step"),
        Metric("kernels", "count", "neither", "kernels in a slice"),
        Metric("nodes", "count", "neither", "nodes of a CUDA graph"),
        Metric("streams", "count", "neither", "streams on which kernels ran"),
        Metric("completed", "count", "neither", "requests that finished"),
        Metric("failed", "count", "neither", "requests that did not finish"),
        Metric("artifacts_built", "count", "neither", "compiled artifacts that appeared during the run"),
        Metric("accept_length", "count", "higher", "accepted tokens a speculative step"),
        Metric("bandwidth_gb_s", "GB/s", "higher", "memory traffic"),
        Metric("warmup_ttft_p99_ms", "ms", "lower", "99th percentile of the first token in the warm-up pass"),
        Metric("compile_s", "s", "lower", "building or loading compiled code"),
    ]
    for stem, words in (
        ("ttft", "time to the first token"),
        ("tpot", "time per output token after the first, per request"),
        ("itl", "gap between tokens"),
        ("e2e", "latency of a whole request"),
    ):
        for statistic in ("mean", "median", "p90", "p95", "p99", "std"):
            made.append(Metric(f"{stem}_{statistic}_ms", "ms", "lower", f"{statistic} {words}"))
    return {m.name: m for m in made}


METRICS: MappingProxyType[str, Metric] = MappingProxyType(_metrics())


def metric_of(name: str) -> Metric:
    """The metric of a name.

    Raises:
        RefereeError: no such metric.
    """
    if name not in METRICS:
        raise RefereeError("referee", [Reason("metric", repr(name), ", ".join(sorted(METRICS)))])
    return METRICS[name]


def convert(value: float, unit: str, to: str) -> float:
    """A value in `unit`, in the unit `to`.

    Raises:
        RefereeError: a unit is unknown, or the two measure different things.
    """
    for given in (unit, to):
        if given not in UNITS:
            raise RefereeError("referee", [Reason("unit", repr(given), ", ".join(UNITS))])
    (had, factor), (wanted, target) = UNITS[unit], UNITS[to]
    if had != wanted:
        same = ", ".join(u for u, (d, _) in UNITS.items() if d == wanted)
        raise RefereeError("referee", [Reason("unit", repr(unit), same, f"{unit} is a {had}, {to} a {wanted}.")])
    if unit == to:
        return value
    # Dividing by 1000 is exact to the last bit, multiplying by 0.001 is not; a factor is cleaned of its own rounding.
    if factor >= target:
        return value * float(f"{factor / target:.12g}")
    return value / float(f"{target / factor:.12g}")


def to_metric(name: str, value: float, unit: str = "") -> float:
    """A value typed with a unit, in the unit that the metric `name` is stored in; no unit is the metric's own.

    Raises:
        RefereeError: unknown metric or unit, or a unit of another dimension.
    """
    metric = metric_of(name)
    return convert(value, unit or metric.unit, metric.unit)
