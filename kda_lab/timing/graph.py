"""The timers: what turns bound launchers into microseconds. CUDA graphs for verdicts, eager for labelled rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch

from kda_lab.errors import TimingError
from kda_lab.ops.protocol import Launcher

Replay = Callable[[], None]
"""Enqueues all calls of one graph on the current stream."""


class Timer(Protocol):
    """A way to time launchers."""

    name: str
    """As records show it: `cuda graph, events`."""

    def prepare(self, launchers: Sequence[Launcher], calls: int) -> Replay:
        """Make one replay of `calls` launches that rotate over `launchers`; nothing is timed yet."""
        ...

    def sample_us(self, replay: Replay, replays: int, warmup: int, while_busy: Callable[[], None]) -> list[float]:
        """Times of `replays` replays in microseconds each; `while_busy` runs while the device still works."""
        ...


class GraphTimer:
    """One CUDA graph, timed by events at its borders. All replays are enqueued back to back.

    Back to back, a graph's launch overlaps the replay before it, so that the gap between two
    graphs is not counted as work of the second.
    """

    name = "cuda graph, events"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, launchers: Sequence[Launcher], calls: int) -> Replay:
        """Warm every launcher up on the capture stream, then capture `calls` launches on it.

        Some arms compile at the first launch, or keep one workspace a stream: both must have
        happened on the stream that is captured, before the capture.
        """
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for launch in launchers:
                launch()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for index in range(calls):
                launchers[index % len(launchers)]()
        torch.cuda.synchronize(self.device)
        return graph.replay

    def sample_us(self, replay: Replay, replays: int, warmup: int, while_busy: Callable[[], None]) -> list[float]:
        """See `Timer.sample_us`."""
        return _event_samples(self.device, replay, replays, warmup, while_busy)


class EagerTimer:
    """Launches from the host, timed by events: what a caller without graphs sees, host cost included."""

    name = "eager, events"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, launchers: Sequence[Launcher], calls: int) -> Replay:
        """Launch every launcher once, then return a replay that launches `calls` of them from the host."""
        for launch in launchers:
            launch()
        torch.cuda.synchronize(self.device)

        def replay() -> None:
            for index in range(calls):
                launchers[index % len(launchers)]()

        return replay

    def sample_us(self, replay: Replay, replays: int, warmup: int, while_busy: Callable[[], None]) -> list[float]:
        """See `Timer.sample_us`."""
        return _event_samples(self.device, replay, replays, warmup, while_busy)


def _event_samples(
    device: torch.device, replay: Replay, replays: int, warmup: int, while_busy: Callable[[], None]
) -> list[float]:
    marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    torch.cuda.synchronize(device)
    for _ in range(warmup):
        replay()
    marks[0].record()
    for mark in marks[1:]:
        replay()
        mark.record()
    while_busy()
    torch.cuda.synchronize(device)
    # elapsed_time is in milliseconds.
    samples = [before.elapsed_time(after) * 1e3 for before, after in pairwise(marks)]
    if not all(sample > 0 for sample in samples):
        raise TimingError("timing", f"samples_us is {samples!r}; allowed: more than 0. The replay launched nothing.")
    return samples
