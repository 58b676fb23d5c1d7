"""A chain is judged by its own launches on changed values: each way to be wrong is seen, with its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kda_lab.ops.protocol import Call
from kda_lab.timing.chain.arms import ChainArm
from kda_lab.timing.chain.judgement import Judge, check_chain, outputs_sha256

CPU = torch.device("cpu")


@pytest.fixture
def judged(chain_op: Any, plan: Any, scaling_arm: Any) -> Callable[..., dict[str, Any]]:
    """Judge a chain of an arm; `replay_of` turns the chain into what is replayed."""

    def judge(
        function: Callable[[Call], None] | None = None, replay_of: Callable[[Any], Any] = lambda chain: chain
    ) -> dict[str, Any]:
        arm = scaling_arm("a", function=function) if function else scaling_arm("a")
        chain = ChainArm(arm, "policy").build(chain_op, plan, device=CPU, seed=1)
        return Judge(chain_op, plan).judge(chain, replay_of(chain), 1, seed=1, synchronise=lambda: None)

    return judge


def test_a_right_chain_passes(judged: Callable[..., dict[str, Any]]) -> None:
    """No fault, an error of zero against the oracle, and a hash of all outputs."""
    found = judged()
    assert found["recheck"] == {"passed": True, "error": 0.0, "limit": 1e-5, "detail": ""}
    assert len(found["outputs_sha256"]) == 64


def test_bits_of_one_seed_compare(judged: Callable[..., dict[str, Any]]) -> None:
    """Two chains with equal results have one hash; one bit more or less gives another."""

    def a_little_more(call: Call) -> None:
        torch.mul(call.inputs["x"], call.inputs["w"] * (1 + 2**-22), out=call.outputs["out"])

    other = judged(a_little_more)
    assert judged()["outputs_sha256"] == judged()["outputs_sha256"] != other["outputs_sha256"]
    assert other["recheck"]["passed"]


def test_a_wrong_product_fails(judged: Callable[..., dict[str, Any]]) -> None:
    """The words name layer, product, error and limit."""

    def doubled(call: Call) -> None:
        torch.mul(call.inputs["x"], 2 * call.inputs["w"], out=call.outputs["out"])

    found = judged(doubled)["recheck"]
    assert not found["passed"]
    assert "layer 0, tiny_a-M2-random: error is 1; allowed: at most 1e-05" in found["detail"]
    assert "layer 2, tiny_c-M2-random: error is 1" in found["detail"]


def test_a_chain_that_launches_nothing_fails(judged: Callable[..., dict[str, Any]]) -> None:
    """Outputs keep their poison and the states their old summary."""
    found = judged(replay_of=lambda chain: lambda: None)["recheck"]
    assert found["error"] is None
    assert "6 of 6 products kept poison in their outputs after the replay" in found["detail"]
    assert "layer 1: the state is off by inf times its tolerance: a touch is missing" in found["detail"]


def test_a_product_left_out_in_the_middle_fails(judged: Callable[..., dict[str, Any]]) -> None:
    """A layer that is not compared with the oracle must still be written."""

    def without_the_seventh(chain: Any) -> Callable[[], None]:
        return lambda: [step.launch() for number, step in enumerate(chain.steps) if number != 5] and None

    found = judged(replay_of=without_the_seventh)["recheck"]
    assert "1 of 6 products kept poison" in found["detail"]


def test_a_state_that_is_not_touched_fails(judged: Callable[..., dict[str, Any]]) -> None:
    """A chain that skips the touches would be faster than what it stands for."""

    def products_only(chain: Any) -> Callable[[], None]:
        return lambda: [step.launch() for step in chain.steps if step.kind != "state"] and None

    found = judged(replay_of=products_only)["recheck"]
    assert not found["passed"]
    assert "the state is off by" in found["detail"]
    assert "products" not in found["detail"]


def test_an_old_answer_fails(chain_op: Any, plan: Any, scaling_arm: Any) -> None:
    """Inputs are changed before the replay, so outputs kept from before do not agree."""
    chain = ChainArm(scaling_arm("a"), "policy").build(chain_op, plan, device=CPU, seed=1)
    chain()
    kept = [call.outputs["out"].clone() for layer in chain.calls for call in layer]
    outputs = [call.outputs["out"] for layer in chain.calls for call in layer]

    def replay() -> None:
        for state in chain.states:
            state.touch()
            state.touch()
        for out, old in zip(outputs, kept, strict=True):
            out.copy_(old)

    found = Judge(chain_op, plan).judge(chain, replay, 1, seed=1, synchronise=lambda: None)["recheck"]
    assert not found["passed"]
    assert "layer 0, tiny_a-M2-random: error is" in found["detail"]


def test_the_chain_without_products_is_judged_by_its_state(chain_op: Any, plan: Any) -> None:
    """It passes on its states alone, and has no outputs to hash."""
    chain = ChainArm(None, "state").build(chain_op, plan, device=CPU, seed=1)
    found = Judge(chain_op, plan).judge(chain, chain, 1, seed=1, synchronise=lambda: None)
    assert found["recheck"]["passed"]
    assert found["outputs_sha256"] == outputs_sha256([]) == ""


def test_every_arm_gets_a_record(chain_op: Any, plan: Any, scaling_arm: Any) -> None:
    """A check a working arm; a refusal, in words, an arm that is missing or raises."""

    def broken(call: Call) -> None:
        raise ValueError("no such geometry")

    arms = [
        ChainArm(scaling_arm("good"), "reference"),
        ChainArm(scaling_arm("broken", function=broken), "policy"),
        ChainArm(scaling_arm("absent", why_not="unavailable, because it is"), "peer"),
        ChainArm(None, "state"),
    ]
    found = check_chain(chain_op, plan, arms, device=CPU, seed=2)
    assert [(r["kind"], r["arm"], r.get("reason", "")) for r in found] == [
        ("check", "good", ""),
        ("refused", "broken", "ValueError: no such geometry"),
        ("refused", "absent", "unavailable, because it is"),
        ("check", "state only", ""),
    ]
    assert (found[0]["device"], found[0]["interpreter"], found[0]["recheck"]["passed"]) == ("cpu", True, True)
