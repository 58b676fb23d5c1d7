"""Chains are timed in alternating order with a control, proof of work and a check after each trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kda_lab.errors import ParameterError, TimingError
from kda_lab.ops.protocol import Call
from kda_lab.timing.chain.arms import ChainArm
from kda_lab.timing.chain.measure import time_chain
from kda_lab.timing.protocol import Protocol

PROTOCOL = replace(Protocol(), trials=3, min_graph_us=500.0)


@pytest.fixture
def timed(chain_op: Any, plan: Any, make_machine: Any, chain_timer: Any) -> Callable[..., list[dict[str, Any]]]:
    """Time arms on the fake machine."""

    def run(arms: list[ChainArm], **changes: Any) -> list[dict[str, Any]]:
        timer = changes.pop("timer", chain_timer())
        machine = make_machine(timer=timer, l2_bytes=64, **changes)
        return time_chain(chain_op, plan, arms, machine=machine, protocol=PROTOCOL)

    return run


def test_each_arm_is_timed_per_layer(timed: Callable[..., list[dict[str, Any]]], scaling_arm: Any) -> None:
    """Two products of 10 us and two touches of 3 us a layer give 26 us; without products 6 us are left."""
    arms = [ChainArm(scaling_arm("ref"), "reference"), ChainArm(scaling_arm("fast", 5.0), "policy")]
    found = timed([*arms, ChainArm(None, "state")])
    times = {(r["arm"], r["role"]): r["median_us"] for r in found}
    assert times == {
        ("ref", "reference"): pytest.approx(26.0),
        ("fast", "policy"): pytest.approx(16.0),
        ("state only", "state"): pytest.approx(6.0),
        ("ref", "control"): pytest.approx(26.0),
    }
    assert Counter(r["trial"] for r in found) == {0: 4, 1: 4, 2: 4}
    assert {r["protocol"] for r in found} == {"chain v1 (trials=3, min_graph_us=500.0)"}
    assert {r["reference"] for r in found} == {"ref"}


def test_the_graph_is_long_enough(
    timed: Callable[..., list[dict[str, Any]]], scaling_arm: Any, chain_timer: Any
) -> None:
    """Every arm's graph holds as many passes as the reference needs for the least work of a graph."""
    timer = chain_timer()
    found = timed([ChainArm(scaling_arm("ref"), "reference"), ChainArm(scaling_arm("p"), "policy")], timer=timer)
    # One pass is 3 x 26 us: seven of them are the least work, and one more is sure of it.
    assert {r["passes_per_graph"] for r in found} == {8}
    assert timer.log == [(12, 1), *[(12, 8)] * 9]


def test_the_order_alternates(timed: Callable[..., list[dict[str, Any]]], scaling_arm: Any) -> None:
    """A B A' in even trials, A' B A in odd ones."""
    found = timed([ChainArm(scaling_arm("ref"), "reference"), ChainArm(scaling_arm("p"), "policy")])
    roles = [[r["role"] for r in sorted(found, key=lambda r: r["order"]) if r["trial"] == t] for t in range(3)]
    assert roles == [["reference", "policy", "control"], ["control", "policy", "reference"], roles[0]]


def test_arms_of_a_trial_have_the_same_bits(timed: Callable[..., list[dict[str, Any]]], scaling_arm: Any) -> None:
    """One hash a trial over all arms that compute the same, another in the next trial."""
    found = timed([ChainArm(scaling_arm("ref"), "reference"), ChainArm(scaling_arm("p"), "policy")])
    hashes = [{r["outputs_sha256"] for r in found if r["trial"] == trial} for trial in range(3)]
    assert [len(h) for h in hashes] == [1, 1, 1]
    assert len(set.union(*hashes)) == 3


def test_records_say_what_ran_and_how_much(timed: Callable[..., list[dict[str, Any]]], scaling_arm: Any) -> None:
    """Activities of each step and of the pass, bytes of products, L2, and whether products can stay in it."""
    record = timed([ChainArm(scaling_arm("ref"), "reference")])[0]
    assert record["kernels"] == {
        kind: {"double_kernel": 1} for kind in ("state", "tiny_a-M2-random", "tiny_c-M2-random", "chain")
    }
    assert (record["product_bytes"], record["touches_per_layer"]) == (8 * (8 + 16), 2)
    assert (record["l2_bytes"], record["cold_products"]) == (64, True)
    assert record["roof_us"] == pytest.approx(192 / 4300e3)


