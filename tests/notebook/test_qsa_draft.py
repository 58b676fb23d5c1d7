"""A drafted row keeps its newest tokens by both ways, and the naive copy loses them."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.notebook.qsa_draft import DRAFT_STAGES, DraftRun, run_draft
from kda_lab.ops.protocol import Arm, Call, FunctionArm
from kda_lab.ops.qsa import pipeline
from kda_lab.ops.registry import load_op

STAGES = ("tokens", "compaction", "packed attention", "paged attention")


def right(call: Call) -> None:
    """Write the oracle's answer."""
    for name, value in load_op(call.op).oracle.oracle_fp32(call).items():
        call.outputs[name].copy_(value)


def drafted(arms: dict[str, Arm], length: int = 39) -> DraftRun:
    """A batch of two requests, of which the last one is drafted."""
    paging = pipeline.page_requests((60, length), 4)
    draw = torch.Generator().manual_seed(6)
    q, k, v = (torch.randn(n, h, 256, generator=draw).to(torch.bfloat16) for n, h in ((2, 12), (60, 1), (60, 1)))
    pools = pipeline.scatter_rows(k, paging), pipeline.scatter_rows(v, paging)
    return run_draft(q, (k, v), pools, paging, arms)


@pytest.fixture
def arms() -> dict[str, Arm]:
    """Every stage by its oracle."""
    return {stage: FunctionArm("right", right) for stage in STAGES}


def test_a_right_compaction_keeps_every_token(arms: dict[str, Arm]) -> None:
    """Frozen at 36 tokens, three newer ones in the last columns; all checks pass under the draft's names."""
    found = drafted(arms)
    assert found.row.prefix == 36
    assert found.row.newer == [36, 37, 38]
    assert len(found.row.tokens) == 2055
    assert [c.stage for c in found.checks] == list(DRAFT_STAGES)
    assert all(c.passed for c in found.checks)
    assert found.naive_error > 0.05


def test_a_compaction_by_column_fails_end_to_end(arms: dict[str, Arm]) -> None:
    """`column < count` in the place of the compaction: the stage itself fails, and so does the output behind it."""

    def naive(call: Call) -> None:
        right(call)
        count = int(call.outputs["cu_seqlens_k"][1])
        for name in ("packed_k", "packed_v"):
            call.outputs[name][36:count] = 0

    found = drafted({**arms, "compaction": FunctionArm("naive", naive)})
    failed = [c.stage for c in found.checks if not c.passed]
    assert failed == ["draft row: compaction", "draft row: packed attention"]
    assert "error is" in found.checks[2].detail


def test_a_request_without_a_history_is_refused(arms: dict[str, Arm]) -> None:
    """Three newer tokens need a fourth before them."""
    with pytest.raises(ParameterError, match="length of the last row is 3; allowed: above 3 tokens"):
        drafted(arms, 3)
