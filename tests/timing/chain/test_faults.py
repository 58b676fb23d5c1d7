"""A run of chains fails on values, bits, refusals, gaps, noise and missing work, each in words, and on no speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kda_lab.timing.chain.faults import faults
from kda_lab.timing.protocol import Protocol

PROTOCOL = replace(Protocol(), trials=3)
REF, POLICY = "k stream/stream", "k stream/persist"
KERNELS = {
    "state": {"mean": 1, "copy": 1},
    "a": {"gemm": 1},
    "b": {"gemm": 1},
    "chain": {"mean": 6, "copy": 6, "gemm": 6},
}
Records = list[dict[str, Any]]


@pytest.fixture
def checks(chain_record: Callable[..., dict[str, Any]]) -> Records:
    """Checks of two policies with equal bits."""
    shared = {k: chain_record()[k] for k in ("op", "axes", "layers", "state_bytes", "provenance", "recheck")}
    shared |= {"kind": "check", "device": "cpu", "interpreter": True, "outputs_sha256": "abc"}
    return [{**shared, "arm": REF, "role": "reference"}, {**shared, "arm": POLICY, "role": "policy"}]


@pytest.fixture
def timed(chain_record: Callable[..., dict[str, Any]]) -> Records:
    """Three trials of a reference, its control and a policy that is half as fast."""
    found = []
    for arm, role, us in ((REF, "reference", 10.0), (POLICY, "policy", 20.0), (REF, "control", 10.01)):
        for trial in range(3):
            median = us * (1 + trial / 1000)
            found.append(
                chain_record(arm=arm, role=role, trial=trial, median_us=median, samples_us=[median], kernels=KERNELS)
            )
    return found


def test_a_good_run_has_no_faults(checks: Records, timed: Records) -> None:
    """Right, equal bits, quiet and complete: a policy may be as slow as it likes."""
    assert faults([*checks, *timed], kernels_per_call={REF: 1, POLICY: 1}, protocol=PROTOCOL) == []


def test_checks_alone_can_stand(checks: Records) -> None:
    """A CPU run has no times, and needs none."""
    assert faults(checks) == []


def test_no_checks_no_pass() -> None:
    """A run that compared nothing says so."""
    assert faults([]) == ["0 policies were checked; needed: at least 2"]


def test_wrong_values_fail(checks: Records, timed: Records) -> None:
    """In the check and in each trial."""
    bad = {"passed": False, "error": 1.0, "limit": 1e-3, "detail": "layer 0, a: error is 1"}
    checks[1]["recheck"] = timed[4]["recheck"] = bad
    timed[4]["dropped"] = "recheck failed"
    found = faults([*checks, *timed], protocol=PROTOCOL)
    assert f"{POLICY}: layer 0, a: error is 1" in found
    assert f"{POLICY} in trial 1: layer 0, a: error is 1" in found
    assert f"{POLICY} (policy): 2 good trials; needed: 3 (recheck failed)" in found


def test_unequal_bits_fail(checks: Records, timed: Records) -> None:
    """A policy that changes a bit is another kernel; the words group the arms by their bits."""
    checks[1]["outputs_sha256"] = "other"
    timed[3]["outputs_sha256"] = "other"
    found = faults([*checks, *timed], protocol=PROTOCOL)
    assert found == [
        f"outputs differ between policies in the check: {REF} | {POLICY}",
        f"outputs differ between policies in trial 0: {REF}, {REF} | {POLICY}",
    ]


@pytest.mark.parametrize(("role", "fails"), [("policy", True), ("baseline", True), ("state", True), ("peer", False)])
def test_a_needed_arm_may_not_be_refused(checks: Records, role: str, fails: bool) -> None:
    """Policies, baseline and state must run; a peer that cannot is a finding about the peer."""
    refused = {**checks[0], "kind": "refused", "arm": "x", "role": role, "reason": "no memory"}
    assert faults([*checks, refused]) == (["x was refused: no memory"] if fails else [])


def test_noise_fails(checks: Records, timed: Records) -> None:
    """An A/A band wider than what policies differ by makes the chain say nothing."""
    for record in timed[6:]:
        record["median_us"] *= 1.05
    (found,) = faults([*checks, *timed], protocol=PROTOCOL)
    assert found.startswith("the A/A band of the chain is ±4.")
    assert found.endswith("allowed: at most ±2 %. Free the GPU, or run more trials.")


def test_a_missing_control_fails(checks: Records, timed: Records) -> None:
    """Without the reference against itself there is no noise to judge by."""
    (found,) = faults([*checks, *timed[:6]], protocol=PROTOCOL)
    assert found == "the chain has no A/A band: reference and control share fewer than 2 good trials"


def test_more_kernels_than_declared_fail(checks: Records, timed: Records) -> None:
    """The declaration's count is held against the profiler's."""
    found = faults([*checks, *timed], kernels_per_call={POLICY: 2}, protocol=PROTOCOL)
    assert found == [f"{POLICY}: 1 kernels for a, declared 2", f"{POLICY}: 1 kernels for b, declared 2"]


def test_a_pass_holds_its_steps(checks: Records, timed: Records) -> None:
    """A pass with a launch less than its steps is named."""
    timed[3]["kernels"] = {**KERNELS, "chain": {"mean": 6, "copy": 6, "gemm": 5}}
    (found,) = faults([*checks, *timed], protocol=PROTOCOL)
    assert found.startswith(f"{POLICY}: a pass ran {{'mean': 6, 'copy': 6, 'gemm': 5}}; its steps give")


def test_a_silent_profiler_is_no_fault(checks: Records, timed: Records) -> None:
    """Where the profiler saw nothing, the record says why and nothing is concluded."""
    for record in timed:
        record["kernels"] = dict.fromkeys(KERNELS)
        record["kernels_reason"] = "unavailable"
    assert faults([*checks, *timed], kernels_per_call={POLICY: 1}, protocol=PROTOCOL) == []
