"""A comparison is written out as text files and whatever was drawn of it, each file whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from kda_lab.errors import RefereeError
from kda_lab.referee.slices.comparison import SliceComparison
from kda_lab.referee.slices.outputs import write_outputs
from kda_lab.referee.slices.tables import steps_csv

TEXTS = ["all_steps.json", "baseline.json", "candidate.json", "side_by_side.json", "slices.csv"]


def test_all_files_are_written_and_named(pair: SliceComparison, tmp_path: Path) -> None:
    """Text as text, figures as they were handed in."""
    written = write_outputs(pair, tmp_path / "a", {"x.svg": "<svg>", "x.png": b"\x89"})
    assert sorted(p.name for p in written) == sorted([*TEXTS, "x.svg", "x.png"])
    assert {p.name: p.read_bytes() for p in written} == {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    assert (tmp_path / "a" / "slices.csv").read_text() == steps_csv(pair)
    assert (tmp_path / "a" / "x.png").read_bytes() == b"\x89"
    assert sorted(p.name for p in write_outputs(pair, tmp_path / "b")) == TEXTS


def test_a_file_in_the_folders_place_is_refused(pair: SliceComparison, tmp_path: Path) -> None:
    """One sentence, and the file is left alone."""
    (tmp_path / "a").write_text("mine")
    with pytest.raises(RefereeError, match="a: folder is 'File exists'; allowed: a folder that can be written"):
        write_outputs(pair, tmp_path / "a")
    assert (tmp_path / "a").read_text() == "mine"
