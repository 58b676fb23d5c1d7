"""Kernel time of a replay, and traces of marked calls through the slice tool."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kda_lab.projection import traces
from kda_lab.referee.slices.generated_files import kineto_json
from kda_lab.referee.slices.kernel_list import Kernel

FIVE = (("nvjet_tst_128x64", 20_000), ("gemvNSP_kernel", 2000), ("nvjet_tst_64x8", 3000),
        ("void cublasLt::splitKreduce_kernel", 1000), ("nvjet_tst_64x16", 3000), ("nvjet_tst_64x64", 8000))  # fmt: skip


def calls(side: bool, count: int = 4) -> list[Kernel]:
    """Marked calls: serial kernels, or the large one with the small ones beside it on another stream."""
    made, at = [], 1000
    for _ in range(count):
        made.append(Kernel(traces.MARKER_NAME, 0, 7, at, 500))
        at += 1000
        if side:
            made.append(Kernel("nvjet_tst_192x64", 0, 7, at, 29_000))
            made.append(Kernel("nvjet_tst_64x24", 0, 23, at + 1000, 6000))
            made.append(Kernel("nvjet_tst_64x16", 0, 23, at + 7500, 7000))
            at += 30_000
        else:
            for name, duration in FIVE:
                made.append(Kernel(name, 0, 7, at, duration))
                at += duration + 800
    return [*made, Kernel(traces.MARKER_NAME, 0, 7, at, 500)]


def test_busy_time_of_a_call() -> None:
    """Sum and union of one call are means over the replay; streams are counted over all of it."""
    busy = traces.busy_of([k for k in calls(True) if k.name != traces.MARKER_NAME], 4)
    assert (busy.kernels, busy.summed_us, busy.union_us, busy.overlap_us, busy.streams) == (3, 42, 29, 13, 2)


def test_the_slice_tool_reads_the_studys_own_traces(tmp_path: Path) -> None:
    """Cut at the marker call by call: the wall falls, overlap appears, and every kernel has its category."""
    paths = {}
    for name, side in (("five", False), ("three_side", True)):
        paths[name] = tmp_path / f"{name}.pt.trace.json.gz"
        paths[name].write_bytes(gzip.compress(kineto_json(calls(side), "made up").encode()))
    found = traces.compare_traces(paths["five"], paths["three_side"])
    base, ours = (arm.shown for arm in found.arms)
    assert (base.wall_ns, ours.wall_ns) == (42_800, 31_000)
    assert (base.overlap_ns, ours.overlap_ns) == (0, 13_000)
    assert (base.kernels, ours.kernels, base.streams, ours.streams) == (7, 4, 1, 2)
    assert base.category_ns["projection"] == 37_000
    assert base.category_ns["marker"] == 500
    assert base.category_ns["other"] == ours.category_ns["other"] == 0


def test_a_profiler_that_fails_leaves_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """No exception reaches the study: the profile is empty and says why."""

    def refuse(**options: object) -> object:
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\nmore")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.profiler, "profile", refuse)
    found = traces.profile(lambda: None, torch.device("cpu"))
    assert found.kernels == ()
    assert found.reason == "unavailable, because RuntimeError: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"


@pytest.mark.parametrize("kept", [True, False])
def test_a_profile_is_read_from_the_exported_trace(kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the profiler exports is read back; one replay runs before, the asked number inside."""
    log: list[str] = []

    class Profiler:
        def __enter__(self) -> Profiler:
            log.append("begin")
            return self

        def __exit__(self, *details: object) -> None:
            log.append("end")

        def export_chrome_trace(self, path: str) -> None:
            text = kineto_json(calls(False), "made up").encode()
            Path(path).write_bytes(gzip.compress(text) if path.endswith(".gz") else text)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.profiler, "profile", lambda **options: Profiler())
    path = tmp_path / "x.json.gz" if kept else None
    found = traces.profile(lambda: log.append("replay"), torch.device("cpu"), path, 3)
    assert log == ["replay", "begin", "replay", "replay", "replay", "end"]
    assert len(found.kernels) == len(calls(False))
    assert path is None or path.is_file()


def test_a_trace_without_kernels_leaves_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that holds no kernel is no failure of the study."""
    empty = SimpleNamespace(export_chrome_trace=lambda path: Path(path).write_text('{"traceEvents": []}'))

    class Profiler:
        def __enter__(self) -> object:
            return empty

        def __exit__(self, *details: object) -> None:
            """Nothing to end."""

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.profiler, "profile", lambda **options: Profiler())
    found = traces.profile(lambda: None, torch.device("cpu"))
    assert found.reason.startswith("unavailable, because RefereeError: ")
