"""The machine a study runs on: timers, profiler, side stream, rates; tests replace each part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from kda_lab import runtime
from kda_lab.projection import traces
from kda_lab.projection.arms import CudaSideStream, SideRule, capturing
from kda_lab.projection.policy import side_token_limit
from kda_lab.projection.traces import Profile
from kda_lab.timing.graph import EagerTimer, GraphTimer, Replay, Timer
from kda_lab.timing.machine import machine_for
from kda_lab.timing.protocol import COLD_L2_MULTIPLE


@dataclass(frozen=True)
class Bench:
    """Everything that a study asks of the hardware."""

    device: torch.device
    copy_gb_s: float
    l2_bytes: int
    rotated_bytes: int
    """Weights of all sets together, at least: several times the L2."""
    timers: Mapping[str, Timer]
    """Mode to its timer."""
    rule: SideRule
    profile: Callable[[Replay], Profile]
    synchronise: Callable[[], None]
    release: Callable[[], None]
    clock: Callable[[], float]
    """Seconds."""
    provenance: dict[str, Any]
    current: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Makes the device the current one."""


def cuda_bench(device: torch.device) -> Bench:
    """The bench of a CUDA device.

    Raises:
        UnavailableError: nothing may be timed on this device.
    """
    machine = machine_for(device)
    rule = SideRule(CudaSideStream(device), side_token_limit(runtime.capability(device)), capturing)
    return Bench(
        device=device,
        copy_gb_s=machine.copy_gb_s,
        l2_bytes=machine.l2_bytes,
        rotated_bytes=int(COLD_L2_MULTIPLE * machine.l2_bytes),
        timers={"graph": GraphTimer(device), "eager": EagerTimer(device)},
        rule=rule,
        profile=lambda replay: traces.profile(replay, device),
        synchronise=machine.synchronise,
        release=machine.release,
        clock=machine.clock,
        provenance=machine.provenance,
        current=machine.current,
    )
