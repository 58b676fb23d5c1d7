"""Equality of outputs, mode by mode, with and without an A/A control."""

from __future__ import annotations

from typing import Any

import pytest

from kda_lab.referee.checks import equality
from kda_lab.referee.claim import Claim, Control, Equality


def item(right: str, identical: bool, **fields: Any) -> Equality:
    """The baseline against an arm."""
    return Equality.model_validate({"left": "baseline", "right": right, "identical": identical, **fields})


def checked(*items: Equality) -> list[tuple[str, str]]:
    """Severity and short words of the findings."""
    return [(f.severity, f.short) for f in equality.check(Claim(name="x", question="equality", equality=items))]


def test_a_failed_control_voids_the_mode() -> None:
    """The baseline differs from itself: whatever the candidate does proves nothing."""
    for same in (True, False):
        assert checked(item("baseline", False), item("candidate", same)) == [("invalid", "A/A failed in normal mode")]


def test_identity_needs_no_control() -> None:
    """2,048 equal token ids in deterministic mode are identical."""
    told = item("candidate", True, mode="deterministic", compared=2048, equal=2048, maximum_difference=0.0)
    (found,) = equality.check(Claim(name="x", question="equality", equality=(told,)))
    assert (found.severity, found.short) == ("passed", "deterministic mode")
    assert "none is needed for identity" in found.sentence
    assert found.arithmetic[0].endswith("2048 of 2048 equal, largest difference 0")


def test_a_valid_mode_stands_beside_a_void_one() -> None:
    """Normal mode is void, deterministic mode identical: the first is a warning and comes last."""
    found = checked(item("baseline", False), item("candidate", False), item("candidate", True, mode="deterministic"))
    assert found == [("passed", "deterministic mode"), ("warning", "A/A failed in normal mode")]


def test_a_difference_counts_with_a_control_only() -> None:
    """Without the control a difference may be the server's own."""
    assert checked(item("candidate", False)) == [("inconclusive", "no A/A control in normal mode")]
    told = (item("baseline", True), item("candidate", False, first_difference="prompt 3 token 17"))
    assert checked(*told) == [("note", "prompt 3 token 17, normal mode")]


@pytest.mark.parametrize(
    "fields",
    [
        {"compared": 5, "equal": 6},
        {"compared": 5, "equal": 4},
        {"maximum_difference": 0.5},
        {"maximum_difference": float("nan")},
    ],
    ids=["more than all", "not all", "gap", "nan"],
)
def test_counts_must_agree_with_the_word(fields: dict[str, Any]) -> None:
    """'Identical' with a difference in its own numbers is invalid."""
    assert checked(item("candidate", True, **fields)) == [("invalid", "counts contradict")]


def test_nothing_compared_is_nothing_shown() -> None:
    """A control alone, or no comparison at all, decides nothing."""
    assert checked() == [("inconclusive", "outputs not compared")]
    assert checked(item("baseline", True)) == [("inconclusive", "outputs not compared")]


def test_a_control_under_its_own_name_counts() -> None:
    """The baseline's second server differs from the first: the mode is void, though both servers have a name."""
    items = (item("again", False), item("candidate", True))
    told = Claim(name="x", question="equality", equality=items, controls=(Control(arm="again", repeats="baseline"),))
    assert [(f.severity, f.short) for f in equality.check(told)] == [("invalid", "A/A failed in normal mode")]


def test_identity_of_nothing_is_a_contradiction() -> None:
    """No value was equal, so none was found identical."""
    assert checked(item("candidate", True, equal=0)) == [("invalid", "counts contradict")]
