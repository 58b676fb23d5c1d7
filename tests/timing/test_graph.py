"""The timers: what is enqueued in which order, and which samples are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kda_lab.errors import TimingError
from kda_lab.timing import graph


class FakeEvent:
    """Records its place in the log; one replay is 2 ms."""

    log: list[str]
    step_ms = 2.0

    def __init__(self, enable_timing: bool) -> None:
        self.at = -1

    def record(self) -> None:
        self.at = self.log.count("replay")
        self.log.append("mark")

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.at - self.at) * self.step_ms


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    entries: list[str] = []
    monkeypatch.setattr(FakeEvent, "log", entries, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: entries.append("sync"))
    return entries


@pytest.mark.parametrize("timer", [graph.GraphTimer, graph.EagerTimer])
def test_replays_are_enqueued_back_to_back(timer: Any, log: list[str]) -> None:
    """Warm-up and all timed replays are enqueued without a wait; telemetry reads before the wait."""
    clock = timer(torch.device("cpu"))
    samples = clock.sample_us(lambda: log.append("replay"), 2, 1, lambda: log.append("telemetry"))
    assert log == ["sync", "replay", "mark", "replay", "mark", "replay", "mark", "telemetry", "sync"]
    assert samples == [2000.0, 2000.0]


def test_replay_that_takes_no_time_is_refused(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of zero means that nothing was launched, and is never recorded."""
    monkeypatch.setattr(FakeEvent, "step_ms", 0.0)
    clock = graph.GraphTimer(torch.device("cpu"))
    with pytest.raises(
        TimingError, match=r"samples_us is \[0\.0\]; allowed: more than 0\. The replay launched nothing"
    ):
        clock.sample_us(lambda: None, 1, 0, lambda: None)


def test_eager_replay_rotates_over_the_launchers(log: list[str]) -> None:
    """Five calls over two launchers run 0 1 0 1 0, after each ran once."""
    ran: list[int] = []
    replay = graph.EagerTimer(torch.device("cpu")).prepare([lambda: ran.append(0), lambda: ran.append(1)], 5)
    assert ran == [0, 1]
    replay()
    assert ran[2:] == [0, 1, 0, 1, 0]


@pytest.mark.gpu
def test_captured_graph_runs_all_calls_in_rotation() -> None:
    """A graph of five calls over two launchers adds three and two; a replay takes a believable time."""
    device = torch.device("cuda", 0)
    first, second = torch.zeros(1024, device=device), torch.zeros(1024, device=device)
    clock = graph.GraphTimer(device)
    replay = clock.prepare([lambda: first.add_(1), lambda: second.add_(1)], 5)
    first.zero_(), second.zero_()
    replay()
    torch.cuda.synchronize()
    assert (float(first[0]), float(second[0])) == (3.0, 2.0)
    samples = clock.sample_us(replay, 3, 1, lambda: None)
    assert len(samples) == 3
    assert all(1.0 < sample < 10_000 for sample in samples)
