"""Paged decode in torch: the oracle's answer, zero rows exactly, NaN in unnamed slots, no look at device memory."""

from __future__ import annotations

import torch

from kda_lab.dispatch.qsa_attention import paged_decode
from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_paged_decode import oracle
from kda_lab.verify.metrics import rel_l2


def small() -> Call:
    """Three rows of 12 heads over one KV head: holes, ids behind the length, one row without a valid token."""
    draw = torch.Generator().manual_seed(5)
    q, pools = torch.randn(3, 12, 256, generator=draw), torch.randn(2, 40, 1, 256, generator=draw)
    tokens = torch.tensor([[3, -1, 0, 9, 1], [5, 2, -1, -1, 7], [-1, 8, -1, -1, -1]], dtype=torch.int32)
    table = torch.stack([torch.arange(10), 20 + torch.arange(10)]).to(torch.int32)
    index = {"tokens": tokens, "lengths": torch.tensor([5, 6, 4]), "requests": torch.tensor([1, 1, 0])}
    k, v = pools.bfloat16()
    # Slot 0 is what a hole stands in for.
    k[0] = v[0] = float("nan")
    inputs = {"q": q.bfloat16(), "k_pool": k, "v_pool": v, **{n: t.to(torch.int32) for n, t in index.items()}}
    outputs = {"out": torch.full((3, 12, 256), float("nan"), dtype=torch.bfloat16)}
    return Call("qsa.paged_decode", {**inputs, "req_to_slot": table}, {"softmax_scale": None}, outputs)


def test_it_agrees_with_the_oracle_and_zero_rows_are_zero() -> None:
    """Within BF16 noise of FP64; a row without a valid token is zero in every bit."""
    call = small()
    out = paged_decode(*call.inputs.values(), softmax_scale=None, out=call.outputs["out"])
    assert out is call.outputs["out"]
    assert rel_l2(out, oracle.oracle_fp64(call)["out"]) < 5e-3
    assert int(torch.count_nonzero(out[2])) == 0


def test_the_scale_is_used() -> None:
    """A given scale changes the answer as it changes the oracle's."""
    call = small()
    scaled = Call(call.op, call.inputs, {"softmax_scale": 0.2}, call.outputs)
    out = paged_decode(*call.inputs.values(), softmax_scale=0.2)
    assert rel_l2(out, oracle.oracle_fp64(scaled)["out"]) < 5e-3
    assert rel_l2(out, oracle.oracle_fp64(call)["out"]) > 5e-2


def test_nothing_is_read_on_the_host() -> None:
    """On tensors without data it runs to its end: no value decides a shape, so a graph can hold it."""
    call = small()
    assert paged_decode(*(t.to("meta") for t in call.inputs.values())).shape == (3, 12, 256)
