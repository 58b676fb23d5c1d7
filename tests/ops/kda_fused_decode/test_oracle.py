"""The fused oracle is its three parts, and leaves alone what it must."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kda_lab.ops.kda_fused_decode import cases, oracle
from kda_lab.ops.kda_packed_decode import oracle as packed
from kda_lab.ops.protocol import Call

CALLS = {call.label: call for call in (cases.synthesise(row, 0) for row in cases.capture_rows())}
EDGES = cases.edge_calls(3)
PADDED = CALLS["padded-V32-safe"]


@pytest.mark.parametrize("call", CALLS.values(), ids=lambda call: call.label)
def test_it_is_convolution_step_and_norm(call: Call) -> None:
    """Written out: four taps and SiLU rounded to BF16, the packed oracle, root mean square, weight, sigmoid gate."""
    i, found = call.inputs, oracle.oracle_fp64(call)
    live = (i["state_indices"] >= 0).nonzero()[:, 0]
    slots = i["state_indices"][live].long()
    taps = [*i["conv_state"][slots].double().unbind(1), i["mixed_qkv"][live].double()]
    total = sum(w * x for w, x in zip(i["conv_weight"].double(), taps, strict=True))
    mixed = torch.zeros_like(i["mixed_qkv"])
    mixed[live] = (total / (1 + torch.exp(-total))).to(torch.bfloat16)
    names = ("a", "b", "a_log", "dt_bias", "state", "state_indices")
    inner = Call(packed.ROOM, {"mixed_qkv": mixed, **{n: i[n] for n in names}}, call.scalars, {})
    step = packed.oracle_fp64(inner)
    o = step["out"][:, 0]
    root = torch.sqrt((o * o).mean(-1, keepdim=True) + call.scalars["epsilon"])
    gate = i["gate"].double().unflatten(1, o.shape[1:])
    out = (o / root * i["norm_weight"].double() / (1 + torch.exp(-gate))).flatten(1)
    assert torch.equal(found["state"], step["state"])
    assert torch.allclose(found["out"], out, atol=1e-12, rtol=0)
    assert torch.equal(found["conv_state"][slots], torch.stack([t.to(torch.bfloat16) for t in taps[1:]], 1))


def test_windows_are_copies() -> None:
    """No element of a window may differ."""
    assert torch.count_nonzero(oracle.allowance(PADDED, oracle.oracle_fp64(PADDED))["conv_state"]) == 0


def test_only_heads_near_a_tie_are_given_more() -> None:
    """A value halfway between two BF16 numbers widens its own head's allowance and no other's."""
    i = {n: t.clone() for n, t in PADDED.inputs.items()}
    # SiLU is its argument to FP64 at 64, and 64.25 lies halfway between 64 and 64.5.
    i["conv_weight"].zero_()
    i["conv_weight"][3] = 1.0
    i["mixed_qkv"].fill_(64.0)
    call = replace(PADDED, inputs=i)
    sure = oracle.allowance(call, oracle.oracle_fp64(call))["state"]
    i["conv_weight"][3, 5] = 64.25 / 64
    doubt = oracle.allowance(call, oracle.oracle_fp64(call))["state"]
    live = call.inputs["state_indices"] >= 0
    slots = call.inputs["state_indices"][live].long()
    assert (doubt[slots, 0] > 10 * sure[slots, 0]).all()
    assert torch.allclose(doubt[slots, 1:], sure[slots, 1:])


def test_zero_tokens_give_zero_rows() -> None:
    """Epsilon keeps the norm of a zero row finite."""
    assert torch.count_nonzero(oracle.oracle_fp64(EDGES["zero_rows"])["out"]) == 0


def test_a_missing_epsilon_is_1e_5() -> None:
    """The default of the op."""
    absent = replace(PADDED, scalars={"lower_bound": -5.0})
    assert oracle.epsilon_of(absent) == 1e-5
    assert oracle.epsilon_of(replace(PADDED, scalars={"epsilon": 0.5})) == 0.5
