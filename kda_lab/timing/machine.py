"""The machine a row is timed on: its timer, telemetry, profiler, copy rate and provenance, all replaceable."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from kda_lab import runtime
from kda_lab.errors import UnavailableError
from kda_lab.ops.protocol import Launcher
from kda_lab.timing import activity, roofline, telemetry
from kda_lab.timing.graph import GraphTimer, Timer


@dataclass(frozen=True)
class Machine:
    """Everything that timing asks of the hardware. Tests replace each part."""

    device: torch.device
    l2_bytes: int
    memory_bytes: int
    copy_gb_s: float
    """Copy rate, measured once a run: the roofline."""
    read_gb_s: float
    """Read rate, measured once a run; with the copy rate it bounds what a cold time can imply."""
    timer: Timer
    telemetry: telemetry.Telemetry
    profile: Callable[[Launcher, torch.device], activity.Activity]
    provenance: dict[str, Any]
    synchronise: Callable[[], None]
    """Waits for the device; raises RuntimeError when its context is lost."""
    release: Callable[[], None]
    """Gives freed memory back to the driver, so that the next allocation is a fresh one."""
    clock: Callable[[], float] = time.perf_counter
    """Seconds."""
    current: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Makes the device the current one: events and graph replays use the current device's stream."""


def why_not_timed(device: torch.device) -> str:
    """`not timed (interpreter)` or `not timed (no GPU)`; empty on a CUDA device that runs compiled kernels."""
    if runtime.interpreter_on():
        return "not timed (interpreter)"
    if device.type != "cuda":
        return "not timed (no GPU)"
    return ""


def machine_for(device: torch.device) -> Machine:
    """The machine behind a CUDA device; measures its copy and read rates (about 50 ms).

    Raises:
        UnavailableError: nothing may be timed on this device.
    """
    reason = why_not_timed(device)
    if reason:
        raise UnavailableError("timing", f"{reason}: device is {str(device)!r}; allowed: a CUDA device. Run on a GPU.")
    facts = runtime.device_facts(device)
    return Machine(
        device=device,
        l2_bytes=facts["l2_bytes"],
        memory_bytes=facts["memory_bytes"],
        copy_gb_s=roofline.measure_copy_bandwidth(device),
        read_gb_s=roofline.measure_read_bandwidth(device),
        timer=GraphTimer(device),
        telemetry=telemetry.reader(device),
        profile=activity.profile_call,
        provenance=runtime.provenance(device),
        synchronise=lambda: torch.cuda.synchronize(device),
        release=torch.cuda.empty_cache,
        current=lambda: torch.cuda.device(device),
    )
