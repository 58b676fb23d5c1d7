"""Everything a comparison is written out as: CSV of all steps, four Perfetto traces, and figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kda_lab.referee.slices.comparison import SliceComparison
from kda_lab.referee.slices.kernel_list import refusal
from kda_lab.referee.slices.perfetto import perfetto_traces
from kda_lab.referee.slices.tables import steps_csv
from kda_lab.run_folder import write_atomic


def write_outputs(
    found: SliceComparison, folder: str | Path, figures: Mapping[str, str | bytes] | None = None
) -> list[Path]:
    """Write all files into a folder, each whole or not at all; returns their paths.

    Args:
        found: a comparison.
        folder: made where it is not there.
        figures: file name to content of what was drawn of it, `pictures.drawn_files` for one.

    Raises:
        RefereeError: the folder cannot be written.
    """
    content: dict[str, str | bytes] = {"slices.csv": steps_csv(found), **perfetto_traces(found), **(figures or {})}
    try:
        for name, data in content.items():
            write_atomic(Path(folder) / name, data)
    except OSError as error:
        raise refusal(str(folder), "folder", error.strerror or str(error), "a folder that can be written") from error
    return [Path(folder) / name for name in content]
