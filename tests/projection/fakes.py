"""A machine that takes as long as it is told to: for tests of what a study does with times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kda_lab.projection.arms import SideRule
from kda_lab.projection.bench import Bench
from kda_lab.projection.traces import Profile
from kda_lab.referee.slices.kernel_list import Kernel

CPU = torch.device("cpu")
SPEED = {"five": 4.0, "five_again": 4.0, "three": 3.0, "three_side": 2.0}


@dataclass
class FakeTimer:
    """Runs what it is given and says a time: GEMM launches are counted by the arm's own closure."""

    name: str = "fake"
    log: list[str] = field(default_factory=list)
    drift: float = 0.0

    def prepare(self, launchers: Sequence[Any], calls: int) -> Callable[[], None]:
        self.log.append(f"prepare {len(launchers)} {calls}")
        number = sum(line.startswith("prepare") for line in self.log) - 1
        arm = list(SPEED)[(0, 2, 3, 1)[number % 4]]

        def replay() -> None:
            for index in range(calls):
                launchers[index % len(launchers)]()

        replay.arm = arm  # type: ignore[attr-defined]
        replay.calls = calls  # type: ignore[attr-defined]
        return replay

    def sample_us(self, replay: Any, replays: int, warmup: int, while_busy: Callable[[], None]) -> list[float]:
        self.log.append(f"{replay.arm} {replays}")
        noise = 1 + 0.001 * (len(self.log) % 3) + self.drift * len(self.log)
        return [SPEED[replay.arm] * replay.calls * noise] * replays


@dataclass
class Clock:
    """Seconds that pass by a fixed step a look."""

    step: float = 0.0
    now: float = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def profile(replay: Any) -> Profile:
    """Two kernels of 3 us each that overlap by 2, once a call."""
    made = [
        Kernel("nvjet", 0, 7 + side, 10_000 * call + 1000 * side, 3000)
        for call in range(replay.calls)
        for side in (0, 1)
    ]
    return Profile(tuple(made))


def bench(step: float = 0.0, timer: FakeTimer | None = None) -> Bench:
    """A bench on the CPU with 100 kB to rotate over."""
    timer = timer or FakeTimer()
    return Bench(
        device=CPU,
        copy_gb_s=1.0,
        l2_bytes=20_000,
        rotated_bytes=100_000,
        timers={"graph": timer, "eager": timer},
        rule=SideRule(None, 64, lambda: False),
        profile=profile,
        synchronise=lambda: None,
        release=lambda: None,
        clock=Clock(step),
        provenance={"device": {"name": "a machine made up"}},
    )
