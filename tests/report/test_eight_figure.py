"""The eight-set figure: both protocols' ratios of each case, and how far eight sets reach beyond the L2."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report import figures
from kda_lab.report.eight_figure import rotated_shares
from kda_lab.report.style import svg_text
from kda_lab.timing.statistics import RowResult

Make = Callable[..., RowResult]


def both(one_row: Make) -> list[RowResult]:
    """Two cases timed by both protocols, a third one cold only."""
    labelled = {"verdict": "", "reason": "eight input sets"}
    return [
        one_row(),
        one_row(row="tp1-B8-short", ratio=3.0, low=2.9, high=3.1),
        one_row(row="tp1-B9-short"),
        one_row(row="tp1-B4-short (eight sets)", state="warm", ratio=4.0, low=3.9, high=4.1, arm_us=5.0, **labelled),
        one_row(row="tp1-B8-short (eight sets)", ratio=3.0, low=2.9, high=3.1, **labelled),
    ]


def test_pairs_title_and_columns(one_row: Make) -> None:
    """Cases with both times stand there with both ratios; the title gives the mean change and the farthest case."""
    shares = {"tp1-B4-short (eight sets)": 0.8, "tp1-B8-short (eight sets)": 7.2}
    picture = figures.eight_sets(both(one_row), candidate="grouped", l2_shares=shares, foot="on a card")
    assert picture.title == (
        "demo.attention: grouped against per_head: eight-set speedup over cold speedup, geomean 1.41×, "
        "farthest 2.00× on tp1-B4-short; eight sets fit in the L2 on 1 of 2 rows"
    )
    text = svg_text(picture)
    for words in ("tp1-B4-short", "tp1-B8-short", "0.800", "7.20", "2.00", "4.00", "8 sets / L2", "on a card"):
        assert words in text, words
    assert "tp1-B9-short" not in text
    assert "(eight sets)" not in text


def test_without_shares_the_l2_is_not_spoken_of(one_row: Make) -> None:
    """Records that do not say what was rotated give a dash, not a guess."""
    picture = figures.eight_sets(both(one_row), candidate="grouped")
    assert picture.title.endswith("farthest 2.00× on tp1-B4-short")
    assert "—" in svg_text(picture)


def test_nothing_in_both_modes_is_refused(one_row: Make) -> None:
    """Cold rows alone cannot be compared."""
    with pytest.raises(ParameterError, match="grouped has no case that was timed both cold and with eight sets"):
        figures.eight_sets([one_row()], candidate="grouped")


def test_shares_are_read_from_the_trials() -> None:
    """Bytes rotated over the bytes of the L2; trials that lack either are left out."""
    trials = [
        {"row": "a (eight sets)", "bytes_rotated": 50, "l2_bytes": 100},
        {"row": "b (eight sets)", "bytes_rotated": None, "l2_bytes": 100},
        {"row": "c (eight sets)", "bytes_rotated": 50, "l2_bytes": 0},
    ]
    assert rotated_shares(trials) == {"a (eight sets)": 0.5}
