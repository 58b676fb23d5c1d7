"""The check after timing: which graphs pass on changed inputs and poisoned outputs; and arms that cheat the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.errors import TimingError
from kda_lab.ops.protocol import Call, FunctionArm, Launcher, OpSpec, Row, Work
from kda_lab.timing import measure, recheck
from kda_lab.timing.machine import machine_for
from kda_lab.timing.protocol import Protocol

Factory = Callable[..., Any]
Judge = Callable[[Callable[[list[Call]], None], int], dict[str, Any]]


@pytest.fixture
def judge(op: Any, row: Any) -> Judge:
    """Recheck a replay that gets all input sets."""

    def run(replay: Callable[[list[Call]], None], count: int = 5) -> dict[str, Any]:
        sets = op.make_sets(row, count, 1, torch.device("cpu"))
        for call in sets:
            call.outputs["out"].copy_(call.inputs["x"] * 2)
        timed = recheck.Timed(sets, [replay] * count, lambda: replay(sets), seed=1, calls=count)
        return recheck.recheck(op, row, timed, synchronise=lambda: None)

    return run


def double(sets: list[Call]) -> None:
    for call in sets:
        call.outputs["out"].copy_(call.inputs["x"] * 2)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_honest_replay_passes(judge: Judge, count: int) -> None:
    """A replay that computes every set from its live inputs passes with error 0."""
    assert judge(double, count) == {"passed": True, "error": 0.0, "limit": 5e-3, "detail": ""}


def test_replay_without_work_fails(judge: Judge) -> None:
    """A graph that lacks the work leaves the poison, although the old outputs were right."""
    found = judge(lambda sets: None, 5)
    assert not found["passed"]
    assert found["error"] is None
    assert found["detail"] == (
        "5 of 5 input sets kept poison in their outputs after the replay; error is inf; allowed: at most 0.005"
    )


def test_replay_that_skips_a_set_in_the_middle_fails(judge: Judge) -> None:
    """A set that is not compared with the oracle must still be written."""
    found = judge(lambda sets: double([*sets[:2], *sets[3:]]), 5)
    assert found["detail"] == "1 of 5 input sets kept poison in their outputs after the replay"
    assert not found["passed"]


def test_replay_of_an_old_answer_fails(judge: Judge) -> None:
    """A graph that copies the answer of the timed inputs is wrong on changed ones."""
    old: list[torch.Tensor] = []

    def stale(sets: list[Call]) -> None:
        for call, answer in zip(sets, old, strict=True):
            call.outputs["out"].copy_(answer)

    generator = torch.Generator().manual_seed(1)
    old.extend(torch.randn(5, 64, generator=generator) * 2)
    found = judge(stale, 5)
    assert not found["passed"]
    assert found["error"] > 0.5
    assert "poison" not in found["detail"]


def test_error_just_above_the_limit_fails(judge: Judge) -> None:
    """The limit binds: 1.004 passes, 1.006 fails at 5e-3."""

    def scaled(factor: float) -> Callable[[list[Call]], None]:
        return lambda sets: [c.outputs["out"].copy_(c.inputs["x"] * 2 * factor) for c in sets] and None

    assert judge(scaled(1.004), 2)["passed"]
    assert judge(scaled(1.006), 2)["detail"] == "error is 0.006; allowed: at most 0.005"


def test_geometry_that_depends_on_the_seed_is_refused(op: Any, row: Any) -> None:
    """Inputs that do not fit into the timed buffers cannot be refilled, and are refused by name."""
    sets = op.make_sets(row, 2, 1, torch.device("cpu"))
    other = [Call("fake.double", {"x": torch.zeros(63)}, {}, {}) for _ in sets]
    with pytest.raises(TimingError, match=r"recheck\.x is '?\(63,\) torch\.float32'?; allowed: \(64,\) torch\.float32"):
        recheck.refill(sets, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn])
def test_poison_in_floating_point_is_found(dtype: torch.dtype) -> None:
    """Poison shows in every floating-point dtype, and one written set is not counted."""
    sets = [
        Call("x", {}, {}, {"out": torch.zeros(8).to(dtype), "n": torch.zeros(2, dtype=torch.int32)}) for _ in range(3)
    ]
    for call in sets[:2]:
        recheck.poison(call)
    assert recheck.unwritten(sets) == 2


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.uint8, 165), (torch.int32, 165), (torch.int8, 37), (torch.bool, 1)]
)
def test_integers_are_poisoned_with_a_pattern(dtype: torch.dtype, value: int) -> None:
    """Integer outputs get a fixed pattern that fits their type."""
    call = Call("x", {}, {}, {"out": torch.zeros(4, dtype=dtype)})
    recheck.poison(call)
    assert call.outputs["out"].tolist() == [value] * 4
    assert recheck.unwritten([call]) == 0


def test_zero_reference_counts_the_output_itself() -> None:
    """Against an all-zero reference the error is the output's norm; NaN is infinite; no output is infinite."""
    call = Call("x", {}, {}, {"out": torch.tensor([3.0, 4.0])})
    assert recheck.relative_l2(call, {"out": torch.zeros(2)}) == 5.0
    assert recheck.relative_l2(call, {"out": torch.tensor([math.nan, 0.0])}) == math.inf
    assert recheck.relative_l2(call, {}) == math.inf


