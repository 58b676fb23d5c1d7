"""The list of checks, and what holds for each of them; the tricks they catch are in tests/evil."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from toy_op import make_capture, reference, without, write

from kda_lab.ops.protocol import FunctionArm
from kda_lab.verify.checks import CHECK_NAMES, CHECKS, OPTIONAL_CHECKS, Finding
from kda_lab.verify.observation import Observation, Settings, observe

EVIL = Path(__file__).parents[1] / "evil"
EXPECTED_NAMES = (
    "launch",
    "error_fp32",
    "error_pinned",
    "row_max",
    "output_written",
    "output_finite",
    "guards",
    "inputs_unchanged",
    "repeat_bits",
    "changed_lengths_shorter",
    "changed_lengths_longer",
    "state_zero",
)


def test_the_list_is_complete() -> None:
    """No check leaves the list unnoticed: records, gates and reports know them by these names."""
    assert CHECK_NAMES == EXPECTED_NAMES
    assert set(CHECK_NAMES) > OPTIONAL_CHECKS


@pytest.mark.parametrize("name", EXPECTED_NAMES)
def test_every_check_has_an_evil_arm(name: str) -> None:
    """Each check is named by a test of an arm that it catches."""
    assert any(re.search(rf'"{name}"', path.read_text()) for path in EVIL.glob("test_*.py"))


@pytest.mark.parametrize("check", CHECKS, ids=CHECK_NAMES)
def test_no_evidence_is_no_pass(check) -> None:
    """On an observation in which nothing was reached, no check passes but `launch`, which says what it knows."""
    seen = Observation(reference(make_capture(pinned=1.0)), failure="bind: RuntimeError: no")
    result = check.result(seen)
    assert result is not None
    assert not result.passed
    if check.name != "launch":
        assert not result.evaluated
        assert "not evaluated: phase" in result.detail
        assert "bind: RuntimeError: no" in result.detail


@pytest.mark.parametrize("check", CHECKS, ids=CHECK_NAMES)
def test_a_right_arm_passes_each_check(check) -> None:
    """The checks let a right arm pass, with a value within a finite limit."""
    seen = observe(FunctionArm("right", write), reference(make_capture(pinned=1.0)), Settings())
    result = check.result(seen)
    assert result is not None
    assert result.passed
    assert result.value <= result.limit < math.inf
    assert check.what.endswith(".")


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.1], ids=str)
def test_a_finding_passes_only_within_its_limit(value: float) -> None:
    """NaN, infinity and a larger value fail; a veto and missing evidence fail whatever the value."""
    assert not Finding(value, 1.0).passed
    assert Finding(0.5, 1.0).passed
    assert not Finding(0.5, 1.0, veto=True).passed
    assert not Finding(0.5, 1.0, evaluated=False).passed
    assert not Finding(0.5, math.nan).passed


def test_pinned_and_lengths_do_not_apply_everywhere() -> None:
    """Without a pinned output, or for a peer with fixed lengths, the check has no result instead of a pass."""
    arm = FunctionArm("planned", write, reads_live_lengths=False)
    seen = observe(arm, reference(), Settings(role="peer"))
    assert {check.name for check in CHECKS if check.result(seen) is None} == OPTIONAL_CHECKS


def test_without_refuses_a_name_that_is_gone() -> None:
    """The tests' own tool for leaving a check out fails when the check does not exist."""
    with pytest.raises(LookupError, match="no such check"):
        without("gone")
