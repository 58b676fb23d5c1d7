"""Identities between decode ops hold for right arms, and each of them sees a mistake of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from kda_lab.dispatch.dispatcher import DISPATCHER
from kda_lab.notebook.ssm_calls import Geometry, draw
from kda_lab.notebook.ssm_checks import replay_checks, verify_checks
from kda_lab.ops.arms import launcher
from kda_lab.ops.protocol import Arm, Call, FunctionArm
from kda_lab.ops.registry import load_op

OPS = ("kda.packed_decode", "kda.replay_decode", "kda.verify_snapshots", "kda.verify_ring", "kda.fold")
DRAFT = draw(Geometry(), 3, -5.0, 1, torch.device("cpu"))
TOKENS = draw(Geometry(), 7, -5.0, 2, torch.device("cpu"))
Change = Callable[[Call], None]


def torch_arm(op: str, after: Change = lambda call: None, before: Change = lambda call: None) -> Arm:
    """The op's torch function, with a mistake before or behind it."""
    function = DISPATCHER._fallbacks[f"{op.replace('.', '_')}_torch"].run

    def run(call: Call) -> None:
        before(call)
        launcher(function, load_op(op).spec, call)()
        after(call)

    return FunctionArm("torch", run)


def arms(wrong: Mapping[str, Arm] = {}) -> dict[str, Arm]:
    return {op: torch_arm(op) for op in OPS} | dict(wrong)


def failed(checks: list) -> list[str]:
    return [check.stage for check in checks if not check.passed]


def test_right_arms_pass_every_identity() -> None:
    """Two comparisons of the ring, two for each fold, two for each way to replay."""
    found = verify_checks(arms(), DRAFT)
    assert failed(found) == [] and len(found) == 2 + 1 + 2 * 3
    for predecayed in (False, True):
        replayed = replay_checks(arms(), TOKENS, 3, predecayed)
        assert failed(replayed) == [] and len(replayed) == 2
        assert all(check.error > 0 for check in replayed)


def test_a_ring_of_one_place_is_packed_decode() -> None:
    """Nothing is kept, so nothing is rounded: the error is zero."""
    found = replay_checks(arms(), TOKENS, 1, predecayed=False)
    assert failed(found) == [] and [check.error for check in found] == [0.0, 0.0]


def scaled(name: str, factor: float) -> Change:
    def change(call: Call) -> None:
        call.outputs[name].mul_(factor)

    return change


def first_slot(call: Call) -> None:
    """Writes the slot that no request names."""
    named = call.inputs["state_indices"]
    spare = next(s for s in range(call.outputs["state"].shape[-4]) if s not in named.tolist())
    call.outputs["state"][..., spare, :, :, :] += 1


def one_more(call: Call) -> None:
    """Folds a token that was not accepted."""
    call.inputs["accepted"] += 1


WRONG: dict[str, tuple[str, Arm, str]] = {
    "ring-output": (
        "kda.verify_ring",
        torch_arm("kda.verify_ring", scaled("out", 1.01)),
        "out with and without the ring",
    ),
    "ring-strength": (
        "kda.verify_ring",
        torch_arm("kda.verify_ring", scaled("ring_beta", 1.001)),
        "fold of 1 tokens is snapshot 1",
    ),
    "snapshot": (
        "kda.verify_snapshots",
        torch_arm("kda.verify_snapshots", scaled("snapshots", 1.001)),
        "fold of 3 tokens is snapshot 3",
    ),
    "one-more": ("kda.fold", torch_arm("kda.fold", before=one_more), "fold of 0 tokens is the state before"),
    "other-slot": ("kda.fold", torch_arm("kda.fold", first_slot), "fold of 2 tokens: other slots"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_verification_is_seen(case: str) -> None:
    """Each mistake fails the identity that is about it."""
    op, arm, stage = WRONG[case]
    assert stage in failed(verify_checks(arms({op: arm}), DRAFT))


@pytest.mark.parametrize("name", ["ring_d", "ring_k", "state"])
def test_a_wrong_replay_is_seen(name: str) -> None:
    """A record that is a tenth off, and a state that is."""
    wrong = torch_arm("kda.replay_decode", scaled(name, 1.1))
    assert failed(replay_checks(arms({"kda.replay_decode": wrong}), TOKENS, 3, predecayed=False))
