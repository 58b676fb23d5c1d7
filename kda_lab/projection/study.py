"""Run a study cell by cell within its time, and keep what was measured after every cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kda_lab.ops.protocol import Launcher
from kda_lab.projection import traces
from kda_lab.projection.arms import FIVE, SIDE, THREE
from kda_lab.projection.bench import Bench
from kda_lab.projection.measure import launches, measure_cell, warm_side
from kda_lab.projection.plan import Cell, Plan, calls_of, set_count
from kda_lab.projection.sizes import Model, splits
from kda_lab.projection.weights import FusedWeights, draw
from kda_lab.run_folder import write_json_lines

FILE = "projection.jsonl"
TRACED = (FIVE, THREE, SIDE)
TRACE_REPLAYS = 5
Record = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """Records of a study in order; `skipped` ones say which cells the time did not reach."""

    records: tuple[Record, ...]
    seconds: float

    @property
    def measured(self) -> tuple[Record, ...]:
        """Records of cells that were measured."""
        return tuple(r for r in self.records if r["kind"] == "projection")

    @property
    def skipped(self) -> tuple[Record, ...]:
        """One an unreached cell."""
        return tuple(r for r in self.records if r["kind"] == "skipped")


def run_study(plan: Plan, bench: Bench, folder: Path) -> Study:
    """Measure every cell of a plan that its seconds allow; projection.jsonl is whole after each of them.

    Args:
        folder: of the run.
    """
    began, longest = bench.clock(), 0.0
    records: list[Record] = []
    for attn_tp in plan.attn_tp:
        sets: list[FusedWeights] = []
        for cell in plan.cells(attn_tp):
            before = bench.clock()
            left = plan.seconds - (before - began) - longest
            if left <= 0:
                records.append(_skipped(cell, plan.seconds))
            else:
                with bench.current():
                    sets = sets or draw_sets(attn_tp, plan, bench)
                    records += measure_cell(cell, plan, sets, splits(attn_tp, plan.model), bench)
                longest = max(longest, bench.clock() - before)
            _attribute(records, bench)
            write_json_lines(folder / FILE, records)
        sets.clear()
        bench.release()
    return Study(tuple(records), bench.clock() - began)


def draw_sets(attn_tp: int, plan: Plan, bench: Bench) -> list[FusedWeights]:
    """Weight sets of one rank, so many that the L2 cannot hold them."""
    size = splits(attn_tp, plan.model)
    count = set_count(size.weight_bytes, bench.rotated_bytes)
    return [draw(size, plan.seed * 100 + number, bench.device) for number in range(count)]


def write_traces(at: tuple[int, int], plan: Plan, bench: Bench, folder: Path) -> dict[str, Path]:
    """Traces of the three arms in a graph, a marker before every call; arm to its file.

    Args:
        at: attention-parallel size and tokens.

    Returns:
        Empty where the profiler recorded no kernel.
    """
    from kda_lab.projection.marker import mark  # lazy: triton

    attn_tp, tokens = at
    size = splits(attn_tp, plan.model)
    files: dict[str, Path] = {}
    with bench.current():
        sets = draw_sets(attn_tp, plan, bench)
        x = plan.x.take(tokens, plan.seed, size.model.hidden, bench.device)
        flag = torch.zeros(1, dtype=torch.int32, device=bench.device)
        warm_side(bench.rule, launches(THREE, x, sets[:1], bench.rule))
        for arm in TRACED:
            marked = [_marked(lambda: mark(flag), launch) for launch in launches(arm, x, sets, bench.rule)]
            replay = bench.timers["graph"].prepare(marked, calls_of(len(sets)))
            path = folder / f"{arm}.pt.trace.json.gz"
            found = traces.profile(replay, bench.device, path, TRACE_REPLAYS)
            if found.kernels:
                files[arm] = path
    bench.release()
    return files


def least_gigabytes(attn_tp: Sequence[int], rotated_bytes: int, model: Model) -> float:
    """Device memory that the weights of the largest size take, in GB."""
    sizes = [splits(size, model).weight_bytes for size in attn_tp]
    return max(weight * set_count(weight, rotated_bytes) for weight in sizes) / 1e9


def _marked(mark: Launcher, launch: Launcher) -> Launcher:
    def run() -> None:
        mark()
        launch()

    return run


def _skipped(cell: Cell, seconds: float) -> Record:
    reason = f"not reached within {seconds:g} s"
    return {"kind": "skipped", "attn_tp": cell.attn_tp, "tokens": cell.tokens, "mode": cell.mode, "reason": reason}


def _attribute(records: list[Record], bench: Bench) -> None:
    """The first record carries the provenance of all."""
    if records and "provenance" not in records[0]:
        records[0]["provenance"] = bench.provenance
