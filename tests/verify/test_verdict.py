"""The verdict: passes only on complete evidence, and names everything that is missing or failed."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_op import make_capture, make_op, reference, write

from kda_lab.errors import VerificationError
from kda_lab.ops.protocol import FunctionArm
from kda_lab.run_folder import RunFolder
from kda_lab.verify import Verdict, gate_power, judge, replay, stress
from kda_lab.verify.checks import CHECK_NAMES
from kda_lab.verify.records import power_record, stress_record, to_record


@pytest.fixture(scope="module")
def passed() -> list[dict]:
    """Records of a run that passes: candidate, baseline, stress and power on one capture with a pinned output."""
    op, capture, arm = make_op(), make_capture(pinned=1.0), FunctionArm("right", write)
    candidate = to_record(replay(op, arm, capture, "cpu"), "candidate", {})
    baseline = {**candidate, "arm": "slow", "role": "baseline"}
    stressed = stress_record("toy.mean", stress(arm, reference(capture), 3), "candidate", {})
    return [candidate, baseline, stressed, power_record(gate_power(op, capture, "cpu"), {})]


def changed(records: list[dict], at: int, **fields: object) -> list[dict]:
    """The records with fields of one replaced."""
    done = copy.deepcopy(records)
    done[at].update(fields)
    return done


def check(record: dict, name: str) -> dict:
    return next(c for c in record["checks"] if c["name"] == name)


def test_a_complete_run_passes(passed: list[dict]) -> None:
    """Everything there and everything passed: one sentence with the counts."""
    verdict = judge(passed)
    assert verdict.passed
    assert verdict.sentence == (
        "pass: candidate passed 1 of 1 replays, baseline passed 1 of 1 replays on 1 captures; killed 3/3 mutants; 0 refused"
    )
    assert verdict.evidence["replays"] == 2
    assert verdict.evidence["stressed_launches"] == 3
    verdict.raise_if_failed()


def test_no_records_are_ambiguous() -> None:
    """No evidence is not a pass."""
    verdict = judge([])
    assert (verdict.passed, verdict.word) == (False, "ambiguous")
    assert "no evidence" in verdict.sentence


def test_without_a_candidate_it_is_ambiguous(passed: list[dict]) -> None:
    """A run of baselines judges no candidate."""
    verdict = judge([passed[1], passed[3]])
    assert (verdict.passed, verdict.word) == (False, "ambiguous")
    assert "no candidate was replayed" in verdict.sentence


def test_only_refusals_are_ambiguous(passed: list[dict]) -> None:
    """An arm that could not run is counted and proves nothing."""
    verdict = judge([{"kind": "refused", "role": "candidate", "arm": "x", "capture": "y", "reason": "z"}])
    assert (verdict.passed, verdict.evidence["refused"]) == (False, 1)


@pytest.mark.parametrize("name", CHECK_NAMES)
def test_each_failed_check_fails_the_run(passed: list[dict], name: str) -> None:
    """A single failed check is a failure that names arm, capture and check, whatever `passed` of the record says."""
    records = copy.deepcopy(passed)
    check(records[0], name)["passed"] = False
    verdict = judge(records)
    assert verdict.word == "fail"
    assert [f for f in verdict.failures if f.startswith(f"right on toy-a: {name} failed: value")]


@pytest.mark.parametrize("name", CHECK_NAMES)
def test_each_missing_check_fails_the_run(passed: list[dict], name: str) -> None:
    """A check that was left out is a failure, as if it had failed."""
    records = copy.deepcopy(passed)
    records[0]["checks"] = [c for c in records[0]["checks"] if c["name"] != name]
    verdict = judge(records)
    assert verdict.failures == (f"right on toy-a: check {name} is missing",)


@pytest.mark.parametrize("name", ["changed_lengths_shorter", "changed_lengths_longer", "error_pinned"])
def test_a_candidate_cannot_skip(passed: list[dict], name: str) -> None:
    """A stated reason excuses no candidate from changed lengths, and nobody from a pinned output that is there."""
    records = copy.deepcopy(passed)
    records[0]["checks"] = [c for c in records[0]["checks"] if c["name"] != name]
    records[0]["skipped"] = {name: "no wish to"}
    assert judge(records).failures == (f"right on toy-a: check {name} is missing",)


def test_a_baseline_may_fix_lengths(passed: list[dict]) -> None:
    """A baseline without the two checks, for a stated reason, passes; without a reason it fails."""
    records = copy.deepcopy(passed)
    records[1]["checks"] = [c for c in records[1]["checks"] if not c["name"].startswith("changed")]
    records[1]["skipped"] = dict.fromkeys(("changed_lengths_shorter", "changed_lengths_longer"), "fixed at bind")
    assert judge(records).passed
    records[1]["skipped"] = {}
    assert len(judge(records).failures) == 2


def test_a_value_over_its_limit_fails_although_marked_passed(passed: list[dict]) -> None:
    """The verdict compares again: neither a flag nor a null value passes."""
    for value in (0.5, None):
        records = copy.deepcopy(passed)
        check(records[0], "error_fp32")["value"] = value
        assert not judge(records).passed


def test_a_peer_that_fails_is_a_finding(passed: list[dict]) -> None:
    """A failing peer does not fail the run, but is not counted as passed."""
    peer = {**copy.deepcopy(passed[0]), "arm": "library", "role": "peer"}
    check(peer, "error_fp32")["passed"] = False
    verdict = judge([*passed, peer])
    assert verdict.passed
    assert (verdict.evidence["replays"], verdict.evidence["replays_passed"]) == (3, 2)


def test_missing_power_fails(passed: list[dict]) -> None:
    """Every replayed capture needs its own gate power, by SHA-256."""
    assert judge(passed[:3]).failures == ("toy-a: gate power is missing",)
    assert judge(changed(passed, 3, capture_sha256="f" * 64)).failures == ("toy-a: gate power is missing",)


def test_a_survivor_fails(passed: list[dict]) -> None:
    """k < n fails with the survivors' names, whatever the record's own counts say."""
    records = copy.deepcopy(passed)
    records[3]["mutants"][2]["killed"] = False
    verdict = judge(records)
    assert verdict.failures == ("toy-a: killed 2/3; survivors: no_scale",)
    assert "killed 2/3 mutants" in verdict.sentence


def test_power_without_mutants_fails(passed: list[dict]) -> None:
    """A capture on which no mutant applies has gates without proved power."""
    verdict = judge(changed(passed, 3, mutants=[]))
    assert verdict.failures == ("toy-a: no mutant applies, so the gates have no proved power",)


def test_a_failed_control_voids_the_power(passed: list[dict]) -> None:
    """Gates that reject the emulated arithmetic fail the run."""
    verdict = judge(changed(passed, 3, control={"arm": "emulated", "passed": False, "failed": ["row_max"]}))
    assert verdict.failures == ("toy-a: gate power is void: the emulated arithmetic itself fails row_max",)


@pytest.mark.parametrize(
    "fields",
    [{"differing": 1}, {"nonzero_state": {"counter": 1}}, {"failure": "launch: x"}, {"launches": 0}],
    ids=["differing", "state", "failure", "none"],
)
def test_failed_stress_fails_the_run(passed: list[dict], fields: dict) -> None:
    """Stress is judged by its counts and not by its flag."""
    assert judge(changed(passed, 2, **fields)).failures == ("right on toy-a: stress failed",)


def test_verdict_file(tmp_path, passed: list[dict]) -> None:
    """The file holds exactly the four documented fields."""
    run = RunFolder.at(tmp_path)
    judge(passed).write(run)
    content = json.loads(run.verdict.read_text())
    assert set(content) == {"passed", "sentence", "evidence", "failures"}
    assert content["passed"] is True


def test_raise_if_failed_shows_sentence_and_failures() -> None:
    """The error holds the sentence and ten failures, and counts the rest."""
    verdict = Verdict.of("3 of 15", {"replays": 15}, [f"failure {i}" for i in range(12)])
    with pytest.raises(VerificationError, match=r"verify: fail: 3 of 15 \| failure 0 \| .*failure 9 \| … and 2 more"):
        verdict.raise_if_failed()


def test_an_ambiguous_verdict_raises_too() -> None:
    """Whoever asks for a pass gets an error without evidence."""
    with pytest.raises(VerificationError, match="ambiguous: no evidence: nothing was recorded"):
        Verdict.of("nothing was recorded", {"calls": 0}).raise_if_failed()


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 5)), st.lists(st.text(max_size=5), max_size=3))
def test_of_passes_only_with_evidence_and_without_failures(evidence: dict[str, int], failures: list[str]) -> None:
    """`passed` is true exactly when some count is above zero and nothing failed."""
    verdict = Verdict.of("finding", evidence, failures)
    assert verdict.passed == (any(evidence.values()) and not failures)
    assert verdict.passed == (verdict.word == "pass")


def test_a_record_needs_the_checks_of_its_op(passed: list[dict]) -> None:
    """Records of an op with other changed contents need its checks, and those of live lengths do not stand in."""
    records = copy.deepcopy(passed)
    for record in records:
        record["op"] = "nvfp4.gemm"
    wanted = [f"right on toy-a: check {name} is missing" for name in ("element_max", "changed_x", "changed_alpha")]
    assert [f for f in judge(records).failures if f.startswith("right")] == wanted
    # Both replays of the fixture share their checks.
    for old, new in (("changed_lengths_shorter", "changed_x"), ("changed_lengths_longer", "changed_alpha")):
        check(records[0], old)["name"] = new
    records[0]["checks"].append({**check(records[0], "row_max"), "name": "element_max"})
    assert judge(records).passed


def test_a_twin_is_named_in_the_verdict(passed: list[dict]) -> None:
    """What was judged in a kernel's place is said where the pass is said."""
    records = changed(passed, 0, stand_in="torch twin")
    assert f"refused; {records[0]['arm']} through its torch twin" in judge(records).sentence
