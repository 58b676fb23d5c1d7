"""Calls of KDA's decode ops that share their tokens: every one is a call of its op."""

from __future__ import annotations

import torch

from kda_lab.notebook import ssm_calls
from kda_lab.notebook.ssm_calls import Geometry, draw
from kda_lab.ops.registry import load_op

DRAWN = draw(Geometry(), 3, -5.0, 1, torch.device("cpu"))


def test_every_call_is_a_call_of_its_op() -> None:
    """Tensors, scalars and outputs are those of the op's specification, and its oracle takes the call."""
    ring = ssm_calls.verify_call(DRAWN, ring=True)
    memory = ssm_calls.empty_rings(DRAWN, 4, predecayed=True)
    calls = [
        ring,
        ssm_calls.verify_call(DRAWN, ring=False),
        ssm_calls.fold_call(DRAWN, ring, 2),
        ssm_calls.packed_call(DRAWN, 1, DRAWN.state),
        ssm_calls.replay_call(DRAWN, 1, memory, predecayed=True),
        ssm_calls.replay_call(DRAWN, 1, ssm_calls.empty_rings(DRAWN, 4, predecayed=False), predecayed=False),
    ]
    for call in calls:
        op = load_op(call.op)
        assert set(call.inputs) == set(op.spec.tensors) and set(call.outputs) == set(op.spec.outputs)
        assert set(call.scalars) == set(op.spec.scalars)
        exact = op.oracle.oracle_fp64(call)
        assert {n: t.shape for n, t in exact.items()} == {n: t.shape for n, t in call.outputs.items()}


def test_tokens_come_from_their_seed_and_one_request_is_padding() -> None:
    """The same seed draws the same tokens, another one others; slots are distinct."""
    again, other = (draw(Geometry(), 3, -5.0, seed, torch.device("cpu")) for seed in (1, 2))
    assert torch.equal(again.tokens["mixed_qkv"], DRAWN.tokens["mixed_qkv"]) and torch.equal(again.state, DRAWN.state)
    assert not torch.equal(other.state, DRAWN.state)
    slots = DRAWN.state_indices.tolist()
    assert slots[-1] == -1 and len(set(slots)) == 3 and DRAWN.count == 3


def test_what_is_updated_begins_as_given() -> None:
    """The state to write holds the state to read, in memory of its own."""
    call = ssm_calls.packed_call(DRAWN, 0, DRAWN.state)
    assert torch.equal(call.outputs["state"], DRAWN.state)
    assert call.outputs["state"].data_ptr() != DRAWN.state.data_ptr()