def test_limit_is_the_synthetic_one_at_the_floor_of_the_row(op: Any, row: Any) -> None:
    """The limit is asked of the op's gates for synthetic data, with the floor of the refilled contents."""
    asked: list[tuple[str, float]] = []

    def limits(kind: str, floor: float) -> SimpleNamespace:
        asked.append((kind, floor))
        return SimpleNamespace(error=0.25)

    op.gates = SimpleNamespace(limits=limits)
    op.oracle.emulate = lambda call: {"out": call.inputs["x"] * 2.5}
    sets = op.make_sets(row, 2, 1, torch.device("cpu"))
    timed = recheck.Timed(sets, [double] * 2, lambda: double(sets), seed=1, calls=2)
    found = recheck.recheck(op, row, timed, synchronise=lambda: None)
    assert asked == [("synthetic", pytest.approx(0.25))]
    assert found["limit"] == 0.25
    assert (
        recheck.recheck(op, row, timed, synchronise=lambda: None, limit=recheck.ErrorLimits(0.0, math.nan))["limit"]
        == 0.0
    )


def test_an_exact_row_demands_equal_values(op: Any, row: Any, judge: Judge) -> None:
    """Where the floor is 0 and the op then allows no error, equal values pass (-0.0 too) and one bit fails."""
    op.gates = SimpleNamespace(limits=lambda kind, floor: SimpleNamespace(error=0.0 if floor == 0 else 5e-3))
    assert judge(double)["passed"]

    def one_bit(sets: list[Call]) -> None:
        double(sets)
        sets[0].outputs["out"].view(torch.int32)[3] += 1

    found = judge(one_bit)
    assert (found["passed"], found["limit"]) == (False, 0.0)
    assert (
        recheck.relative_l2(Call("x", {}, {}, {"out": torch.tensor([-0.0, 1.0])}), {"out": torch.tensor([0.0, 1.0])})
        == 0
    )


def test_a_launcher_that_prepares_does_it_again(op: Any, row: Any) -> None:
    """Preparation by contents is done for the refilled sets, and for those only, before the graph is replayed."""
    sets = op.make_sets(row, 4, 1, torch.device("cpu"))
    log: list[str] = []

    class Prepared:
        def __init__(self, call: Call) -> None:
            self.call, self.doubled = call, call.inputs["x"] * 2

        def prepare(self) -> None:
            log.append("prepare")
            torch.mul(self.call.inputs["x"], 2, out=self.doubled)

        def __call__(self) -> None:
            self.call.outputs["out"].copy_(self.doubled)

    launchers = [Prepared(call) for call in sets]
    timed = recheck.Timed(
        sets, launchers, lambda: log.append("replay") or ([launch() for launch in launchers] and None), 1, 2
    )
    assert recheck.recheck(op, row, timed, synchronise=lambda: None)["passed"]
    assert log == ["prepare", "prepare", "replay"]


class CachingArm:
    """Launches only for input pointers it has not seen: its graph of the timed sets is empty."""

    name = "cached"
    source_sha256 = ""
    reads_live_lengths = True

    def __init__(self, launcher: Factory) -> None:
        self.seen: set[int] = set()
        self.launcher = launcher

    def unavailable(self, device: torch.device) -> str:
        return ""

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        def run(call: Call) -> None:
            if id(call) not in self.seen:
                self.seen.add(id(call))
                call.outputs["out"].copy_(call.inputs["x"] * 2)

        return [self.launcher(run, call) for call in calls]


def test_arm_that_skips_known_inputs_is_invalid(
    op: Any, row: Any, make_arm: Factory, make_machine: Factory, make_timer: Factory
) -> None:
    """An arm that remembers its inputs leaves poison after the timing; its trials are invalid and dropped."""

    class WarmingTimer(make_timer):  # type: ignore[misc,valid-type]
        def prepare(self, launchers: Sequence[Any], calls: int) -> Launcher:
            for launch in launchers:
                launch()
            return super().prepare(launchers, calls)

    def launcher(run: Callable[[Call], None], call: Call) -> Launcher:
        def launch() -> None:
            run(call)

        launch.us = 1.0  # type: ignore[attr-defined]
        return launch

    found = measure.time_row(
        op,
        row,
        [(make_arm("slow", 20.0), "baseline"), (CachingArm(launcher), "candidate")],
        machine=make_machine(timer=WarmingTimer()),
    )
    cheats = [r for r in found if r["arm"] == "cached"]
    assert len(cheats) == 5
    assert {r["state"] for r in cheats} == {"invalid"}
    assert all(r["dropped"].startswith("recheck failed: 40 of 40 input sets kept poison") for r in cheats)
    assert {r["state"] for r in found if r["arm"] != "cached"} == {"cold"}


