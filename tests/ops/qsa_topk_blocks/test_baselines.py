"""Top-k baselines: right at the edges, or right by set and threshold where torch decides on ties."""

from __future__ import annotations

import pytest
import torch

from kda_lab.ops.qsa_topk_blocks.selection import selection_faults
from kda_lab.ops.registry import load_op

OP = load_op("qsa.topk_blocks")
ARMS = {arm.name: arm for arm in OP.baselines.ARMS}


def test_the_first_arm_is_the_speed_baseline() -> None:
    """Order and names of the arms, which reports and notebooks rely on."""
    assert list(ARMS) == ["torch_stable_sort", "torch_topk", "torch_topk_keyed"]


@pytest.mark.parametrize("arm", ["torch_stable_sort", "torch_topk_keyed"])
@pytest.mark.parametrize("edge", sorted(OP.cases.edge_calls(1)))
def test_canonical_arms_have_the_bits_of_the_oracle(arm: str, edge: str) -> None:
    """Ties, NaN, infinities, empty and short rows, behind guard columns."""
    call = OP.cases.with_guard_rows(OP.cases.edge_calls(1)[edge], 3)
    call.outputs["blocks"].fill_(-7)
    ARMS[arm].bind([call])[0]()
    assert torch.equal(call.outputs["blocks"], OP.oracle.oracle_fp64(call)["blocks"])


@pytest.mark.parametrize("edge", ["scores", "signed", "flat", "equal", "two", "bucket", "zeros"])
def test_torch_topk_gives_a_valid_selection(edge: str) -> None:
    """Its ties are its own, but no better score is left out and no id behind a length is named."""
    call = OP.cases.edge_calls(1)[edge]
    ARMS["torch_topk"].bind([call])[0]()
    assert selection_faults(call.outputs["blocks"], call.inputs["scores"], call.inputs["lengths"]) == []
