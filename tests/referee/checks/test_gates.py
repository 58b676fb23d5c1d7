"""Tolerances: what a gate must reject before it counts."""

from __future__ import annotations

from typing import Any

import pytest

from kda_lab.referee.checks import gates
from kda_lab.referee.claim import Claim, Gate


@pytest.mark.parametrize(
    ("fields", "severity", "short"),
    [
        ({"accepts": {"no decay": False, "all zero": True}}, "invalid", "vacuous: accepts all zero"),
        ({"accepts": {}}, "inconclusive", "gate power unknown"),
        ({"accepts": {"all zero": False}}, "inconclusive", "gate is sound, candidate not judged"),
        ({"accepts": {"all zero": False}, "accepts_candidate": True, "tolerance": "2e-2"}, "passed", "2e-2"),
        ({"accepts": {"all zero": False}, "accepts_candidate": False}, "note", "gate rejects"),
    ],
    ids=["vacuous", "untried", "no candidate", "accepted", "rejected"],
)
def test_a_gate_is_judged_by_what_it_rejects(fields: dict[str, Any], severity: str, short: str) -> None:
    """A gate that accepts a wrong output is void, whatever it says of the candidate."""
    gate = Gate.model_validate({"name": "output", **fields})
    (found,) = gates.check(Claim(name="x", question="gate", gates=(gate,)))
    assert (found.severity, found.short) == (severity, short)


def test_a_gate_question_needs_a_gate() -> None:
    """Without one nothing is decided."""
    (found,) = gates.check(Claim(name="x", question="gate"))
    assert (found.severity, found.sentence) == ("inconclusive", "No gate is given: name what it accepts and rejects.")
