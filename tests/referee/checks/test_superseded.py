"""Superseded numbers and mixed commits."""

from __future__ import annotations

from typing import Any

from kda_lab.referee.checks import superseded
from kda_lab.referee.claim import Claim, Run


def checked(*runs: dict[str, Any], commit: str = "") -> list[tuple[str, str]]:
    """Severity and short words of the findings."""
    made = tuple(Run.model_validate(r) for r in runs)
    return [(f.severity, f.short) for f in superseded.check(Claim(name="x", runs=made, commit=commit))]


def test_replaced_numbers_are_left_out() -> None:
    """A superseded run beside a live one is a note; alone it decides."""
    old = {"arm": "candidate", "superseded": True}
    assert checked(old, {"arm": "candidate"}) == [("note", "superseded numbers left out")]
    assert checked(old, {"arm": "baseline"}) == [("superseded", "every number was replaced")]


def test_numbers_of_an_earlier_commit_do_not_count() -> None:
    """The judged commit is named; the baseline may be of another."""
    runs = ({"arm": "baseline", "commit": "aaa"}, {"arm": "candidate", "commit": "bbb"})
    assert checked(*runs, commit="ccc") == [("superseded", "taken before the final commit")]
    assert checked(*runs, commit="bbb") == []


def test_an_arm_of_two_commits_is_invalid() -> None:
    """Mixing is an error, in either arm."""
    runs = ({"arm": "baseline", "commit": "aaa"}, {"arm": "baseline", "commit": "bbb"})
    assert checked(*runs) == [("invalid", "mixed commits")]


def test_a_shortened_hash_names_the_same_commit() -> None:
    """Seven characters and more stand for the whole; fewer do not, and neither do two long hashes."""
    runs = ({"arm": "candidate", "commit": "f79e7b8327"}, {"arm": "candidate", "commit": "F79E7B8"})
    assert checked(*runs, commit="f79e7b8") == []
    assert checked({"arm": "candidate", "commit": "f79e7b8327"}, commit="f79e7b") != []
    assert checked({"arm": "candidate", "commit": "f79e7b8327"}, commit="f79e7b8328") != []


def test_a_baseline_without_a_live_number_is_named() -> None:
    """It is the baseline's numbers that were replaced, not the claim that holds none."""
    runs = ({"arm": "baseline", "superseded": True}, {"arm": "candidate"})
    assert checked(*runs) == [("superseded", "every number of the baseline was replaced")]
