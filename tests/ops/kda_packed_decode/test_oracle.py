"""The oracles against other forms of the step, and what they must leave alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.kda.recurrence import recurrent
from kda_lab.ops.kda_packed_decode import cases, oracle
from kda_lab.ops.protocol import Call

CALLS = {call.label: call for call in (cases.synthesise(row, 0) for row in cases.capture_rows())}
EDGES = cases.edge_calls(3)
SHARED = CALLS["shared-K32-V16-safe"]


@pytest.mark.parametrize("call", CALLS.values(), ids=lambda call: call.label)
def test_the_papers_orientation_is_the_same(call: Call) -> None:
    """One head at a time as S [K, V] <- (I - beta k kT) Diag(exp g) S + beta k vT, o = ST q, with sums written out."""
    exact, i = oracle.oracle_fp64(call), call.inputs
    _, HV, V, K = i["state"].shape
    H = call.facts["H"]
    for b, slot in enumerate(i["state_indices"].tolist()):
        for h in range(HV if slot >= 0 else 0):
            row, head = i["mixed_qkv"][b].double(), h // (HV // H)
            q, k = row[head * K : (head + 1) * K], row[(H + head) * K : (H + head + 1) * K]
            v = row[2 * H * K + h * V : 2 * H * K + (h + 1) * V]
            q, k = q / (q @ q + 1e-6).sqrt() / K**0.5, k / (k @ k + 1e-6).sqrt()
            x = i["a"][b, h * K : (h + 1) * K].double() + i["dt_bias"][h * K : (h + 1) * K].double()
            rate = i["a_log"][h].double().exp()
            safe = call.scalars["lower_bound"] is not None
            g = -5 * torch.sigmoid(rate * x) if safe else -rate * torch.nn.functional.softplus(x)
            beta = torch.sigmoid(i["b"][b, h].double())
            state = i["state"][slot, h].double().T
            state = (torch.eye(K) - beta * torch.outer(k, k)) @ (g.exp()[:, None] * state) + beta * torch.outer(k, v)
            assert torch.allclose(exact["state"][slot, h], state.T, atol=1e-13, rtol=0)
            assert torch.allclose(exact["out"][b, 0, h], state.T @ q, atol=1e-13, rtol=0)


def test_a_gate_of_one_value_a_head_is_the_gated_delta_rule() -> None:
    """With equal channels the decay is one factor a head, and the step that of the scalar-gated recurrence."""
    K = SHARED.facts["K"]
    gate = SHARED.inputs["a"].unflatten(1, (-1, K))[..., :1].expand(-1, -1, K).flatten(1)
    call = SHARED.with_inputs(a=gate, dt_bias=torch.zeros_like(SHARED.inputs["dt_bias"]))
    exact, x = oracle.oracle_fp64(call), oracle.operands(call, torch.float64)
    for at in range(len(x.rows)):
        for h in range(x.v.shape[1]):
            state = x.state[at, h] * x.g[at, h, 0].exp()
            state = state + torch.outer(x.beta[at, h] * (x.v[at, h] - state @ x.k[at, h]), x.k[at, h])
            assert torch.allclose(exact["state"][x.slots[at], h], state, atol=1e-13, rtol=0)
            assert torch.allclose(exact["out"][x.rows[at], 0, h], state @ x.q[at, h], atol=1e-13, rtol=0)


def test_steps_of_one_token_are_the_recurrence() -> None:
    """Four calls, each on the state that the one before left, give what the recurrence gives for four tokens."""
    tokens = [
        SHARED.with_inputs(**{n: t for n, t in cases.changed(SHARED, "operands", s).items() if n != "state"})
        for s in range(4)
    ]
    first = oracle.operands(tokens[0], torch.float64)
    states, outputs = SHARED.inputs["state"].double(), []
    for call in tokens:
        found = oracle.oracle_fp64(call.with_inputs(state=states))
        states = found["state"]
        outputs.append(found["out"][first.rows, 0])
    steps = [oracle.operands(call, torch.float64) for call in tokens]
    stacked = (torch.stack([getattr(x, name) for x in steps]) for name in ("q", "k", "v", "g", "beta"))
    out, end = recurrent(first.state, *stacked)
    assert torch.allclose(torch.stack(outputs), out, atol=1e-13, rtol=0)
    assert torch.allclose(states[first.slots], end, atol=1e-13, rtol=0)


def test_edges_are_what_the_definition_says() -> None:
    """No token: nothing. No memory: only the update is left. A full write: reading the unit key gives the value."""
    assert torch.equal(oracle.oracle_fp32(EDGES["all_padding"])["state"], EDGES["all_padding"].inputs["state"])
    zero = oracle.oracle_fp64(EDGES["zero_rows"])
    assert torch.count_nonzero(zero["out"]) == 0
    x = oracle.operands(EDGES["no_memory"], torch.float64)
    update = (x.beta[..., None] * x.v)[..., None] * x.k[..., None, :]
    assert torch.equal(oracle.oracle_fp64(EDGES["no_memory"])["state"][x.slots], update)
    y = oracle.operands(EDGES["full_write"], torch.float64)
    read = (oracle.oracle_fp64(EDGES["full_write"])["state"][y.slots] * y.k[..., None, :]).sum(-1)
    held, size = (y.state * y.k[..., None, :]).sum(-1), y.k.square().sum(-1)[..., None]
    # Tiny keys are shorter than 1, so that some of what was held stays.
    assert torch.allclose(read, size * y.v + (1 - size) * held, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([0, 1, 1, 2, 3], r"state_indices is \[0, 1, 1, 2, 3\]; allowed: -1, or distinct slots from 0 to 5"),
        ([0, 1, 6, 2, 3], r"state_indices is \[0, 1, 6, 2, 3\]; allowed: -1, or distinct slots"),
    ],
)
def test_slots_must_be_distinct_and_in_the_pool(indices: list[int], words: str) -> None:
    """Two requests of one slot have no defined result; a slot outside of the pool has none at all."""
    with pytest.raises(ParameterError, match=words):
        oracle.oracle_fp32(SHARED.with_inputs(state_indices=torch.tensor(indices, dtype=torch.int32)))


def test_a_width_that_no_heads_give_is_refused() -> None:
    """mixed_qkv must be whole query and key heads beside the values."""
    narrow = SHARED.inputs["mixed_qkv"][:, :-1]
    with pytest.raises(ParameterError, match=r"mixed_qkv\.shape\[1\] is 191; allowed: 2·H·32 \+ 64"):
        oracle.query_heads(SHARED.with_inputs(mixed_qkv=narrow))


def test_a_missing_bound_is_the_softplus_gate() -> None:
    """None and an absent scalar are the same."""
    call = CALLS["ragged-K60-V20-softplus"]
    absent = replace(call, scalars={})
    assert torch.equal(oracle.oracle_fp64(call)["out"], oracle.oracle_fp64(absent)["out"])
