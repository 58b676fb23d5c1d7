"""Fakes for the timing tests: an op that doubles, arms with a known time, and a machine without hardware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.ops.protocol import Call, Launcher, OpSpec, Row, Work
from kda_lab.timing.activity import Activity
from kda_lab.timing.machine import Machine

WIDTH = 64
L2_BYTES = 4096
QUIET = {
    "sm_clock_mhz": 1980,
    "memory_clock_mhz": 3201,
    "power_w": 300.0,
    "temperature_c": 40,
    "throttle": [],
    "other_processes": 0,
    "reason": "",
}


class DoublingOp:
    """`out = 2 x`, with a log of the input sets that were made."""

    spec = OpSpec("fake.double", ("x",), (), ("out",))

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []
        self.labels: set[str] = set()
        """Labels of the rows that were asked for."""
        self.cases = SimpleNamespace(make_sets=self.make_sets)
        self.oracle = SimpleNamespace(
            oracle_fp32=lambda call: {"out": call.inputs["x"] * 2},
            oracle_fp64=lambda call: {"out": call.inputs["x"].double() * 2},
            emulate=lambda call: {"out": call.inputs["x"] * 2},
        )
        self.work = SimpleNamespace(work=lambda call: Work(4 * WIDTH, 4 * WIDTH, WIDTH))
        self.gates = SimpleNamespace(limits=lambda kind, floor: SimpleNamespace(error=5e-3, row_max=5e-2))

    def make_sets(self, row: Row, count: int, seed: int, device: torch.device) -> list[Call]:
        self.made.append((count, seed))
        self.labels.add(row.label)
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(count, WIDTH, generator=generator)
        outputs = torch.zeros(count, WIDTH)
        return [Call("fake.double", {"x": values[i]}, {}, {"out": outputs[i]}, row.label) for i in range(count)]


@dataclass
class TimedLauncher:
    """A launcher that carries the time the fake timer shall report for it."""

    run: Launcher
    us: float

    def __call__(self) -> None:
        self.run()


def double(call: Call) -> None:
    call.outputs["out"].copy_(call.inputs["x"] * 2)


@dataclass
class FakeArm:
    """An arm with a known time a call; `function` does the work, or fails to."""

    name: str
    us: float = 10.0
    function: Callable[[Call], None] = double
    source_sha256: str = ""
    reads_live_lengths: bool = True
    why_not: str = ""
    bound: list[int] = field(default_factory=list)

    def unavailable(self, device: torch.device) -> str:
        return self.why_not

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        self.bound.append(len(calls))
        return [TimedLauncher(lambda call=call: self.function(call), self.us) for call in calls]


class FakeTimer:
    """Runs the launchers on the CPU and reports `us` a call, times what `drift(replay number)` says."""

    name = "cuda graph, events"

    def __init__(self, drift: Callable[[int], float] = lambda number: 1.0) -> None:
        self.drift = drift
        self.log: list[tuple[int, int]] = []
        self.number = 0

    def prepare(self, launchers: Sequence[Any], calls: int) -> Launcher:
        self.log.append((len(launchers), calls))
        self.us = launchers[0].us * calls
        # A graph launches each set once here: more rounds would change nothing but the test's time.
        return lambda: [launch() for launch in launchers] and None

    def sample_us(self, replay: Launcher, replays: int, warmup: int, while_busy: Callable[[], None]) -> list[float]:
        while_busy()
        self.number += 1
        return [self.us * self.drift(self.number) for _ in range(replays)]


@pytest.fixture
def op() -> DoublingOp:
    return DoublingOp()


@pytest.fixture
def row() -> Row:
    return Row("fake.double", "W64", {"W": WIDTH, "lengths": "short"})


@pytest.fixture
def make_arm() -> type[FakeArm]:
    return FakeArm


@pytest.fixture
def make_timer() -> type[FakeTimer]:
    return FakeTimer


@pytest.fixture
def make_machine() -> Callable[..., Machine]:
    def make(**changes: Any) -> Machine:
        parts: dict[str, Any] = {
            "device": torch.device("cpu"),
            "l2_bytes": L2_BYTES,
            "memory_bytes": 1 << 30,
            "copy_gb_s": 4300.0,
            "read_gb_s": 4200.0,
            "timer": FakeTimer(),
            "telemetry": lambda: dict(QUIET),
            "profile": lambda launch, device: Activity({"double_kernel": 1}),
            "provenance": {"device": {"type": "cuda", "uuid": "test", "interpreter": False}},
            "synchronise": lambda: None,
            "release": lambda: None,
        }
        return Machine(**{**parts, **changes})

    return make


@pytest.fixture
def quiet() -> dict[str, Any]:
    return dict(QUIET)


@pytest.fixture
def timing_record(quiet: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """A believable timing record; keyword arguments replace fields."""

    def make(**changes: Any) -> dict[str, Any]:
        record = {
            "kind": "timing",
            "op": "fake.double",
            "row": "W64",
            "axes": {"W": 64, "lengths": "short"},
            "arm": "slow",
            "role": "baseline",
            "baseline": "slow",
            "trial": 0,
            "order": 0,
            "state": "cold",
            "dropped": "",
            "samples_us": [9.0, 10.0, 12.0],
            "median_us": 10.0,
            "calls_per_graph": 100,
            "input_sets": 50,
            "bytes_per_call": 512,
            "bytes_rotated": 25600,
            "l2_bytes": 4096,
            "flops": 64,
            "bandwidth_gb_s": 0.0512,
            "copy_bandwidth_gb_s": 4300.0,
            "read_bandwidth_gb_s": 4200.0,
            "roof_us": 0.00012,
            "kernels": {"double_kernel": 1},
            "prepare_us": 3.0,
            "timer": "cuda graph, events",
            "telemetry": quiet,
            "recheck": {"passed": True, "error": 1e-4, "limit": 5e-3},
            "protocol": "v1",
            "provenance": {"device": {"type": "cuda", "uuid": "test", "interpreter": False}},
        }
        return {**record, **changes}

    return make
