"""Proof of what ran: names and counts of the device activities of one eager call, from torch's profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from kda_lab.ops.protocol import Launcher

NOT_WORK = frozenset(
    {
        "Activity Buffer Request",
        "Buffer Flush",
        "Command Buffer Full",
        "Context Sync",
        "Event Sync",
        "Instrumentation",
        "Lazy Function Loading",
        "Resource",
        "Runtime Triggered Module Loading",
        "Stream Sync",
        "Stream Wait Event",
    }
)
"""Events of the profiler itself and waits: some versions list them beside the kernels."""
NAME_LENGTH = 120
"""Characters of a kernel's name that a record keeps."""


@dataclass(frozen=True)
class Activity:
    """Kernels, copies and fills of one call."""

    kernels: dict[str, int] | None
    """Name to count; None when the profiler saw nothing."""
    reason: str = ""
    """Why `kernels` is None."""


def count_activities(events: Iterable[Any]) -> dict[str, int]:
    """Count the profiler's events that ran on a CUDA device; annotations and the profiler's own are left out."""
    names = Counter(
        _short(str(event.name))
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not getattr(event, "is_user_annotation", False)
        and event.name not in NOT_WORK
    )
    return dict(sorted(names.items()))


def _short(name: str) -> str:
    """A kernel's name, cut where its template arguments fill lines: they would be most of a record."""
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"


def profile_call(launch: Launcher, device: torch.device) -> Activity:
    """The device activities of one eager call, after one warm-up call.

    Never raises for a profiler that does not work: the record says why it saw nothing.
    """
    launch()
    torch.cuda.synchronize(device)
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    try:
        with torch.profiler.profile(activities=kinds, acc_events=True) as profiler:
            launch()
            torch.cuda.synchronize(device)
        found = count_activities(profiler.events() or ())
    except RuntimeError as error:
        # Expected: CUPTI is missing, lacks the privilege, or another profiler holds it.
        return Activity(None, f"unavailable, because the profiler raised RuntimeError: {str(error).splitlines()[0]}")
    if not found:
        return Activity(None, "unavailable, because the profiler recorded no device activity of this call")
    return Activity(found)