class CudaOp:
    """`out = 2 x` on 4 MB a tensor, on a GPU."""

    spec = OpSpec("fake.double", ("x",), (), ("out",))
    oracle = SimpleNamespace(
        oracle_fp32=lambda call: {"out": call.inputs["x"].float() * 2},
        oracle_fp64=lambda call: {"out": call.inputs["x"].double() * 2},
        emulate=lambda call: {"out": call.inputs["x"] * 2},
    )
    work = SimpleNamespace(work=lambda call: Work(4 << 20, 4 << 20, 1 << 20))
    gates = SimpleNamespace(limits=lambda kind, floor: SimpleNamespace(error=5e-3))

    @staticmethod
    def make_sets(row: Row, count: int, seed: int, device: torch.device) -> list[Call]:
        generator = torch.Generator(device).manual_seed(seed)
        values = torch.randn(count, 1 << 20, generator=generator, device=device)
        outputs = torch.zeros_like(values)
        return [Call("fake.double", {"x": values[i]}, {}, {"out": outputs[i]}, row.label) for i in range(count)]

    cases = SimpleNamespace(make_sets=make_sets.__func__)  # type: ignore[attr-defined]


def double_on_cuda(call: Call) -> None:
    torch.mul(call.inputs["x"], 2, out=call.outputs["out"])


class OtherStreamArm:
    """Launches a token kernel on the current stream and the real work on a stream of its own."""

    name = "other_stream"
    source_sha256 = ""
    reads_live_lengths = True

    def unavailable(self, device: torch.device) -> str:
        return ""

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        device = calls[0].device
        self.side, self.token = torch.cuda.Stream(device), torch.zeros(1, device=device)

        def launch(call: Call) -> None:
            self.token.add_(1)
            with torch.cuda.stream(self.side):
                double_on_cuda(call)

        return [lambda call=call: launch(call) for call in calls]  # type: ignore[misc]


@pytest.mark.gpu
def test_gpu_times_honest_arms_cold_and_catches_work_on_another_stream(row: Any) -> None:
    """On a GPU an honest copy is cold and right; work outside the graph is fast, wrong and therefore invalid."""
    machine = machine_for(torch.device("cuda", torch.cuda.current_device()))
    arms = [
        (FunctionArm("honest", double_on_cuda), "baseline"),
        (FunctionArm("twin", double_on_cuda), "candidate"),
        (OtherStreamArm(), "peer"),
    ]
    found = measure.time_row(CudaOp, row, arms, machine=machine, protocol=Protocol(trials=2, spare_trials=0))
    honest = [r for r in found if r["arm"] in ("honest", "twin")]
    assert len(honest) == 6
    assert {r["state"] for r in honest} <= {"cold", "warm"}
    assert all(r["recheck"]["passed"] and r["bytes_rotated"] >= 5 * r["l2_bytes"] for r in honest)
    assert all(r["kernels_reason"] or sum(r["kernels"].values()) == 1 for r in honest)
    cheats = [r for r in found if r["arm"] == "other_stream"]
    assert {r["kind"] for r in cheats} == {"timing"}, cheats
    assert {r["state"] for r in cheats} == {"invalid"}
    assert all("kept poison in their outputs" in r["dropped"] for r in cheats)


@pytest.mark.gpu
def test_gpu_refuses_an_arm_that_cannot_be_captured(row: Any) -> None:
    """An arm that waits for the device inside the capture is refused, and the arms after it are timed."""

    def synchronising(call: Call) -> None:
        double_on_cuda(call)
        torch.cuda.synchronize()

    arms = [
        (FunctionArm("honest", double_on_cuda), "baseline"),
        (FunctionArm("synchronising", synchronising), "peer"),
        (FunctionArm("twin", double_on_cuda), "candidate"),
    ]
    machine = machine_for(torch.device("cuda", torch.cuda.current_device()))
    found = measure.time_row(CudaOp, row, arms, machine=machine, protocol=Protocol(trials=1, spare_trials=0))
    assert {r["arm"]: r["kind"] for r in found} == {"honest": "timing", "twin": "timing", "synchronising": "refused"}


@pytest.mark.parametrize(("dead", "error"), [(-math.inf, 0.25), (0.0, math.inf), (math.nan, math.inf)])
def test_a_score_of_minus_infinity_is_met_or_missed(dead: float, error: float) -> None:
    """-inf on both sides is agreement; anything else in its place is infinitely wrong."""
    reference = torch.tensor([4.0, -math.inf])
    assert recheck._relative_l2(torch.tensor([5.0, dead]), reference) == error
