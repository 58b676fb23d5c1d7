"""Coverage: where tests ran, and what they skipped."""

from __future__ import annotations

from typing import Any

import pytest

from kda_lab.referee.checks import coverage
from kda_lab.referee.claim import Claim, Coverage


@pytest.mark.parametrize(
    ("fields", "severity", "words"),
    [
        ({"passed": 9, "runs_the_change": True}, "passed", "9 passed, 0 failed, 0 skipped on H100."),
        ({"passed": 9, "skipped": 13, "claimed_for": "H100"}, "note", "13 skipped on H100; skips are no passes."),
        ({"passed": 9, "claimed_for": "B200"}, "warning", "nothing was run on B200"),
        ({"passed": 9, "runs_the_change": False}, "warning", "this does not cover it"),
        ({"passed": 0, "skipped": 13}, "warning", "no test passed"),
        ({"passed": 9, "failed": 1}, "warning", "tests failed"),
    ],
    ids=["covered", "skips", "hardware", "other path", "only skips", "failed"],
)
def test_coverage_is_said_as_it_is(fields: dict[str, Any], severity: str, words: str) -> None:
    """Skips stand apart from passes, one machine from another, one path from another."""
    item = Coverage.model_validate({"name": "unit tests", "ran_on": "H100", **fields})
    (found,) = coverage.check(Claim(name="x", coverage=(item,)))
    assert found.severity == severity
    assert words in found.sentence
