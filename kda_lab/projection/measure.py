"""Measure one cell: all arms on the same weights, in mirrored rounds, then their kernels, then their values."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from kda_lab.projection import arms
from kda_lab.projection.arms import CONTROL, FIVE, GEMMS, OUTPUTS, SIDE, THREE, Projected, SideRule
from kda_lab.projection.bench import Bench
from kda_lab.projection.inputs import RANDOM, extent_of
from kda_lab.projection.plan import ARMS, Cell, Plan, calls_of, order_of
from kda_lab.projection.sizes import Splits
from kda_lab.projection.traces import busy_of
from kda_lab.projection.weights import FusedWeights
from kda_lab.timing.graph import Replay
from kda_lab.verify.metrics import rel_l2, worst

ERROR_LIMIT = 5e-3
"""rel-L2 of a result against FP64: one rounding to BF16 costs 1.7e-3, the two of the decay gate 2.4e-3."""
MOST_REPLAYS = 50
Record = dict[str, Any]


@dataclass
class Launch:
    """One call of one arm on one set of weights; keeps its results, which a captured graph writes again."""

    run: Callable[[], Projected]
    results: Projected | None = None

    def __call__(self) -> None:
        self.results = self.run()


def launches(arm: str, x: torch.Tensor, sets: Sequence[FusedWeights], rule: SideRule) -> list[Launch]:
    """One launch of an arm for each set of weights; all arms of a set read the same memory."""
    made = []
    for fused in sets:
        plain = fused.five
        run: dict[str, Callable[[], Projected]] = {
            FIVE: partial(arms.five, x, plain),
            CONTROL: partial(arms.five, x, plain),
            THREE: partial(arms.three, x, fused),
            SIDE: partial(arms.three_side, x, fused, rule),
        }
        made.append(Launch(run[arm]))
    return made


def measure_cell(cell: Cell, plan: Plan, sets: Sequence[FusedWeights], size: Splits, bench: Bench) -> list[Record]:
    """Records of one cell, one an arm.

    Args:
        sets: weights to rotate over, of `size`.
    """
    calls, timer = calls_of(len(sets)), bench.timers[cell.mode]
    x = plan.x.take(cell.tokens, plan.seed, size.model.hidden, bench.device)
    bound = {arm: launches(arm, x, sets, bench.rule) for arm in ARMS}
    warm_side(bench.rule, bound[THREE])
    replays = {arm: timer.prepare(bound[arm], calls) for arm in ARMS}
    samples, orders = _sample(cell, plan, replays, bench)
    shared = {
        "kind": "projection",
        "attn_tp": cell.attn_tp,
        "tokens": cell.tokens,
        "mode": cell.mode,
        "hidden": size.model.hidden,
        "x": {**plan.x.record(), **asdict(extent_of(x))},
        "weights": RANDOM,
        "sets": len(sets),
        "calls_per_replay": calls,
        "weight_bytes": size.weight_bytes,
        "l2_bytes": bench.l2_bytes,
        "copy_gb_s": bench.copy_gb_s,
        "floor_us": size.least_bytes(cell.tokens) / bench.copy_gb_s / 1e3,
    }
    records = []
    for arm in ARMS:
        on_side = arm == SIDE and cell.mode == "graph" and cell.tokens <= bench.rule.limit
        us = [sample / calls for sample in samples[arm]]
        own = {"arm": arm, "gemms": GEMMS[arm], "branch": "side" if on_side else "serial", "orders": orders[arm]}
        records.append({**shared, **own, "rounds_us": us, "median_us": statistics.median(us)})
        if cell.mode == "graph":
            records[-1] |= _kernels(replays[arm], calls, bench)
    fresh = plan.x.take(cell.tokens, plan.seed + 1, size.model.hidden, bench.device)
    for record, found in zip(records, check(x, fresh, sets, bound, replays, bench.synchronise), strict=True):
        record |= found
    return records


def warm_side(rule: SideRule, serial: Sequence[Launch]) -> None:
    """Run the fused arm once on the side stream: cuBLAS makes a workspace a stream, which no capture should do."""
    if rule.side is not None:
        rule.side.fork()
        with rule.side.on_side():
            serial[0]()
        rule.side.join()


def check(
    x: torch.Tensor,
    fresh: torch.Tensor,
    sets: Sequence[FusedWeights],
    bound: dict[str, list[Launch]],
    replays: dict[str, Replay],
    synchronise: Callable[[], None],
) -> list[Record]:
    """Replay every arm on new tokens in the same memory, and compare with FP64 and with the unfused arm, bit by bit.

    Returns:
        One an arm, in the order of `bound`: `check` (passed, error, limit) and `bits` (result to whether it is the
        unfused arm's; the control says whether that one repeats itself at all).
    """
    x.copy_(fresh)
    for replay in replays.values():
        replay()
    synchronise()
    chosen = sorted({0, len(sets) - 1})
    right = {i: arms.exact(x, sets[i].five) for i in chosen}
    found = []
    for arm in bound:
        errors = [error_of(bound[arm][i].results, right[i]) for i in chosen]
        bits = {
            name: all(_same(bound[arm][i].results, bound[FIVE][i].results, name) for i in chosen) for name in OUTPUTS
        }
        error = worst(errors)
        passed = error <= ERROR_LIMIT
        found.append({"check": {"passed": passed, "error": error, "limit": ERROR_LIMIT}, "bits": bits})
    return found


def _sample(
    cell: Cell, plan: Plan, replays: dict[str, Replay], bench: Bench
) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    """Microseconds of a replay, one sample an arm and round, and the place of each sample in its round."""
    timer = bench.timers[cell.mode]
    first = max(timer.sample_us(replay, 1, 1, lambda: None)[0] for replay in replays.values())
    count = max(1, min(MOST_REPLAYS, round(plan.window_ms * 1e3 / first)))
    samples: dict[str, list[float]] = {arm: [] for arm in ARMS}
    orders: dict[str, list[int]] = {arm: [] for arm in ARMS}
    for number in range(plan.rounds):
        for place, arm in enumerate(order_of(number)):
            samples[arm].append(statistics.median(timer.sample_us(replays[arm], count, 1, lambda: None)))
            orders[arm].append(place)
    return samples, orders


def _kernels(replay: Replay, calls: int, bench: Bench) -> Record:
    profile = bench.profile(replay)
    if not profile.kernels:
        return {"busy": None, "busy_reason": profile.reason}
    busy = busy_of(profile.kernels, calls)
    return {"busy": {**asdict(busy), "overlap_us": busy.overlap_us}, "busy_reason": ""}


def error_of(given: Projected | None, right: Projected) -> float:
    """Worst rel-L2 over the results, NaN where one is; infinite where nothing was computed."""
    if given is None:
        return float("inf")
    return worst([rel_l2(getattr(given, name), getattr(right, name)) for name in OUTPUTS])


def _same(given: Projected | None, baseline: Projected | None, name: str) -> bool:
    if given is None or baseline is None:
        return False
    return torch.equal(getattr(given, name), getattr(baseline, name))
