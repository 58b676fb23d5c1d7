"""From two trace files to their comparison, in one call."""

from __future__ import annotations

from pathlib import Path

from kda_lab.referee.slices.comparison import SliceComparison, compare
from kda_lab.referee.slices.reading import read_trace
from kda_lab.referee.slices.settings import SliceSettings
from kda_lab.referee.slices.steps import Marker, slice_trace


def compare_files(
    baseline: str | Path, candidate: str | Path, marker: Marker, settings: SliceSettings | None = None
) -> SliceComparison:
    """Read, slice and compare two traces of any known kind.

    Raises:
        RefereeError: a file, the marker or the pair is not what a comparison needs.
    """
    given = settings or SliceSettings()
    base, ours = (
        slice_trace(read_trace(path, given.size_limit_mb), marker, given.device) for path in (baseline, candidate)
    )
    return compare(base, ours, given.table(), given.other_limit_percent)
