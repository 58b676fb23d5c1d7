"""The room's front: the figures that notebooks call."""

from __future__ import annotations

from pathlib import Path

from kda_lab.report import figures
from kda_lab.timing.statistics import RowResult


def test_every_figure_is_offered() -> None:
    """The functions that notebooks use are all here."""
    drawn = {"eight_sets", "errors", "latency", "roof_shares", "speedup", "speedup_by_batch", "speedup_over_each"}
    assert {"Picture", "save", *drawn} <= set(figures.__all__)
    assert all(callable(getattr(figures, name)) for name in figures.__all__)


def test_save_writes_both_files(tmp_path: Path, capture_rows: list[RowResult]) -> None:
    """A saved figure is one SVG and one PNG under the given name."""
    svg, png = figures.save(figures.latency(capture_rows), tmp_path, "latency")
    assert (svg.name, png.name) == ("latency.svg", "latency.png")
    assert svg.read_text().startswith("<?xml") and png.read_bytes().startswith(b"\x89PNG")
