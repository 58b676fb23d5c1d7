"""Latency against the roofline, by batch or by roof."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report import figures
from kda_lab.report.style import svg_text
from kda_lab.timing.statistics import RowResult


def test_a_sweep_has_a_panel_for_each_topology_and_class(sweep: list[RowResult]) -> None:
    """48 rows give eight panels over batch; each names every arm once and the roof, never the control."""
    picture = figures.latency(sweep)
    assert len(picture.axes) == 8
    names = sorted(t.get_text() for t in picture.axes[0].texts)
    assert names == ["flashinfer_ragged_fa2", "flashinfer_ragged_fa3", "grouped", "per_head", "roof", "split_merge"]
    assert picture.axes[-1].get_xlabel().startswith("batch B")


def test_unlike_captures_are_ordered_by_their_roof(capture_rows: list[RowResult]) -> None:
    """Where classes have one batch each, x is the roof and a topology is one panel."""
    picture = figures.latency(capture_rows)
    assert [a.get_title(loc="left").split()[0] for a in picture.axes] == ["tp1", "tp2r0", "tp2r1"]
    assert picture.axes[-1].get_xlabel().startswith("roof in µs")


def test_panel_titles_stay_over_their_panels(one_row: Callable[..., RowResult]) -> None:
    """With long classes and many axes, no title reaches the next panel or the figure's edge."""
    rows = [
        one_row(row=f"hv{hv}-B{b}-L16-{word}", axes={"HV": hv, "H": hv, "K": 128, "V": 128, "B": b, "L": 16})
        for hv in (12, 96)
        for b in (1, 8)
        for word in ("raw", "predecayed", "predecayed-circular-fp32")
    ]
    picture = figures.latency(rows)
    picture.draw_without_rendering()
    titles = [(axes.get_position().y1, axes._left_title.get_window_extent()) for axes in picture.axes]
    assert len(titles) == 6
    assert max(box.x1 for _, box in titles) <= picture.bbox.x1
    by_line = [[box for y, box in titles if y == line] for line in {y for y, _ in titles}]
    assert all(a.x1 <= b.x0 for boxes in by_line for a, b in itertools.pairwise(boxes))


def test_title_says_how_near_the_roof(one_row: Callable[..., RowResult]) -> None:
    """The title gives the candidate's least and largest multiple of the roof."""
    rows = [one_row(), one_row(row="tp1-B8-short", arm_us=40.0)]
    assert figures.latency(rows).title == "demo.attention: grouped takes 2.50× to 10.0× the roof, 2 rows"


def test_times_that_are_not_cold_are_left_out_and_counted(one_row: Callable[..., RowResult]) -> None:
    """A warm time is not drawn, and a note says how many were left out."""
    rows = [one_row(), one_row(row="tp1-B8-short", arm_us=1.0, state="warm", verdict="")]
    picture = figures.latency(rows)
    assert "1 times that are not cold are left out" in svg_text(picture) and picture.title.endswith("1 rows")


def test_nothing_timed_is_refused(one_row: Callable[..., RowResult]) -> None:
    """Without a cold time there is no latency to draw."""
    with pytest.raises(ParameterError, match="no row has both a cold time and a roof"):
        figures.latency([one_row(arm_us=None, state="refused")])
