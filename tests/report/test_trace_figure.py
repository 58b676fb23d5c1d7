"""The trace: mean of a call and total of every arm, the ratio beside them, refused arms with their reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report.style import svg_text
from kda_lab.report.trace_figure import TraceSize, trace, trace_table
from kda_lab.timing.statistics import RowResult

SIZE = TraceSize(calls=15, forwards=10, roof_us=30.0)
Make = Callable[..., RowResult]


@pytest.fixture
def results(one_row: Make) -> list[RowResult]:
    """A candidate, the baseline, its control, a peer and a refused one."""
    place = {"row": "in the chain", "baseline": "slow"}
    return [
        one_row(**place, arm="fast", role="policy", arm_us=60.0, ratio=2.5, low=2.4, high=2.6),
        one_row(**place, arm="slow", role="reference", arm_us=150.0, ratio=1.0, verdict=""),
        one_row(**place, arm="slow", role="control", arm_us=151.0, verdict=""),
        one_row(**place, arm="other", role="peer", arm_us=90.0, ratio=1.67, low=1.6, high=1.7),
        one_row(**place, arm="lost", role="peer", arm_us=None, ratio=None, verdict="", reason="no such library"),
    ]


def test_a_call_is_a_share_of_its_forward(results: list[RowResult]) -> None:
    """60 us a forward of fifteen calls are 4 us a call and 600 us of ten forwards, half of the roof."""
    table = trace_table(results, SIZE)
    assert table.lines[0][:6] == ("fast", "candidate", "4.00", "600.0", "50.0", "2.50 [2.40, 2.60]")
    assert table.lines[1][1] == "baseline" and table.lines[2][1] == "baseline again (A/A)"
    assert table.lines[4][2:6] == ("—", "—", "—", "—") and table.lines[4][-1] == "no such library"
    assert table.caption == "150 calls of 10 forwards in one graph; ratio = time of slow / time of the arm."


def test_the_fastest_arm_stands_on_top(results: list[RowResult]) -> None:
    """One mark an arm at its mean call, in order; the roof of a call is a line; control and refused arms are left out."""
    picture = trace(results, SIZE, foot="on a card")
    lines = picture.axes[0].lines
    marks = [line for line in lines if line.get_marker() != "None"]
    assert [float(m.get_xdata()[0]) for m in marks] == [4.0, 6.0, 10.0]  # type: ignore[index]
    assert [2.0, 2.0] in [list(line.get_xdata()) for line in lines if line.get_linewidth() == 1.2]
    assert picture.title == f"{results[0].op}: fast takes 4.00 µs a call, 2.50× over slow, 150 calls"
    assert "on a card" in svg_text(picture)


def test_without_a_candidate_there_is_no_figure(results: list[RowResult]) -> None:
    """A trace of baselines alone answers no question."""
    with pytest.raises(ParameterError, match="no candidate was timed in the trace; allowed: at least one"):
        trace(results[1:], SIZE)
