"""The per-head kernel: FP32 arithmetic, so it is right to the rounding of its output."""

from __future__ import annotations

import pytest
import torch

from kda_lab import interpreter
from kda_lab.ops.registry import load_op
from kda_lab.verify.metrics import rel_l2

OP = load_op("qsa.packed_decode")
EDGES = OP.cases.edge_calls(3)


@pytest.mark.parametrize("name", ["zero_rows", "length_one", "zero_keys", "dominant_key", "draft_width"])
def test_edges_are_the_oracle_rounded_once(name: str) -> None:
    """At the edges of the definition the output is the FP32 oracle, rounded to BF16."""
    interpreter.ensure_faithful()
    from kda_lab.ops.qsa_packed_decode import per_head

    call = EDGES[name]
    i, out = call.inputs, torch.full_like(call.outputs["out"], float("nan"))
    per_head.packed_decode(i["q"], i["k"], i["v"], i["cu_seqlens_k"], 1 / 16, out)
    assert rel_l2(out, OP.oracle.oracle_fp32(call)["out"].to(torch.bfloat16)) < 1e-3


def test_any_width_and_group() -> None:
    """A width that is no power of two and five query heads a KV head, as its description asks."""
    interpreter.ensure_faithful()
    from kda_lab.ops.qsa_packed_decode import per_head

    generator = torch.Generator().manual_seed(5)
    q = torch.randn(2, 10, 80, generator=generator).to(torch.bfloat16)
    k, v = (torch.randn(70, 2, 80, generator=generator).to(torch.bfloat16) for _ in range(2))
    ends = torch.tensor([0, 3, 70], dtype=torch.int32)
    out = torch.full_like(q, float("nan"))
    per_head.packed_decode(q, k, v, ends, 0.1, out)
    keys, values = k.float().repeat_interleave(5, 1), v.float().repeat_interleave(5, 1)
    for row, (start, end) in enumerate(((0, 3), (3, 70))):
        weights = torch.softmax(0.1 * torch.einsum("hd,khd->hk", q[row].float(), keys[start:end]), dim=-1)
        wanted = torch.einsum("hk,khd->hd", weights, values[start:end])
        assert rel_l2(out[row], wanted.to(torch.bfloat16)) < 1e-3
