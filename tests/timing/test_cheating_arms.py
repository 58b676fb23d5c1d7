"""Arms that cheat the clock, one trick each, and honest arms beside them on a real GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.ops.protocol import Call, FunctionArm, Launcher, OpSpec, Row, Work
from kda_lab.timing import measure
from kda_lab.timing.machine import machine_for
from kda_lab.timing.protocol import Protocol

Factory = Callable[..., Any]


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
    oracle = SimpleNamespace(oracle_fp32=lambda call: {"out": call.inputs["x"].float() * 2})
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
