"""What ran inside a replay: kernels from torch's profiler, their sum and union, and traces for the slice tool."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kda_lab.errors import RefereeError
from kda_lab.referee.slices import pair
from kda_lab.referee.slices.comparison import SliceComparison
from kda_lab.referee.slices.kernel_list import NS_PER_US, Kernel
from kda_lab.referee.slices.measures import union_ns
from kda_lab.referee.slices.reading import read_trace
from kda_lab.referee.slices.settings import CategoryEntry, SliceSettings
from kda_lab.referee.slices.steps import Marker
from kda_lab.timing.graph import Replay

MARKER_NAME = "projection_step_marker"
MARKER = Marker(MARKER_NAME, per_step=1, first=0, last=1)
"""A step is one call: from its marker to the next one's."""
SETTINGS = SliceSettings(
    categories=(
        CategoryEntry(name="marker", patterns=(MARKER_NAME,)),
        CategoryEntry(
            name="projection", patterns=(r"nvjet", r"split_?k", r"gemm", r"gemv", r"cublas", r"cutlass", r"dot_kernel")
        ),
    )
)
"""Names under which cuBLAS launches these products on Hopper and after it; narrow ones become matrix-vector kernels."""


@dataclass(frozen=True)
class Profile:
    """Kernels of one replay in order of start; none, with the reason, where the profiler saw nothing."""

    kernels: tuple[Kernel, ...]
    reason: str = ""


@dataclass(frozen=True)
class Busy:
    """Kernel time of one call, the mean over a replay."""

    kernels: float
    summed_us: float
    union_us: float
    """In which at least one kernel ran."""
    streams: int

    @property
    def overlap_us(self) -> float:
        """What the sum counts twice."""
        return self.summed_us - self.union_us


def busy_of(kernels: Sequence[Kernel], calls: int) -> Busy:
    """Kernel time of one of `calls` calls.

    Args:
        kernels: of all calls, at least one.
    """
    summed = sum(k.duration_ns for k in kernels)
    union = union_ns((k.start_ns, k.end_ns) for k in kernels)
    streams = len({(k.device, k.stream) for k in kernels})
    return Busy(len(kernels) / calls, summed / calls / NS_PER_US, union / calls / NS_PER_US, streams)


def profile(replay: Replay, device: torch.device, path: Path | None = None, replays: int = 1) -> Profile:
    """Kernels of some replays, after one that is not profiled.

    Args:
        path: where the trace is kept (`.json.gz`); None keeps none.

    Never raises for a profiler that does not work: the profile says why it is empty.
    """
    replay()
    torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "profile.json" if path is None else path
        try:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                for _ in range(replays):
                    replay()
                torch.cuda.synchronize(device)
            profiler.export_chrome_trace(str(kept))
            return Profile(read_trace(kept).kernels)
        except (RuntimeError, RefereeError) as error:
            # Expected: CUPTI is missing or held by another profiler; a trace without a kernel.
            return Profile((), f"unavailable, because {type(error).__name__}: {str(error).splitlines()[0]}")


def compare_traces(baseline: Path, candidate: Path) -> SliceComparison:
    """Two traces of marked calls, call by call.

    Raises:
        RefereeError: a trace is not what a comparison needs.
    """
    return pair.compare_files(baseline, candidate, MARKER, SETTINGS)
