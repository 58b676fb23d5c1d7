"""The references of the prefill agree by two roads, keep what they must, and say no to calls that mean nothing."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.kda_chunk_prefill import cases, oracle
from kda_lab.ops.protocol import Call
from kda_lab.verify.metrics import element_max, rel_l2

CALLS = {r.label: cases.synthesise(r, 2) for r in cases.capture_rows()} | cases.edge_calls(2)


@pytest.mark.parametrize("name", CALLS)
def test_both_references_agree(name: str) -> None:
    """Token by token and chunk by chunk in FP64: to 1e-12, on captures and edges."""
    one, other = oracle.oracle_fp64(CALLS[name]), oracle.oracle_chunked(CALLS[name])
    for output in one:
        assert torch.allclose(one[output], other[output], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_the_emulation_is_finite_and_within_the_allowance(name: str) -> None:
    """BF16 operands stay finite for both gates, and no element is further away than it may be."""
    exact, emulated = oracle.oracle_fp64(CALLS[name]), oracle.emulate(CALLS[name])
    allowed = oracle.allowance(CALLS[name], exact)
    for output, found in emulated.items():
        assert torch.isfinite(found).all()
        assert element_max(found, exact[output], allowed[output]) <= 0.5
    assert emulated["out"].dtype == torch.bfloat16
    assert emulated["state"].dtype == torch.float32


def test_fp32_is_close_to_fp64() -> None:
    """The unrounded FP32 oracle is far inside every limit."""
    call = CALLS["long-K32-V64-steep"]
    one, other = oracle.oracle_fp32(call), oracle.oracle_fp64(call)
    assert max(rel_l2(one[n], other[n]) for n in one) < 1e-5


def test_slots_and_padding_keep_their_bits() -> None:
    """Unnamed slots, padding and empty sequences: the pool's bits stay, rows of padding are zero, nothing is allowed."""
    call = CALLS["padded-K64-V32-safe"]
    before = {n: t.clone() for n, t in call.inputs.items()}
    found = oracle.oracle_fp32(call)
    named = call.inputs["state_indices"][:1].long()
    kept = torch.ones(len(found["state"]), dtype=torch.bool).index_fill(0, named, False)
    assert torch.equal(found["state"][kept], call.inputs["state"][kept])
    assert not torch.equal(found["state"][named], call.inputs["state"][named])
    assert torch.count_nonzero(found["out"][66:]) == 0
    allowed = oracle.allowance(call, oracle.oracle_fp64(call))
    assert torch.count_nonzero(allowed["out"][66:]) == torch.count_nonzero(allowed["state"][kept]) == 0
    assert (allowed["state"][named] > 0).all()
    assert all(torch.equal(call.inputs[n], t) for n, t in before.items())


def test_a_sequence_without_a_state_starts_from_zero() -> None:
    """What its slot held does not matter."""
    call = CALLS["shared-K32-V32-softplus"]
    other = call.inputs["state"].clone()
    other[call.inputs["state_indices"][1].long()] = 7.0
    assert not call.inputs["has_state"][1]
    one, two = oracle.oracle_fp64(call), oracle.oracle_fp64(call.with_inputs(state=other))
    assert torch.equal(one["out"], two["out"])


def test_cutting_a_sequence_in_two_calls_changes_nothing() -> None:
    """A prompt in two parts, the second starting from the state of the first: the same outputs and state."""
    call = cases.synthesise(cases.row("cut", {"HV": 2, "K": 32, "V": 64, "lengths": (90,)}), 0)
    whole = oracle.oracle_fp64(call)
    first, second = part(call, 0, 37), part(call, 37, 90)
    one = oracle.oracle_fp64(first)
    two = oracle.oracle_fp64(second.with_inputs(state=one["state"]))
    assert torch.allclose(torch.cat([one["out"], two["out"]]), whole["out"], atol=1e-12)
    assert torch.allclose(two["state"], whole["state"], atol=1e-12)


def part(call: Call, first: int, last: int) -> Call:
    tokens = {n: call.inputs[n][first:last] for n in cases.OPERANDS}
    ends = torch.tensor([0, last - first], dtype=torch.int32)
    return call.with_inputs(**tokens, cu_seqlens=ends)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("cu_seqlens", [0, 5, 3, 50], r"cu_seqlens is \[0, 5, 3, 50\]; allowed: rising from 0 to T, 50"),
        ("cu_seqlens", [1, 5, 50], r"allowed: rising from 0 to T, 50"),
        ("state_indices", [1, 1], r"state_indices is \[1, 1\]; allowed: -1, or distinct slots from 0 to 2"),
        ("state_indices", [0, 3], r"allowed: -1, or distinct slots from 0 to 2"),
        ("state_indices", [0, -2], r"allowed: -1, or distinct slots from 0 to 2"),
    ],
)
def test_calls_that_mean_nothing_are_refused(name: str, values: list[int], message: str) -> None:
    """Offsets that do not run from 0 to T, and slots outside of the pool or named twice."""
    call = CALLS["shared-K32-V32-softplus"].with_inputs(**{name: torch.tensor(values, dtype=torch.int32)})
    with pytest.raises(ParameterError, match=message):
        oracle.sequences(call)
