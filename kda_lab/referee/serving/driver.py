"""Walk a plan's matrix: measure each cell that is not finished, keep it, say what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kda_lab.referee.claim import CacheState
from kda_lab.referee.serving.cell_records import REQUESTS, CellRecord, PlanFolder
from kda_lab.referee.serving.claims import write_claim_file
from kda_lab.referee.serving.load import Measured, run_cell
from kda_lab.referee.serving.plan import Plan
from kda_lab.referee.serving.prompts import make_prompts
from kda_lab.referee.serving.schedule import Cell, schedule
from kda_lab.referee.serving.summary import failure_of, metrics_of, notes_of

NO_DIGEST = "0" * 64
Watch = Callable[[Cell, CellRecord, bool], None]
"""Called with a cell, its record, and whether it was measured now, not found finished."""


def run_plan(plan: Plan, path: Path, watch: Watch, retry_failed: bool = False) -> list[CellRecord]:
    """Measure what is missing in a folder, and write its claims.

    Args:
        plan: the matrix.
        path: the plan's folder; finished cells in it stay.
        watch: told of each cell.
        retry_failed: measure failed cells again; their first records stay in the file.
    Returns:
        the last record of each cell, in schedule order.
    Raises:
        RefereeError: the folder is another plan's, is written by another driver, or is damaged.
    """
    # A prompt file with a bad line is refused before anything is written.
    make_prompts(plan, "")
    folder = PlanFolder(path, plan)
    try:
        for cell in schedule(plan):
            found = folder.latest().get(cell.key)
            stays = found is not None and not (retry_failed and found.status == "failed")
            if found is not None and stays:
                watch(cell, found, False)
                continue
            measured = asyncio.run(run_cell(plan, cell))
            watch(cell, folder.add(_record(plan, cell, measured, folder), measured.outcomes), True)
        write_claim_file(path, plan)
        latest = folder.latest()
        return [latest[cell.key] for cell in schedule(plan)]
    finally:
        folder.close()


def _record(plan: Plan, cell: Cell, measured: Measured, folder: PlanFolder) -> CellRecord:
    failure = failure_of(measured)
    attempt = folder.attempts(cell) + 1
    good = [outcome for outcome in measured.outcomes if outcome.ok]
    return CellRecord(
        key=cell.key,
        order=cell.order,
        arm=cell.arm,
        role=cell.role,
        concurrency=cell.concurrency,
        round=cell.round,
        attempt=attempt,
        sitting=folder.sitting,
        status="failed" if failure else "ok",
        failure=failure,
        notes=notes_of(measured, plan.prompts.output_tokens),
        started_s=measured.started_s,
        metrics=metrics_of(measured),
        resolved=measured.resolved,
        cache_state=_cache_state(plan, cell),
        input_tokens=_only([o.input_tokens for o in good]),
        output_tokens=_only([o.output_tokens for o in good]),
        requests_file=f"{REQUESTS}/{cell.key}.{attempt}.jsonl",
        requests_sha256=NO_DIGEST,
    )


def _cache_state(plan: Plan, cell: Cell) -> CacheState:
    """Prefix caches were emptied, or code was at least built by the warm-up, or nobody knows."""
    if plan.arm(cell.arm).flush_path:
        return "flushed"
    return "warm" if plan.warmup_requests else ""


def _only(values: list[int | None]) -> int | None:
    return values[0] if len(set(values)) == 1 else None
