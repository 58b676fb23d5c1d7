"""A draft row of the QSA pipeline: a frozen selection, newer tokens in the last columns, holes between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.notebook.qsa_stages import check_stage, run_stage
from kda_lab.ops.protocol import Arm, Call
from kda_lab.ops.qsa import pipeline
from kda_lab.ops.qsa.geometry import DRAFT_STEPS, RATIO, TOPK_BLOCKS
from kda_lab.ops.qsa.pipeline import Paging
from kda_lab.ops.qsa_expand_blocks.draft import draft_columns
from kda_lab.ops.registry import load_op
from kda_lab.report.qsa_draft_figure import DraftRow
from kda_lab.report.qsa_stage_figure import StageCheck
from kda_lab.verify import metrics

NEWER = 3
"""Draft steps taken since the selection was frozen: newer tokens in the row."""
LONGEST = 1200
"""Most tokens of a drafted row: short of the budget, so that its frozen part ends in holes."""
DRAFT_STAGES = (
    "draft row: tokens",
    "draft row: compaction",
    "draft row: packed attention",
    "draft row: paged attention",
)
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class DraftRun:
    """What became of the drafted row."""

    row: DraftRow
    checks: tuple[StageCheck, ...]
    naive_error: float
    """rel-L2 of attention over what `column < count` copies, from the right output."""


def run_draft(q: torch.Tensor, kv: Pair, pools: Pair, paging: Paging, arms: Mapping[str, Arm]) -> DraftRun:
    """Freeze the selection of the last request three tokens ago, append the newer ones, and attend by both ways.

    Args:
        q: [B, HQ, D] bf16; the last row's query is used.
        kv: K and V of the text, [T, HKV, D] bf16.
        pools: K and V pools.
        paging: of the batch.
        arms: stage to the arm that runs it, of the batch.

    Raises:
        ParameterError: the last request is too short to have been drafted.
    """
    length, request = min(paging.lengths[-1], LONGEST), len(paging.lengths) - 1
    captured = length - NEWER
    if captured < 1:
        raise ParameterError("notebook", [Reason("length of the last row", repr(length), f"above {NEWER} tokens")])
    one = Paging((length,), paging.pages[request:], paging.req_to_slot[request:], paging.slots)
    frozen = pipeline.expand_call(_all_blocks(captured, q.device), Paging((captured,), *_tables(one)))
    run_stage(arms["tokens"], frozen)
    since, until = (torch.tensor([n], dtype=torch.int32, device=q.device) for n in (captured, length - 1))
    tokens = draft_columns(frozen.outputs["tokens"], since, until)
    compacted = pipeline.compact_call(tokens, one, *pools)
    run_stage(arms["compaction"], compacted)
    query = q[request:]
    packed, paged = pipeline.packed_call(query, compacted), pipeline.paged_call(query, tokens, one, *pools)
    run_stage(arms["packed attention"], packed)
    run_stage(arms["paged attention"], paged)
    checks = [check_stage(arms[c.label], c) for c in (frozen, compacted, packed, paged)]
    exact = pipeline.dense_attention(query, *kv, [length])
    return DraftRun(
        DraftRow(tuple(tokens[0].tolist()), DRAFT_STEPS),
        tuple(
            _of_draft(check, call, exact)
            for check, call in zip(checks, (frozen, compacted, packed, paged), strict=True)
        ),
        metrics.rel_l2(_naive(packed, tokens, one, pools), exact),
    )


def _tables(paging: Paging) -> tuple[torch.Tensor, torch.Tensor, int]:
    return paging.pages, paging.req_to_slot, paging.slots


def _all_blocks(length: int, device: torch.device) -> torch.Tensor:
    """What a top-k of a row within the budget gives: all of its complete blocks."""
    blocks = torch.full((1, TOPK_BLOCKS), -1, dtype=torch.int32, device=device)
    blocks[0, : length // RATIO] = torch.arange(length // RATIO, dtype=torch.int32, device=device)
    return blocks


def _of_draft(check: StageCheck, call: Call, exact: torch.Tensor) -> StageCheck:
    """The check under the draft's name; an attention's error is the one end to end, over every token of the request."""
    error, detail = check.error, check.detail
    if "out" in call.outputs:
        error = max(error, metrics.rel_l2(call.outputs["out"], exact))
        detail = detail or ("" if error <= check.limit else f"error is {error:.3g}; allowed: at most {check.limit:.3g}")
    return StageCheck(f"draft row: {check.stage}", check.arm, error, check.limit, check.metric, detail)


def _naive(packed: Call, tokens: torch.Tensor, paging: Paging, pools: Pair) -> torch.Tensor:
    """Attention in FP64 over the columns below the count; a hole among them reads what the last call left: the first rows."""
    count = packed.facts["lengths"][0]
    columns = tokens[0, :count].long()
    slots = paging.req_to_slot[0][columns.clamp(min=0)].long()
    rows = {}
    for name, pool in zip("kv", pools, strict=True):
        rows[name] = torch.where((columns >= 0)[:, None, None], pool[slots], packed.inputs[name][:count].flip(0))
    return load_op(packed.op).oracle.oracle_fp64(packed.with_inputs(**rows))["out"]
