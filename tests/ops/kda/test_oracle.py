"""The oracles of the KDA ops: what they may read, and how near their precisions lie to each other."""

from __future__ import annotations

import pytest
import torch

from kda_lab.ops.registry import load_op, op_names
from kda_lab.verify.metrics import element_max, rel_l2

OPS = [name for name in op_names() if name.startswith("kda.")]
STEPS = {"kda.packed_decode": 1e-6, "kda.fused_decode": 1e-5}
"""The ops of one token a request, with what FP32 costs them: a convolved value near a tie may round otherwise."""


@pytest.mark.parametrize("name", OPS)
def test_an_oracle_reads_inputs_and_writes_nothing(name: str) -> None:
    """The memory that a kernel writes or updates is never looked at, and the inputs stay."""
    op = load_op(name)
    call = op.cases.synthesise(op.cases.capture_rows()[0], 0)
    spoiled = call.with_outputs(**{n: t.clone().fill_(float("nan")) for n, t in call.outputs.items()})
    before = {n: t.clone() for n, t in call.inputs.items()}
    for function in (op.oracle.oracle_fp32, op.oracle.oracle_fp64, op.oracle.emulate):
        found, right = function(spoiled), function(call)
        assert all(torch.equal(found[n].nan_to_num(7), right[n].nan_to_num(7)) for n in right)
    assert all(torch.equal(t.nan_to_num(7), before[n].nan_to_num(7)) for n, t in call.inputs.items())


@pytest.mark.parametrize("name", STEPS)
def test_fp32_and_emulation_agree_with_fp64(name: str) -> None:
    """FP32 to its rounding, the emulation to one rounding of each result, on captures and at the edges."""
    op = load_op(name)
    calls = [op.cases.synthesise(row, 0) for row in op.cases.capture_rows()]
    for call in (*calls, *op.cases.edge_calls(3).values()):
        exact, single, emulated = op.oracle.oracle_fp64(call), op.oracle.oracle_fp32(call), op.oracle.emulate(call)
        allowed = op.oracle.allowance(call, exact)
        for n in call.outputs:
            assert rel_l2(single[n], exact[n]) < STEPS[name], call.label
            assert element_max(emulated[n], exact[n], allowed[n]) <= 1, call.label
            assert emulated[n].dtype == call.outputs[n].dtype
            assert torch.isfinite(exact[n]).all()


@pytest.mark.parametrize("name", STEPS)
def test_padding_is_zero_and_other_slots_keep_their_bits(name: str) -> None:
    """Only the named slots of each pool change; rows of padding are zero; nothing may differ there."""
    op = load_op(name)
    call = op.cases.synthesise(op.cases.capture_rows()[0], 0)
    found, live = op.oracle.oracle_fp32(call), call.inputs["state_indices"] >= 0
    named = set(call.inputs["state_indices"][live].tolist())
    allowed = op.oracle.allowance(call, op.oracle.oracle_fp64(call))
    assert not live.all()
    for slot in range(call.inputs["state"].shape[0]):
        for pool in call.updated:
            assert torch.equal(found[pool][slot], call.inputs[pool][slot]) == (slot not in named)
        assert bool((allowed["state"][slot] == 0).all()) == (slot not in named)
    assert torch.count_nonzero(found["out"][~live]) == torch.count_nonzero(allowed["out"][~live]) == 0
    assert (allowed["out"][live] > 0).all()
