"""One cell: what is sampled in which order, what a record holds, and how wrong values show."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from kda_lab.projection import arms, measure
from kda_lab.projection.arms import CONTROL, FIVE, SIDE, THREE
from kda_lab.projection.inputs import DRAWN, RealRows
from kda_lab.projection.plan import ARMS, Cell, Plan, order_of
from kda_lab.projection.sizes import SMALL, splits
from kda_lab.projection.weights import draw

PLAN = Plan(tokens=(4,), attn_tp=(8,), rounds=4, model=SMALL)
SIZE = splits(8, SMALL)
SETS = [draw(SIZE, seed) for seed in range(3)]


@pytest.fixture
def records(fakes: ModuleType) -> dict[str, measure.Record]:
    """Records of one graph cell on the made-up machine, by arm."""
    return {r["arm"]: r for r in measure.measure_cell(Cell(8, 4, "graph"), PLAN, SETS, SIZE, fakes.bench())}


def test_a_record_an_arm(records: dict[str, measure.Record]) -> None:
    """Times of one call, a sample a round, with what they were measured on."""
    assert tuple(records) == ARMS
    assert [round(records[arm]["median_us"]) for arm in (FIVE, CONTROL, THREE, SIDE)] == [4, 4, 3, 2]
    record = records[THREE]
    assert (record["sets"], record["calls_per_replay"], record["gemms"], len(record["rounds_us"])) == (3, 12, 3, 4)
    assert record["floor_us"] == pytest.approx(SIZE.least_bytes(4) / 1e3)
    assert [r["branch"] for r in records.values()] == ["serial", "serial", "side", "serial"]


def test_a_record_says_what_x_is(fakes: ModuleType, records: dict[str, measure.Record]) -> None:
    """Drawn or real, its width and its size before the check; weights are drawn. Real rows are those that are multiplied."""
    drawn = records[FIVE]
    assert (drawn["hidden"], drawn["weights"], drawn["x"]["source"]) == (64, "random", "random")
    states = torch.randn(128, 64, generator=torch.Generator().manual_seed(5)).bfloat16()
    states[:4] *= 10
    plan = replace(PLAN, x=RealRows("smollm", "a model", 15, states, "abc"))
    found = measure.measure_cell(Cell(8, 4, "graph"), plan, SETS, SIZE, fakes.bench())
    assert all(r["check"]["passed"] for r in found)
    told = found[0]["x"]
    assert {n: told[n] for n in ("source", "model", "layer", "capture_sha256")} == {
        "source": "smollm", "model": "a model", "layer": 15, "capture_sha256": "abc"
    }  # fmt: skip
    assert told["largest"] == float(states[:4].abs().max())


def test_rounds_are_sampled_in_mirrored_order(fakes: ModuleType) -> None:
    """The log of the timer is the order of the plan, and the records keep each sample's place."""
    timer = fakes.FakeTimer()
    found = measure.measure_cell(Cell(8, 4, "eager"), PLAN, SETS, SIZE, fakes.bench(timer=timer))
    sampled = [line.split()[0] for line in timer.log if not line.startswith("prepare")][4:]
    assert sampled == [arm for number in range(4) for arm in order_of(number)]
    assert found[0]["orders"] == [order_of(number).index(FIVE) for number in range(4)]
    assert all(r["branch"] == "serial" and "busy" not in r for r in found)


def test_a_sample_fills_its_window(fakes: ModuleType) -> None:
    """48 us a replay and a window of 0.5 ms: ten replays a sample; never more than the most."""
    for window, wanted in ((0.5, 10), (1000.0, measure.MOST_REPLAYS), (0.0001, 1)):
        timer = fakes.FakeTimer()
        plan = Plan(tokens=(4,), attn_tp=(8,), rounds=2, window_ms=window, model=SMALL)
        measure.measure_cell(Cell(8, 4, "eager"), plan, SETS, SIZE, fakes.bench(timer=timer))
        assert timer.log[-1].endswith(f" {wanted}")


