"""A chain launches a touch and a product in turn, on tensors of its own for each layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kda_lab.errors import TimingError
from kda_lab.timing.chain.assembly import build_chain

CPU = torch.device("cpu")


def test_a_touch_stands_before_each_product(chain_op: Any, scaling_arm: Any, plan: Any) -> None:
    """Steps run layer by layer: state, first product, state, second product."""
    chain = build_chain(chain_op, plan, scaling_arm("a"), device=CPU, seed=1)
    layer = ["state", "tiny_a-M2-random", "state", "tiny_c-M2-random"]
    assert [step.kind for step in chain.steps] == layer * 3
    assert [step.layer for step in chain.steps] == [0] * 4 + [1] * 4 + [2] * 4
    assert list(chain.first_of_each_kind()) == ["state", "tiny_a-M2-random", "tiny_c-M2-random"]
    assert (chain.count("state"), chain.count("tiny_c-M2-random")) == (6, 3)


def test_one_pass_computes_every_product(chain_op: Any, scaling_arm: Any, plan: Any) -> None:
    """A call of the chain runs all layers, each with weights of its own."""
    chain = build_chain(chain_op, plan, scaling_arm("a"), device=CPU, seed=1)
    chain()
    for layer in chain.calls:
        for call in layer:
            assert torch.equal(call.outputs["out"], chain_op.exact(call)["out"])
    weights = [layer[0].inputs["w"] for layer in chain.calls]
    assert not torch.equal(weights[0], weights[1])
    assert all(torch.isfinite(state.summary).all() for state in chain.states)


def test_without_an_arm_only_the_state_is_left(chain_op: Any, plan: Any) -> None:
    """The same touches remain, and no product."""
    chain = build_chain(chain_op, plan, None, device=CPU, seed=1)
    assert [step.kind for step in chain.steps] == ["state"] * 6
    assert chain.calls == ((), (), ())


def test_without_state_only_products_are_left(chain_op: Any, scaling_arm: Any, plan: Any) -> None:
    """A plan of 0 bytes of state has no touches."""
    chain = build_chain(chain_op, replace(plan, state_bytes=0), scaling_arm("a"), device=CPU, seed=1)
    assert {step.kind for step in chain.steps} == {"tiny_a-M2-random", "tiny_c-M2-random"}


def test_a_chain_of_nothing_is_refused(chain_op: Any, plan: Any) -> None:
    """Without products and without state there is nothing to launch."""
    with pytest.raises(TimingError, match=r"steps is 0; allowed: at least 1\. Give the chain a state_mb above 0"):
        build_chain(chain_op, replace(plan, state_bytes=0), None, device=CPU, seed=1)


def test_one_seed_gives_one_chain(chain_op: Any, scaling_arm: Any, plan: Any) -> None:
    """Chains of one seed hold the same values, so that arms can be compared bit by bit."""
    one, two = (build_chain(chain_op, plan, scaling_arm("a"), device=CPU, seed=7) for _ in range(2))
    assert torch.equal(one.calls[2][1].inputs["w"], two.calls[2][1].inputs["w"])
    assert torch.equal(one.states[2].values, two.states[2].values)


def test_preparation_is_done_again(chain_op: Any, scaling_arm: Any, plan: Any) -> None:
    """`prepare` reaches every launcher that has one, and no other."""
    chain = build_chain(chain_op, plan, scaling_arm("a"), device=CPU, seed=1)
    done: list[int] = []
    for number, step in enumerate(chain.steps):
        if step.kind != "state":
            step.launch.prepare = lambda number=number: done.append(number)
    chain.prepare()
    assert done == [1, 3, 5, 7, 9, 11]
