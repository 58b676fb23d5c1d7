"""Comparability: which load facts and resolved settings differ."""

from __future__ import annotations

from typing import Any

import pytest

from kda_lab.referee.checks import comparability
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.finding import Finding

FACTS: dict[str, Any] = {
    "hardware": "8x B300",
    "commit": "abc",
    "concurrency": 24,
    "resolved": {"pool": 136128, "attention": "trtllm_mla"},
    "metrics": {"throughput_tok_s": 1.0},
}


def checked(changes: dict[str, Any], **fields: Any) -> tuple[Finding, ...]:
    """Two runs whose candidate has the changes."""
    runs = (
        Run.model_validate({"arm": "baseline", **FACTS}),
        Run.model_validate({"arm": "candidate", **FACTS, **changes}),
    )
    return comparability.check(Claim(name="x", runs=runs, **fields))


def test_equal_facts_pass() -> None:
    """Load, hardware and two settings agree."""
    (found,) = checked({})
    assert (found.severity, found.sentence) == ("passed", "Load, hardware and 2 resolved settings agree.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hardware": "8x B200"}, r"hardware (8x B300 against 8x B200)"),
        ({"concurrency": 32}, "concurrency (24 against 32)"),
        ({"resolved": {"pool": 5, "attention": "trtllm_mla"}}, "pool (136128 against 5)"),
    ],
    ids=["hardware", "load", "setting"],
)
def test_what_differs_is_named(changes: dict[str, Any], words: str) -> None:
    """Name and both values of each fact that differs."""
    (found,) = checked(changes)
    assert found.severity == "not comparable"
    assert words in found.sentence


def test_the_declared_change_may_differ() -> None:
    """A setting in the scope is the change itself."""
    changes = {"resolved": {"pool": 136128, "attention": "ours"}}
    assert checked(changes, scope=("setting:attention",))[0].severity == "passed"


def test_what_one_arm_does_not_state_is_remarked() -> None:
    """Missing facts are a note, and decide where the claim requires them."""
    (found,) = checked({"hardware": "", "resolved": {"pool": 136128}})
    assert (found.severity, found.sentence) == ("note", "Not stated for both arms: hardware, setting attention.")
    assert checked({"hardware": ""}, requires=("hardware",))[0].severity == "inconclusive"
    assert checked({"resolved": {}}, requires=("resolved",))[0].severity == "inconclusive"


def test_operating_points_may_change_between_rounds() -> None:
    """Rounds at other concurrencies compare as long as both arms of a round agree."""
    runs = tuple(
        Run.model_validate({**FACTS, "arm": arm, "round": n, "concurrency": 2**n})
        for n in range(3)
        for arm in ("baseline", "candidate")
    )
    assert comparability.check(Claim(name="x", runs=runs))[0].severity == "passed"
    moved = (*runs[:-1], runs[-1].model_copy(update={"concurrency": 1}))
    assert "concurrency (4 against 1)" in comparability.check(Claim(name="x", runs=moved))[0].sentence


def test_a_load_fact_of_one_arm_is_a_note() -> None:
    """The candidate states its concurrency and its input, the baseline neither."""
    facts = {**FACTS, "concurrency": None}
    runs = (
        Run.model_validate({"arm": "baseline", **facts}),
        Run.model_validate({"arm": "candidate", **facts, "concurrency": 24, "input_tokens": 8}),
    )
    (found,) = comparability.check(Claim(name="x", runs=runs))
    assert (found.severity, found.sentence) == ("note", "Not stated for both arms: concurrency, input tokens.")
