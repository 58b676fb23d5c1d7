"""Expansion baselines: the oracle's bits at every edge."""

from __future__ import annotations

import pytest
import torch

from kda_lab.ops.registry import load_op

OP = load_op("qsa.expand_blocks")


def test_the_first_arm_is_the_speed_baseline() -> None:
    """Order and names of the arms, which reports and notebooks rely on."""
    assert [arm.name for arm in OP.baselines.ARMS] == ["torch_stable_partition", "torch_prefix_sums"]


@pytest.mark.parametrize("arm", OP.baselines.ARMS, ids=lambda arm: arm.name)
@pytest.mark.parametrize("edge", sorted(OP.cases.edge_calls(1)))
def test_every_arm_has_the_bits_of_the_oracle(arm, edge: str) -> None:
    """Holes, tails, partial blocks, wild ids, many rows."""
    call = OP.cases.edge_calls(1)[edge]
    call.outputs["tokens"].fill_(-7)
    arm.bind([call])[0]()
    assert torch.equal(call.outputs["tokens"], OP.oracle.oracle_fp32(call)["tokens"])