def test_kernels_are_summed_and_joined(records: dict[str, measure.Record]) -> None:
    """Two kernels of 3 us that overlap by 2: sum 6, union 4, overlap 2, on two streams."""
    assert records[SIDE]["busy"] == {
        "kernels": 2.0, "summed_us": 6.0, "union_us": 4.0, "streams": 2, "overlap_us": 2.0
    }  # fmt: skip


def test_a_profiler_that_saw_nothing_says_why(fakes: ModuleType) -> None:
    """No kernels, no numbers: the reason stands in their place."""
    blind = replace(fakes.bench(), profile=lambda replay: fakes.Profile((), "unavailable, because of CUPTI"))
    found = measure.measure_cell(Cell(8, 4, "graph"), PLAN, SETS, SIZE, blind)
    assert (found[0]["busy"], found[0]["busy_reason"]) == (None, "unavailable, because of CUPTI")


def test_values_are_checked_on_other_tokens(records: dict[str, measure.Record]) -> None:
    """Right within BF16 on the CPU, where equal products have equal bits; the control repeats itself."""
    assert all(r["check"]["passed"] and r["check"]["error"] < 5e-3 for r in records.values())
    assert records[CONTROL]["bits"] == dict.fromkeys(arms.OUTPUTS, True)


def test_a_cell_is_checked_on_rows_that_it_was_not_timed_on(fakes: ModuleType) -> None:
    """A replay that answers with what it computed for the timed rows fails: the next seed's rows stand in their place."""
    timer, real = fakes.FakeTimer(), fakes.FakeTimer.prepare

    def once(launchers: Any, calls: int) -> Any:
        replay, seen = real(timer, launchers, calls), []

        def stale() -> None:
            if not seen:
                seen.append(replay())

        stale.arm, stale.calls = replay.arm, calls  # type: ignore[attr-defined]
        # What a graph's own warm-up computes, before the rows change.
        stale()
        return stale

    timer.prepare = once
    found = measure.measure_cell(Cell(8, 4, "eager"), PLAN, SETS, SIZE, fakes.bench(timer=timer))
    assert not any(r["check"]["passed"] for r in found)


@pytest.mark.parametrize("wrong", ["stale", "never", "swapped"])
def test_wrong_values_fail_their_record(wrong: str) -> None:
    """A replay that kept its old answer, one that computed nothing, one with q, k, v and the gate exchanged."""
    x, fresh = (DRAWN.take(4, seed, SIZE.model.hidden, torch.device("cpu")) for seed in (0, 1))
    rule = arms.SideRule(None, 64, lambda: False)
    bound = {arm: measure.launches(arm, x, SETS, rule) for arm in (FIVE, THREE)}
    for launch in (*bound[FIVE], *bound[THREE]):
        launch()
    replays = {arm: (lambda arm=arm: [launch() for launch in bound[arm]]) for arm in bound}
    if wrong == "stale":
        replays[THREE] = lambda: None
    elif wrong == "never":
        bound[THREE][2].results = None
        replays[THREE] = lambda: None
    else:
        real = bound[THREE][0].run
        bound[THREE][0].run = lambda: arms.Projected(real().qkv.roll(SIZE.projection, 1), *_rest(real()))
    found = measure.check(x, fresh, SETS, bound, replays, lambda: None)
    assert [r["check"]["passed"] for r in found] == [True, False]
    assert not all(found[1]["bits"].values())


def _rest(given: arms.Projected) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return given.gate, given.b, given.a


def test_the_side_stream_is_warmed_outside_of_a_capture() -> None:
    """One serial call on it, between fork and join; none without a side stream."""
    log: list[str] = []

    class Side:
        def fork(self) -> None:
            log.append("fork")

        def on_side(self) -> object:
            return nullcontext()

        def join(self) -> None:
            log.append("join")

    launch = measure.Launch(lambda: log.append("call"))  # type: ignore[arg-type, return-value]
    measure.warm_side(arms.SideRule(Side(), 64, lambda: False), [launch])
    assert log == ["fork", "call", "join"]
    measure.warm_side(arms.SideRule(None, 64, lambda: False), [launch])
    assert len(log) == 3
