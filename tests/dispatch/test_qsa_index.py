"""The index stages in torch: new outputs and given ones, and what the fallback chain hears of a call."""

from __future__ import annotations

import pytest
import torch

from kda_lab.contracts.predicate import call_facts
from kda_lab.dispatch import qsa_index
from kda_lab.ops.registry import load_op
from kda_lab.verify.metrics import rel_l2

SCORES, COMPRESS = load_op("qsa.block_scores"), load_op("qsa.compress_keys")
SCORED = SCORES.cases.edge_calls(2)["page_edges"]
STEP = COMPRESS.cases.edge_calls(2)["first_group"]


def test_scores_are_written_where_they_are_wanted() -> None:
    """A given buffer is filled and returned; without one a new one comes, of the same values."""
    inputs, out = SCORED.inputs.values(), torch.full((4, 64), float("nan"))
    found = qsa_index.block_scores(*inputs, scores=out)
    assert found is out
    assert torch.equal(qsa_index.block_scores(*inputs), out)
    assert rel_l2(out, SCORES.oracle.oracle_fp64(SCORED)["scores"]) < 1e-6


def test_compressed_keys_are_written_where_they_are_wanted() -> None:
    """Three given buffers are filled and returned in their order."""
    out = {name: torch.zeros_like(tensor) for name, tensor in STEP.outputs.items()}
    found = qsa_index.compress_keys(*STEP.inputs.values(), eps=1e-6, **out)
    assert all(one is two for one, two in zip(found, out.values(), strict=True))
    fresh = qsa_index.compress_keys(*STEP.inputs.values())
    assert all(torch.equal(one, two) for one, two in zip(found, fresh, strict=True))


def test_another_ratio_follows_the_ring() -> None:
    """The function takes its r from the ring: two tokens a group here."""
    call = STEP.inputs
    ring = call["ring"][:, :2].contiguous()
    entries, places, new = qsa_index.compress_keys(*({**call, "ring": ring}).values())
    slot = int(call["slots"][0])
    assert places.tolist() == [0, slot // 2, 0, (slot + 2) // 2]
    assert torch.equal(new[0], call["k_raw"][2:])
    assert entries.any(1).tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("op", "call", "fallback"),
    [(SCORES, SCORED, qsa_index.BLOCK_SCORES), (COMPRESS, STEP, qsa_index.COMPRESS_KEYS)],
    ids=["scores", "keys"],
)
def test_the_fallback_takes_a_right_call(op, call, fallback) -> None:
    """The chain of the op names the function, which has nothing against a call of the op."""
    assert op.spec.fallback == (fallback.name,)
    facts = call_facts(op.spec, call.inputs, call.scalars, {})
    assert fallback.unavailable(facts) == ()


@pytest.mark.parametrize(
    ("op", "call", "fallback", "name"),
    [
        (SCORES, SCORED, qsa_index.BLOCK_SCORES, "keys"),
        (COMPRESS, STEP, qsa_index.COMPRESS_KEYS, "k_raw"),
    ],
    ids=["scores", "keys"],
)
def test_the_fallback_refuses_another_dtype(op, call, fallback, name: str) -> None:
    """FP32 keys are named with the dtype that is allowed."""
    inputs = {**call.inputs, name: call.inputs[name].float()}
    reasons = fallback.unavailable(call_facts(op.spec, inputs, call.scalars, {}))
    assert [str(reason) for reason in reasons if reason.field == f"{name}.dtype"] == [
        f"{name}.dtype is torch.float32; allowed: torch.bfloat16. Cast {name}."
    ]
