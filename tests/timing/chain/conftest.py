"""A toy op with two products a layer, arms over it, and a timer that adds up the times of the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.ops.protocol import Call, Launcher, OpSpec, Row, Work
from kda_lab.timing.chain.assembly import Chain
from kda_lab.timing.chain.plan import ChainPlan

WIDTHS = {"tiny_a": 8, "tiny_c": 16}
STATE_US = 3.0


class ScalingOp:
    """`out = w x`, each call with weights of its own."""

    spec = OpSpec("fake.scale", ("x", "w"), (), ("out",))

    def __init__(self) -> None:
        self.cases = SimpleNamespace(make_sets=self.make_sets, rows=self.rows)
        self.oracle = SimpleNamespace(oracle_fp32=self.exact, oracle_fp64=self.exact, emulate=self.exact)
        self.work = SimpleNamespace(work=lambda call: Work(8 * call.outputs["out"].numel(), 0, 1))
        self.gates = SimpleNamespace(limits=lambda kind, floor: SimpleNamespace(error=1e-5))

    @staticmethod
    def exact(call: Call) -> dict[str, torch.Tensor]:
        return {"out": call.inputs["x"] * call.inputs["w"]}

    @staticmethod
    def rows(shapes: Sequence[str], batches: Sequence[int], kinds: Sequence[str]) -> list[Row]:
        return [
            Row("fake.scale", f"{s}-M{m}-{k}", {"shape": s, "M": m}) for s in shapes for m in batches for k in kinds
        ]

    @staticmethod
    def make_sets(row: Row, count: int, seed: int, device: torch.device) -> list[Call]:
        generator = torch.Generator().manual_seed(seed)
        width = WIDTHS[row.parameters["shape"]]
        x, w = torch.randn(2, count, width, generator=generator)
        outputs = torch.zeros(count, width)
        return [Call("fake.scale", {"x": x[i], "w": w[i]}, {}, {"out": outputs[i]}, row.label) for i in range(count)]


@dataclass
class TimedLaunch:
    """A launch with the time that the fake timer reports for it."""

    run: Launcher
    us: float

    def __call__(self) -> None:
        self.run()


def scale(call: Call) -> None:
    torch.mul(call.inputs["x"], call.inputs["w"], out=call.outputs["out"])


@dataclass
class ScalingArm:
    """An arm with a known time a call."""

    name: str
    us: float = 10.0
    function: Callable[[Call], None] = scale
    source_sha256: str = "s"
    reads_live_lengths: bool = True
    why_not: str = ""
    bound: list[int] = field(default_factory=list)

    def unavailable(self, device: torch.device) -> str:
        return self.why_not

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        self.bound.append(len(calls))
        return [TimedLaunch(lambda call=call: self.function(call), self.us) for call in calls]


class ChainTimer:
    """Runs a chain on the CPU; reports the sum of its steps' times, times what `drift(sample number)` says."""

    name = "cuda graph, events"

    def __init__(self, drift: Callable[[int], float] = lambda number: 1.0) -> None:
        self.drift, self.number = drift, 0
        self.log: list[tuple[int, int]] = []

    def prepare(self, launchers: Sequence[Chain], calls: int) -> Launcher:
        (chain,) = launchers
        self.log.append((len(chain.steps), calls))
        self.us = calls * sum(getattr(step.launch, "us", STATE_US) for step in chain.steps)
        return lambda: [chain() for _ in range(calls)] and None

    def sample_us(self, replay: Launcher, replays: int, warmup: int, while_busy: Callable[[], None]) -> list[float]:
        while_busy()
        self.number += 1
        return [self.us * self.drift(self.number) for _ in range(replays)]


@pytest.fixture
def chain_op() -> ScalingOp:
    return ScalingOp()


@pytest.fixture
def scaling_arm() -> type[ScalingArm]:
    return ScalingArm


@pytest.fixture
def chain_timer() -> type[ChainTimer]:
    return ChainTimer


@pytest.fixture
def plan(chain_op: ScalingOp) -> ChainPlan:
    """Three layers of two products, 16 KB of state each."""
    rows = tuple(chain_op.rows(["tiny_a", "tiny_c"], [2], ["random"]))
    return ChainPlan("fake.scale", "tiny", rows, 3, 16_384)


@pytest.fixture
def chain_record() -> Callable[..., dict[str, Any]]:
    """A believable line of chain.jsonl; keyword arguments replace fields."""
    quiet = {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "power_w": 300.0, "temperature_c": 40, "throttle": [],
             "other_processes": 0, "reason": ""}  # fmt: skip

    def make(**changes: Any) -> dict[str, Any]:
        record = {
            "kind": "chain", "op": "fake.scale", "axes": {"model": "tiny", "M": 2, "rows": ["a", "b"]}, "layers": 3,
            "state_bytes": 16_384, "arm": "k stream/stream", "role": "reference", "source_sha256": "s",
            "provenance": {"device": {"type": "cuda", "interpreter": False}}, "reference": "k stream/stream", "trial": 0,
            "order": 0, "dropped": "", "samples_us": [9.0, 10.0, 12.0], "median_us": 10.0, "passes_per_graph": 2,
            "product_bytes": 30_000, "touches_per_layer": 2, "l2_bytes": 4096, "cold_products": True,
            "l2_reset_reason": "", "copy_bandwidth_gb_s": 4300.0, "roof_us": 0.007, "kernels": {"chain": {"gemm": 6}}, "kernels_reason": "",
            "timer": "cuda graph, events", "telemetry": quiet, "recheck": {"passed": True, "error": 1e-6, "limit": 1e-5},
            "outputs_sha256": "abc", "protocol": "chain v1",
        }  # fmt: skip
        return {**record, **changes}

    return make
