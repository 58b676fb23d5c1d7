"""Traces written for Perfetto hold the kernels that were compared, aligned, and can be read again."""

from __future__ import annotations

import json

from kda_lab.referee.slices.comparison import SliceComparison
from kda_lab.referee.slices.kineto import read_kineto
from kda_lab.referee.slices.perfetto import SLICE_TRACK, perfetto_traces


def test_the_representative_slices_read_back_equal(pair: SliceComparison) -> None:
    """Every kernel with its time from the slice's start, to the nanosecond."""
    written = perfetto_traces(pair)
    assert sorted(written) == ["all_steps.json", "baseline.json", "candidate.json", "side_by_side.json"]
    for arm in pair.arms:
        part = arm.shown_slice
        again = read_kineto("again", written[f"{arm.variant}.json"].encode()).kernels
        assert again == tuple(k._replace(start_ns=k.start_ns - part.start_ns) for k in part.kernels)


def test_side_by_side_is_a_process_an_arm_with_a_track_a_stream(pair: SliceComparison) -> None:
    """Both begin at zero; each kernel carries its category."""
    events = json.loads(perfetto_traces(pair)["side_by_side.json"])["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(p, t): n for p in (1, 2) for t, n in ((7, "stream 7"), (23, "stream 23"), (SLICE_TRACK, "slice"))}
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == ["baseline, device 0", "candidate, device 0"]
    shown = [e for e in events if e.get("cat") == "slice"]
    assert [(e["ts"], e["dur"]) for e in shown] == [(0, 1977.695), (0, 1951.731)]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert [sum(e["pid"] == p for e in kernels) for p in (1, 2)] == [114, 105]
    assert all(e["args"]["category"] == pair.categories.of(e["name"]) for e in kernels)


def test_all_steps_keep_their_distance(pair: SliceComparison) -> None:
    """The slices of every step stand where they ran, counted from the first."""
    events = json.loads(perfetto_traces(pair)["all_steps.json"])["traceEvents"]
    for process, arm in enumerate(pair.arms, start=1):
        starts = [e["ts"] for e in events if e.get("cat") == "slice" and e["pid"] == process]
        origin = arm.slicing.slices[0].start_ns
        assert starts == [(s.start_ns - origin) / 1000 for s in arm.slicing.slices]
