"""Errors against tolerance, one line a capture."""

from __future__ import annotations

from typing import Any

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report import figures
from kda_lab.report.error_figure import limit_of, scientific_tick
from kda_lab.report.style import svg_text


def test_first_candidate_is_drawn_with_all_marks(verify_records: list[dict[str, Any]]) -> None:
    """Each of the 15 captures has a limit, a floor, a pinned and an FP32 mark, and its numbers."""
    picture = figures.errors(verify_records, foot="on a card")
    marks = [x.get_marker() for x in picture.axes[0].lines if x.get_marker() != "None"]
    assert len(marks) == 45
    text = svg_text(picture)
    assert "tp2r1-q12" in text and "11/11" in text and "2.00e-3" in text and "on a card" in text
    assert picture.title.startswith(
        "demo.attention: grouped passed every check on 15 of 15 captures; nearest to the limit:"
    )


def test_failures_are_said_in_words_and_shape(verify_records: list[dict[str, Any]]) -> None:
    """An arm beyond the limit is titled so, its rows read FAILED and its marks are squares."""
    picture = figures.errors(verify_records, arm="flashinfer_ragged_fa3")
    assert "passed every check on 0 of 15 captures; farthest beyond the limit:" in picture.title
    assert svg_text(picture).count("FAILED") == 15
    assert sum(x.get_marker() == "s" for x in picture.axes[0].lines) == 15


def test_missing_errors_are_dashes(verify_records: list[dict[str, Any]]) -> None:
    """A capture without pinned output or floor is drawn with what there is."""
    record = {**verify_records[2], "errors": {"fp32": 1e-3}, "checks": []}
    text = svg_text(figures.errors([record], arm=record["arm"]))
    assert "—" in text and "0/0" in text


def test_unknown_arm_and_no_error_are_refused(verify_records: list[dict[str, Any]]) -> None:
    """The message names the arms that were replayed, or that there is no error to draw."""
    with pytest.raises(
        ParameterError, match=r"arm is 'nobody'; allowed: per_head, grouped, .*Name an arm that was replayed"
    ):
        figures.errors(verify_records, arm="nobody")
    with pytest.raises(ParameterError, match="allowed: none, since there are no replays"):
        figures.errors([])
    exact = {**verify_records[0], "errors": {"fp32": None}, "checks": []}
    with pytest.raises(ParameterError, match="per_head has no positive error on any of 1 captures"):
        figures.errors([exact])


def test_limit_comes_from_the_named_check(verify_records: list[dict[str, Any]]) -> None:
    """The limit is that of the check asked for; a check that did not run has none."""
    assert (limit_of(verify_records[0], "row_max"), limit_of(verify_records[0], "nothing")) == (4e-3, None)


def test_ticks_are_short() -> None:
    """Tick labels drop a zero after the point."""
    assert (scientific_tick(2e-3), scientific_tick(1.5e-3)) == ("2e-3", "1.5e-3")


def test_an_error_of_zero_is_written_out(verify_records: list[dict[str, Any]]) -> None:
    """A log axis has no zero: an arm that equals the oracle says so in words, alone or beside other rows."""
    first = verify_records[2]
    exact = {**first, "errors": {**first["errors"], "fp32": 0.0, "pinned": None, "floor": 0.0}, "capture": "exact-row"}
    exact["checks"] = [{"name": "error_fp32", "passed": True, "value": 0.0, "limit": 0.0, "detail": ""}]
    for records in ([exact], [first, exact]):
        assert svg_text(figures.errors(records, arm=first["arm"])).count("0: equal to the oracle") == 1
