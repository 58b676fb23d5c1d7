"""The list of checks, and what holds for each of them; the tricks they catch are in tests/evil."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from toy_op import (
    LENGTHS,
    BoundArm,
    judge,
    make_capture,
    make_element_op,
    make_named_op,
    make_op,
    reference,
    without,
    write,
)

from kda_lab.errors import VerificationError
from kda_lab.ops.protocol import FunctionArm
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.checks import CHECK_NAMES, CHECKS, OPTIONAL_CHECKS, Finding, checks_of, checks_of_name
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


def test_an_op_names_its_changed_contents() -> None:
    """`cases.CHANGES` gives two checks of their own in the place of those of live lengths; all others stay."""
    names = [check.name for check in checks_of(make_named_op())]
    assert names == [SWAPPED.get(name, name) for name in EXPECTED_NAMES]
    assert checks_of(make_op()) == CHECKS
    what = {check.name: check.what for check in checks_of(make_named_op())}
    assert what["changed_x"] == "rel-L2 after a refill in place with another x."


SWAPPED = {"changed_lengths_shorter": "changed_x", "changed_lengths_longer": "changed_scale"}


def test_named_changes_are_judged_by_default() -> None:
    """A replay without a list of checks takes the op's own, and each rejects an arm that keeps old contents."""
    op, capture = make_named_op(), make_capture()
    assert replay(op, FunctionArm("right", write), capture, "cpu").passed

    def bind(call):
        kept = call.to("cpu")

        def launch() -> None:
            write(kept)
            for name, output in call.outputs.items():
                output.copy_(kept.outputs[name])

        return launch

    assert set(replay(op, BoundArm("kept", bind), capture, "cpu").failed) == {"changed_x", "changed_scale"}


def test_records_know_the_checks_of_their_op() -> None:
    """By an op's name: its own checks; a name that no op has gets those of live lengths."""
    assert checks_of_name("nowhere.at_all") == CHECKS == checks_of_name("qsa.packed_decode")
    names = [check.name for check in checks_of_name("nvfp4.gemm")]
    assert names == [check.name for check in checks_of(load_op("nvfp4.gemm"))]
    assert names[3:5] == ["row_max", "element_max"]
    assert names[10:12] == ["changed_x", "changed_alpha"]


def test_elements_are_judged_where_the_op_says_how() -> None:
    """An oracle with an `allowance` adds one check behind `row_max`, which needs evidence as all others do."""
    names = [check.name for check in checks_of(make_element_op())]
    assert names == [*EXPECTED_NAMES[:4], "element_max", *EXPECTED_NAMES[4:]]
    check = checks_of(make_element_op())[4]
    result = check.result(Observation(reference(), failure="bind: RuntimeError: no"))
    assert result is not None
    assert not result.passed
    assert not result.evaluated


@pytest.mark.parametrize("is_late", [False, True])
def test_one_element_is_seen_on_every_contents(is_late: bool) -> None:
    """An element that is off by less than the other limits fails the check, or that of the contents it is wrong on."""

    def run(call) -> None:
        write(call)
        if (call.inputs["cu"].diff().tolist() == list(LENGTHS)) != is_late:
            call.outputs["out"][1, 1, 1] *= 1.016

    assert judge(FunctionArm("late", run)).passed
    failed = replay(make_element_op(), FunctionArm("late", run), make_capture(), "cpu").failed
    assert failed == (("changed_lengths_shorter", "changed_lengths_longer") if is_late else ("element_max",))


@pytest.mark.parametrize(
    ("factor", "message"),
    [(-1.0, r"holds \d+ values below 0; allowed: 0 or more"), (math.nan, r"holds \d+ values that are not finite")],
)
def test_a_senseless_allowance_is_refused(factor: float, message: str) -> None:
    """A negative allowance, or one that is no number, would judge at random."""
    with pytest.raises(VerificationError, match=rf"allowance on original contents of toy {message}"):
        replay(make_element_op(factor), FunctionArm("right", write), make_capture(), "cpu")
