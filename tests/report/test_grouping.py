"""Topology, batch and length class of a row, whatever the op's axes are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report import grouping
from kda_lab.timing.statistics import RowResult

Make = Callable[..., RowResult]


def test_topology_is_the_first_word_of_the_label(one_row: Make) -> None:
    """A label with a dash names its topology; the title adds the axes on which all rows agree."""
    rows = [one_row(), one_row(axes={"HQ": 24, "HKV": 2, "B": 8, "lengths": "long"})]
    assert (grouping.topology(rows[0]), grouping.topology_title(rows)) == ("tp1", "tp1 (HQ=24, HKV=2)")


def test_without_a_dash_the_other_axes_are_the_topology(one_row: Make) -> None:
    """A label of one word leaves the axes to speak; without other axes all rows are one group."""
    assert grouping.topology(one_row(row="r1")) == "HQ=24, HKV=2"
    assert grouping.topology_title([one_row(row="r1")]) == "HQ=24, HKV=2"
    assert grouping.topology(one_row(row="r1", axes={"B": 1})) == "all rows"


def test_listed_lengths_are_one_class(one_row: Make) -> None:
    """Lengths given one by one form the class `listed`; a missing axis is the empty class."""
    assert grouping.row_class(one_row(axes={"lengths": [1, 2]})) == "listed"
    assert grouping.row_class(one_row(axes={})) == ""


def test_batch_must_be_a_number(one_row: Make) -> None:
    """A batch that is missing, text or a truth value is no batch."""
    assert [grouping.batch(one_row(axes={"B": v})) for v in (4, "4", True, None)] == [4, None, None, None]


def test_only_rows_with_a_verdict_are_judged(one_row: Make) -> None:
    """Warm, invalid and refused rows have no verdict and so stay out of every geomean."""
    rows = [one_row(), one_row(verdict="", state="warm", reason="too fast"), one_row(verdict="", ratio=None)]
    assert grouping.judged(rows) == rows[:1]


def test_an_unknown_arm_is_refused_by_name(one_row: Make) -> None:
    """The message names the arm asked for, the arms there are, and what to do."""
    expected = r"report: candidate is 'nobody'; allowed: grouped\. Name an arm that was timed\."
    with pytest.raises(ParameterError, match=expected):
        grouping.rows_of([one_row()], "nobody")
    with pytest.raises(ParameterError, match="allowed: none, since there are no rows"):
        grouping.rows_of([], "nobody")


def test_the_control_is_not_a_row_of_its_arm(one_row: Make) -> None:
    """The A/A control bears the baseline's name but is left out."""
    base, control = one_row(arm="per_head", role="baseline"), one_row(arm="per_head", role="control")
    assert grouping.rows_of([base, control], "per_head") == [base]


def test_rows_of_a_matrix_product_are_its_batch(one_row: Make) -> None:
    """`M` is the batch and `kind` the class where an op has no `B` and no lengths; the title names the other axes."""
    row = one_row(row="4b_down-M8-random", axes={"M": 8, "N": 2560, "K": 9216, "kind": "random"})
    assert (grouping.batch(row), grouping.row_class(row), grouping.topology(row)) == (8, "random", "4b_down")
    assert grouping.topology_title([row]) == "4b_down (N=2560, K=9216)"
    assert (grouping.batch_axis([row]), grouping.batch_axis([one_row()]), grouping.batch_axis([])) == ("M", "B", "B")


@pytest.mark.parametrize(
    ("label", "axes", "found"),
    [
        ("hv12-B8-T8-Y69", {"B": 8, "T": 8, "Y": 69}, ("hv12", "T8-Y69", "batch B")),
        ("T1024-valid8-mix", {"T": 1024, "valid": 8, "kind": "mix"}, ("valid8", "mix", "tokens T")),
        ("HV12-B4", {"HV": 12, "B": 4}, ("HV12", "", "batch B")),
        ("tp1-holes", {"B": 4, "lengths": [3, 9]}, ("tp1", "listed", "batch B")),
        ("B4-B4-x", {"B": 4}, ("B4", "x", "batch B")),
        ("tp1-B4-x", {"B": 4.0}, ("tp1", "x", "batch B")),
        ("B1-", {"B": 1, "HQ": 24}, ("B1", "", "batch B")),
    ],
)
def test_a_label_that_names_its_batch_tells_the_rest(
    label: str, axes: dict[str, Any], found: tuple[str, str, str], one_row: Make
) -> None:
    """What stands beside the batch in a label parts the rows into panels and lines, so that none has two points at one x."""
    row = one_row(row=label, axes=axes)
    assert (grouping.topology(row), grouping.row_class(row), grouping.batch_label([row])) == found


def test_headings_stand_before_their_rows(one_row: Make) -> None:
    """Each topology opens with a gap that holds its title; a single label needs none."""
    rows = [one_row(row=name) for name in ("tp1-a", "tp2-b", "tp1-c")]
    labels, headings = grouping.with_headings(["tp1-a", "tp2-b", "tp1-c"], rows)
    assert labels == [None, "tp1-a", "tp1-c", None, "tp2-b"]
    assert headings == ["tp1 (HQ=24, HKV=2)", "", "", "tp2 (HQ=24, HKV=2)", ""]
    assert grouping.with_headings(["tp1-a"], rows) == (["tp1-a"], [""])
