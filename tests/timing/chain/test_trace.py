"""A decode trace: its geometry is the model's, and its faults are wrong values, gaps and missing work, never a speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.registry import load_op
from kda_lab.timing.chain.trace import DRAFT_STEPS, TARGET_LAYERS, calls_of, plan_trace, trace_faults
from kda_lab.timing.protocol import Protocol

OP = load_op("qsa.packed_decode")
PROTOCOL = replace(Protocol(), trials=3)
Records = list[dict[str, Any]]
PLAN = plan_trace(OP, "tp2", requests=1, forwards=2, kinds=("short", "short"), layers=(2, 1))
TARGET, DRAFT = "tp2-B4-short", "tp2-B1-short"
KERNELS = {TARGET: {"split": 1}, DRAFT: {"split": 1}, "chain": {"split": 6}}


def test_ten_forwards_of_the_model_are_150_calls() -> None:
    """Twelve target rows of four queries and 2051 keys, three draft rows of one query and 2055 keys, ten times."""
    layers = (TARGET_LAYERS, DRAFT_STEPS)
    plan = plan_trace(OP, "tp2", requests=1, forwards=10, kinds=("saturated", "draft"), layers=layers)
    assert calls_of(plan) == 150 and plan.state_bytes == 0
    labels = [row.label for row in plan.rows]
    assert labels == ["tp2-B4-saturated"] * 12 + ["tp2-B1-draft"] * 3
    assert OP.cases.lengths("draft", 1) == (2055,)
    three = plan_trace(OP, "tp1", requests=3, forwards=2, kinds=("short", "short"), layers=(1, 1))
    assert [row.parameters["B"] for row in three.rows] == [12, 3]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"requests": 0}, r"requests is 0; allowed: at least 1\."),
        ({"forwards": 1}, r"forwards is 1; allowed: at least 2\."),
        ({"kinds": ("short",)}, r"kinds is \['short'\]; allowed: two"),
        ({"layers": (0, 1)}, r"layers is \[0, 1\]; allowed: two numbers of 1 or more"),
        ({"kinds": ("short", "long")}, r"kind is 'long'; allowed: 'short'"),
    ],
)
def test_a_trace_that_is_none_is_refused(given: dict[str, Any], words: str) -> None:
    """Each bad argument by name, with what is allowed."""
    good = {"requests": 1, "forwards": 2, "kinds": ("short", "short"), "layers": (1, 1)}
    with pytest.raises(ParameterError, match=words):
        plan_trace(OP, "tp2", **{**good, **given})


@pytest.fixture
def records(chain_record: Callable[..., dict[str, Any]]) -> Records:
    """A check and three trials each of a baseline, its control and a candidate."""
    shared = {k: chain_record()[k] for k in ("op", "axes", "layers", "state_bytes", "provenance", "recheck")}
    shared |= {"kind": "check", "device": "cpu", "interpreter": True, "outputs_sha256": "abc"}
    found = [{**shared, "arm": arm, "role": role} for arm, role in (("slow", "reference"), ("fast", "policy"))]
    for arm, role in (("slow", "reference"), ("fast", "policy"), ("slow", "control")):
        found += [chain_record(arm=arm, role=role, trial=trial, kernels=KERNELS) for trial in range(3)]
    return found


def faults(records: Records) -> list[str]:
    """Faults where the candidate promises one kernel a call."""
    return trace_faults(records, PLAN, kernels_per_call={"fast": 1}, protocol=PROTOCOL)


def test_a_good_trace_has_no_faults(records: Records) -> None:
    """Right, complete, and a pass of exactly the calls' kernels; checks alone stand where nothing was timed."""
    assert faults(records) == []
    assert faults(records[:2]) == []


def test_wrong_values_and_refusals_are_faults(records: Records) -> None:
    """In a check or a trial, of baseline or candidate; a peer that cannot run is a finding about the peer."""
    wrong = {"passed": False, "error": 0.1, "limit": 0.01, "detail": "error is 0.1"}
    assert faults([{**records[0], "recheck": wrong}, *records[1:]]) == ["slow: error is 0.1"]
    refusal = {"kind": "refused", "arm": "fast", "role": "policy", "reason": "no GPU"}
    assert faults([*records, refusal]) == ["fast was refused: no GPU"]
    assert faults([*records, {**refusal, "role": "peer"}]) == []


def test_nothing_checked_is_no_pass(records: Records) -> None:
    """A trace without a checked candidate proves nothing."""
    assert faults(records[:1]) == ["no arm with role policy was checked; needed: one"]
    assert len(faults([])) == 2


def test_missing_trials_are_a_fault(records: Records) -> None:
    """The control counts too: without it there is no noise."""
    assert faults(records[:-1]) == ["slow (control): 2 good trials; needed: 3"]
    dropped = {**records[-1], "dropped": "throttled: power"}
    assert faults([*records[:-1], dropped]) == ["slow (control): 2 good trials; needed: 3"]


def test_every_call_and_the_pass_run_what_is_promised(records: Records) -> None:
    """Two kernels for one call, or a pass with a kernel too few; an arm that promises nothing may run anything."""
    more = {**KERNELS, DRAFT: {"split": 1, "fill": 1}}
    changed = [{**r, "kernels": more} if r["arm"] == "fast" and r["kind"] == "chain" else r for r in records]
    assert f"fast: 2 kernels for {DRAFT}, declared 1" in faults(changed)
    fewer = {**KERNELS, "chain": {"split": 5}}
    changed = [{**r, "kernels": fewer} if r["kind"] == "chain" else r for r in records]
    assert faults(changed) == ["fast: a pass ran {'split': 5}; its calls give {'split': 6}"]