def test_an_arm_that_is_wrong_is_dropped(timed: Callable[..., list[dict[str, Any]]], scaling_arm: Any) -> None:
    """A trial whose outputs are wrong stays in the records and does not count; no trial is added for it."""

    def doubled(call: Call) -> None:
        torch.mul(call.inputs["x"], 2 * call.inputs["w"], out=call.outputs["out"])

    found = timed([ChainArm(scaling_arm("ref"), "reference"), ChainArm(scaling_arm("p", function=doubled), "policy")])
    wrong = [r for r in found if r["arm"] == "p"]
    assert len(wrong) == 3
    assert all(r["dropped"].startswith("recheck failed: layer 0, tiny_a-M2-random: error is 1") for r in wrong)


def test_a_throttled_trial_is_made_up(
    timed: Callable[..., list[dict[str, Any]]], scaling_arm: Any, quiet: dict[str, Any]
) -> None:
    """A throttled trial is dropped with its reason and one more is run."""
    readings = iter([{**quiet, "throttle": ["sw_power_cap"]}])
    found = timed([ChainArm(scaling_arm("ref"), "reference")], telemetry=lambda: next(readings, dict(quiet)))
    assert [r["dropped"] for r in found if r["dropped"]] == ["throttled: sw_power_cap"]
    assert {r["trial"] for r in found} == {0, 1, 2, 3}


def test_an_arm_that_raises_is_refused(timed: Callable[..., list[dict[str, Any]]], scaling_arm: Any) -> None:
    """Its earlier trials are left out and the others go on."""
    calls: list[int] = []

    def later(call: Call) -> None:
        calls.append(1)
        if len(calls) > 60:
            raise RuntimeError("out of patience")
        torch.mul(call.inputs["x"], call.inputs["w"], out=call.outputs["out"])

    arms = [ChainArm(scaling_arm("ref"), "reference"), ChainArm(scaling_arm("p", function=later), "policy")]
    found = timed([*arms, ChainArm(scaling_arm("absent", why_not="unavailable, because"), "peer")])
    assert [(r["arm"], r["kind"], r["reason"]) for r in found if r["arm"] not in ("ref",)] == [
        ("p", "refused", "RuntimeError: out of patience"),
        ("absent", "refused", "unavailable, because"),
    ]
    assert len([r for r in found if r["arm"] == "ref"]) == 6


def test_a_lost_device_ends_the_chain(timed: Callable[..., list[dict[str, Any]]], scaling_arm: Any) -> None:
    """After an arm that destroys the context nothing can be timed, and the words say so."""

    def raising(call: Call) -> None:
        raise RuntimeError("illegal access")

    def lost() -> None:
        raise RuntimeError("context is destroyed")

    arms = [ChainArm(scaling_arm("ref", function=raising), "reference")]
    with pytest.raises(TimingError, match=r"the device is lost after arm 'ref' in the chain .*context is destroyed"):
        timed(arms, profile=lambda launch, device: launch(), synchronise=lost)


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        (["policy", "policy"], "arms with role reference is 0; allowed: exactly 1. Give one arm"),
        (["reference", "reference"], "arms with role reference is 2; allowed: exactly 1"),
        (["reference", "control"], "role is 'control'; allowed: none: the A/A control is added"),
    ],
)
def test_wrong_roles_are_refused(
    timed: Callable[..., list[dict[str, Any]]], scaling_arm: Any, roles: list[Any], words: str
) -> None:
    """There is one reference, and its control is added by the room."""
    with pytest.raises(ParameterError, match=words):
        timed([ChainArm(scaling_arm(f"a{number}"), role) for number, role in enumerate(roles)])


def test_names_are_distinct(timed: Callable[..., list[dict[str, Any]]], scaling_arm: Any) -> None:
    """Two arms of one name could not be told apart in the records."""
    with pytest.raises(ParameterError, match="arm is 'a'; allowed: each name once"):
        timed([ChainArm(scaling_arm("a"), "reference"), ChainArm(scaling_arm("a"), "policy")])
