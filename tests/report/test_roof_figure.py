"""The roof figure: one mark an arm and row, the roof at 100 %, the numbers of the first candidate beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report import figures
from kda_lab.report.style import svg_text
from kda_lab.timing.statistics import RowResult


def test_every_arm_has_a_mark_on_every_row(sweep: list[RowResult]) -> None:
    """Five arms, the control left out: each cold row of each arm is a point, and the roof is a line at 100."""
    picture = figures.roof_shares(sweep, foot="on a card")
    lines = picture.axes[0].lines
    points = [x for x in lines if x.get_marker() != "None"]
    cold = [r for r in sweep if r.role != "control" and r.state == "cold"]
    assert sorted(float(x.get_xdata()[0]) for x in points) == pytest.approx(  # type: ignore[index]
        sorted(100 * (r.roof_share or 0) for r in cold)
    )
    assert [list(x.get_xdata()) for x in lines if x.get_marker() == "None" and x.get_linewidth() == 1.2] == [[100, 100]]
    assert "on a card" in svg_text(picture)


def test_title_and_note_say_what_is_drawn(one_row: Callable[..., RowResult]) -> None:
    """The title gives each candidate's least and largest share; the note, which sign is which arm."""
    rows = [
        one_row(),
        one_row(row="tp1-B8-short", arm_us=5.0, roof_share=0.8),
        one_row(arm="per_head", role="baseline", arm_us=20.0, roof_share=0.2, verdict=""),
        one_row(arm="per_head", role="control", arm_us=20.0, roof_share=0.2, verdict=""),
    ]
    text = svg_text(figures.roof_shares(rows))
    assert figures.roof_shares(rows).title == "demo.attention: grouped reaches 40.0 to 80.0 % of the roof, 2 rows"
    for words in ("● grouped;  ■ per_head", "grouped %", "40.0", "80.0", "1720", "black line: the roof"):
        assert words in text, words


def test_warm_times_are_left_out(one_row: Callable[..., RowResult]) -> None:
    """A time that came from a cache has no share of the memory roof; with nothing else there is no figure."""
    with pytest.raises(ParameterError, match="no candidate has both a cold time and a roof"):
        figures.roof_shares([one_row(state="warm", verdict="")])
    both = [one_row(), one_row(row="tp1-B8-short", state="warm", verdict="", roof_share=3.0)]
    assert figures.roof_shares(both).title.endswith("1 rows")
