"""The loop over suites: at least one case, none after the time is up, faults in words, never a pass of nothing."""

from __future__ import annotations

from typing import Any

import pytest

from kda_lab.errors import ParameterError, VerificationError
from kda_lab.suites.suite import Case, Outcome, Suite, chosen, run_suite, run_suites, to_record
from kda_lab.verify.launching import ArmFailure


def suite(*outcomes: Outcome, name: str = "some", needs_gpu: bool = False) -> Suite:
    """A suite whose cases give these outcomes."""
    cases = [Case(f"case {i}", lambda o=o: o) for i, o in enumerate(outcomes)]
    return Suite(name, "Something holds.", lambda bench: cases, needs_gpu)


def test_a_suite_passes_when_every_case_is_right(bench_of: Any) -> None:
    """Two right cases pass, with their notes."""
    found = run_suite(suite(Outcome(), Outcome(note="same bits")), bench_of("right"), 9.0)
    assert (found.cases, found.planned, found.passed_cases, found.passed, found.cut) == (2, 2, 2, True, False)
    assert (found.faults, found.notes) == ((), ("case 1: same bits",))


def test_one_wrong_case_fails_a_suite(bench_of: Any) -> None:
    """The fault names its case; cases behind it are run all the same."""
    found = run_suite(suite(Outcome("too large"), Outcome()), bench_of("right"), 9.0)
    assert (found.passed, found.passed_cases, found.faults) == (False, 1, ("case 0: too large",))


def test_no_case_begins_when_the_time_is_up(bench_of: Any) -> None:
    """The first case is always run; the others wait for no clock."""
    ticks = iter([0.0, 0.5, 1.0, 1.0])
    found = run_suite(suite(Outcome(), Outcome(), Outcome()), bench_of("right"), 1.0, clock=lambda: next(ticks))
    assert (found.cases, found.planned, found.cut, found.passed, found.seconds) == (2, 3, True, True, 1.0)


def test_an_arm_that_fails_is_a_fault(bench_of: Any) -> None:
    """What the arm raises is recorded with its stage, and the next case is run."""

    def fails() -> Outcome:
        raise ArmFailure("launch", "RuntimeError: no such geometry")

    found = run_suite(Suite("some", "", lambda b: [Case("a", fails), Case("b", Outcome)]), bench_of("right"), 9.0)
    assert (found.faults, found.cases) == (("a: launch: RuntimeError: no such geometry",), 2)


def test_a_suite_without_cases_is_refused(bench_of: Any) -> None:
    """Nothing run is no pass."""
    with pytest.raises(VerificationError, match=r"suite some has no cases; allowed: at least one\. Mend the suite\."):
        run_suite(suite(), bench_of("right"), 9.0)


def test_a_suite_for_a_gpu_is_skipped_on_a_cpu(bench_of: Any) -> None:
    """It says why, and has not passed."""
    found = run_suite(suite(Outcome(), needs_gpu=True), bench_of("right"), 9.0)
    assert (found.skipped, found.passed, found.cut) == ("needs a CUDA device", False, False)


def test_records_hold_every_field(bench_of: Any) -> None:
    """A line has the arm, where it ran, and the verdict beside the numbers."""
    bench = bench_of("right")
    record = to_record(run_suite(suite(Outcome()), bench, 9.0), bench)
    assert {n: record[n] for n in ("kind", "op", "arm", "device", "suite", "cases", "passed", "cut")} == {
        "kind": "suite",
        "op": "qsa.packed_decode",
        "arm": "right",
        "device": "cpu",
        "suite": "some",
        "cases": 1,
        "passed": True,
        "cut": False,
    }


def test_bad_requests_are_refused(bench_of: Any) -> None:
    """A name twice, no suites, no time, an unknown name, an arm that cannot run here: each in its words."""
    bench = bench_of("right")
    with pytest.raises(ParameterError, match=r"suites is \['some', 'some'\]; allowed: at least one, each once\."):
        run_suites([suite(Outcome()), suite(Outcome())], bench, 1.0)
    with pytest.raises(ParameterError, match=r"suites is \[\]; .* seconds is 0; allowed: more than 0\."):
        run_suites([], bench, 0)
    with pytest.raises(ParameterError, match=r"suites is \['other'\]; allowed: some\."):
        chosen([suite(Outcome())], ["some", "other"])
    bench.arm = bench.op.baselines.ARMS[2]
    with pytest.raises(VerificationError, match=r"arm flashinfer_ragged_fa2 cannot be judged on cpu: unavailable"):
        run_suites([suite(Outcome())], bench, 1.0)


def test_suites_keep_their_own_order(bench_of: Any) -> None:
    """Names choose, they do not sort; no name chooses all."""
    suites = [suite(Outcome(), name=n) for n in ("a", "b", "c")]
    assert [s.name for s in chosen(suites, ["c", "a"])] == ["a", "c"]
    assert [r.suite for r in run_suites(chosen(suites, []), bench_of("right"), 9.0)] == ["a", "b", "c"]
