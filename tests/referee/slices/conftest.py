"""Small traces with known answers: two steps of three markers, kernels between them, one side stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from kda_lab.referee.slices.comparison import SliceComparison, compare
from kda_lab.referee.slices.generated import BASELINE, CANDIDATE, FIRST, LAST, MARKER, PER_STEP, made_up_kernels
from kda_lab.referee.slices.generated_files import write_traces
from kda_lab.referee.slices.kernel_list import KernelList
from kda_lab.referee.slices.steps import Marker, slice_trace


@pytest.fixture(scope="session")
def marker() -> Marker:
    """The marker of the made-up traces."""
    return Marker(MARKER, PER_STEP, FIRST, LAST)


@pytest.fixture(scope="session")
def pair(marker: Marker) -> SliceComparison:
    """The made-up pair, compared."""
    traces = (KernelList.of(f"{t.fused}.json", made_up_kernels(t)) for t in (BASELINE, CANDIDATE))
    return compare(*(slice_trace(trace, marker) for trace in traces))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name to path of the made-up files, written once."""
    return {path.name: path for path in write_traces(tmp_path_factory.mktemp("traces"))}
