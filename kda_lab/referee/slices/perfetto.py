"""Slices as Chrome trace events, for Perfetto or chrome://tracing: a process an arm, a track a stream.

Times are microseconds from the start of the arm's first slice shown, so that the arms stand aligned. Each file can be
read again by `reading.read_trace`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kda_lab.referee.slices.categories import Categories
from kda_lab.referee.slices.comparison import ArmSlices, SliceComparison
from kda_lab.referee.slices.kernel_list import NS_PER_US
from kda_lab.referee.slices.steps import Slice

SLICE_TRACK = 1_000_000
"""Track of the slices' own extents: above any stream's number."""


def perfetto_traces(found: SliceComparison) -> dict[str, str]:
    """File name to content: baseline, candidate, side by side (representative slices), and all steps of both."""
    base, ours = found.arms
    return {
        "baseline.json": _document(found.categories, [(base, [base.shown_slice])]),
        "candidate.json": _document(found.categories, [(ours, [ours.shown_slice])]),
        "side_by_side.json": _document(found.categories, [(a, [a.shown_slice]) for a in found.arms]),
        "all_steps.json": _document(found.categories, [(a, a.slicing.slices) for a in found.arms]),
    }


def _document(categories: Categories, shown: Sequence[tuple[ArmSlices, Sequence[Slice]]]) -> str:
    events: list[dict[str, Any]] = []
    for process, (arm, slices) in enumerate(shown, start=1):
        events += _names(process, arm, slices)
        for part in slices:
            events += _events(process, part, slices[0].start_ns, categories)
    lines = ",\n".join(json.dumps(e, sort_keys=True, allow_nan=False) for e in events)
    return f'{{"displayTimeUnit": "ns", "traceEvents": [\n{lines}\n]}}\n'


def _names(process: int, arm: ArmSlices, slices: Sequence[Slice]) -> Iterator[dict[str, Any]]:
    yield _metadata(process, 0, "process_name", f"{arm.variant}, device {arm.slicing.device}")
    yield _metadata(process, SLICE_TRACK, "thread_name", "slice")
    for stream in sorted({k.stream for part in slices for k in part.kernels}):
        yield _metadata(process, stream, "thread_name", f"stream {stream}")


def _metadata(process: int, track: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": track, "name": what, "args": {"name": name}}


def _events(process: int, part: Slice, origin_ns: int, categories: Categories) -> Iterator[dict[str, Any]]:
    whole = {"ts": (part.start_ns - origin_ns) / NS_PER_US, "dur": (part.end_ns - part.start_ns) / NS_PER_US}
    facts = {"step": part.step, "kernels": len(part.kernels)}
    yield {
        "ph": "X",
        "cat": "slice",
        "name": f"step {part.step}",
        "pid": process,
        "tid": SLICE_TRACK,
        **whole,
        "args": facts,
    }
    for kernel in part.kernels:
        where = {"device": kernel.device, "stream": kernel.stream, "step": part.step}
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": kernel.name,
            "pid": process,
            "tid": kernel.stream,
            "ts": (kernel.start_ns - origin_ns) / NS_PER_US,
            "dur": kernel.duration_ns / NS_PER_US,
            "args": {**where, "category": categories.of(kernel.name)},
        }
