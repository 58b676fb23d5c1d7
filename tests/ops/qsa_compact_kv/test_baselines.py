"""Compaction baselines: the oracle's bits at every edge."""

from __future__ import annotations

import pytest

from kda_lab.ops.registry import load_op
from kda_lab.verify.guarded import same_bits

OP = load_op("qsa.compact_kv")
EDGES = OP.cases.edge_calls(1)


def test_the_first_arm_is_the_speed_baseline() -> None:
    """Order and names of the arms, which reports and notebooks rely on; the second asks the host."""
    assert [arm.name for arm in OP.baselines.ARMS] == ["torch_ranked_gather", "torch_selected_gather"]
    assert [arm.reads_live_lengths for arm in OP.baselines.ARMS] == [True, False]


@pytest.mark.parametrize("arm", OP.baselines.ARMS, ids=lambda arm: arm.name)
@pytest.mark.parametrize("edge", sorted(EDGES))
def test_every_arm_has_the_bits_of_the_oracle(arm, edge: str) -> None:
    """Holes, late columns, empty rows, both widths of the model, spare rows; NaN where nothing is named."""
    call = OP.cases.with_guard_rows(EDGES[edge], 64)
    for tensor in call.outputs.values():
        tensor.fill_(-7)
    arm.bind([call])[0]()
    right = OP.oracle.oracle_fp32(call)
    assert all(same_bits(call.outputs[name], right[name]) for name in right)
