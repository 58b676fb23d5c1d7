"""Graph capture: its order on a stand-in for CUDA, and on a GPU that a replay reads the contents of its moment."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch

from kda_lab.verify import graph


class FakeCuda:
    """What `capture` uses of torch.cuda, writing down the order of events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, remark: str = "") -> None:
        self.events: list[str] = []
        self.remark = remark
        for name in ("Stream", "current_stream", "stream", "synchronize", "CUDAGraph", "graph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def Stream(self, device):  # noqa: N802 - torch's name
        return self

    def current_stream(self, device):
        return "current"

    def wait_stream(self, other) -> None:
        self.events.append(f"wait for {other}")

    def synchronize(self, device) -> None:
        self.events.append("synchronize")

    def CUDAGraph(self):  # noqa: N802 - torch's name
        return self

    def replay(self) -> None:
        self.events.append("replay")

    @contextlib.contextmanager
    def stream(self, stream):
        self.events.append("on stream")
        yield

    @contextlib.contextmanager
    def graph(self, graph, stream):
        self.events.append("begin capture")
        yield
        self.events.append("end capture")
        if self.remark:
            warnings.warn(self.remark, UserWarning, stacklevel=2)


def test_warm_up_comes_before_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream waits, warms up, is idle, and only then is captured; the replay is left to the caller."""
    fake = FakeCuda(monkeypatch)
    replayed = graph.capture(lambda: fake.events.append("launch"), torch.device("cuda"))
    assert fake.events == [
        "wait for current",
        "on stream",
        *["launch"] * graph.WARM_UP_LAUNCHES,
        "synchronize",
        "begin capture",
        "launch",
        "end capture",
    ]
    replayed()
    assert fake.events[-1] == "replay"


def test_an_empty_graph_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that leaves nothing on the captured stream cannot be replayed: torch's remark becomes an error."""
    FakeCuda(monkeypatch, "The CUDA Graph is empty. This usually means that the graph was attempted ...")
    with pytest.raises(
        RuntimeError, match="the captured graph is empty: the launch put nothing on the captured stream"
    ):
        graph.capture(lambda: None, torch.device("cuda"))


def test_other_warnings_are_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning of the launch itself reaches whoever listens."""
    FakeCuda(monkeypatch, "this option is old")
    with pytest.warns(UserWarning, match="this option is old"):
        graph.capture(lambda: None, torch.device("cuda"))


@pytest.mark.gpu
def test_replay_reads_new_contents() -> None:
    """After a refill in place the captured launch computes with the new contents."""
    device = torch.device("cuda", torch.cuda.current_device())
    source, target = torch.ones(8, device=device), torch.zeros(8, device=device)
    replayed = graph.capture(lambda: target.copy_(source * 2), device)
    source.fill_(5.0)
    target.zero_()
    replayed()
    torch.cuda.synchronize()
    assert torch.equal(target.cpu(), torch.full((8,), 10.0))


@pytest.mark.gpu
def test_capture_itself_does_not_launch_once_more() -> None:
    """A launcher is called for warm-up and for the capture, and not again by the replay."""
    device = torch.device("cuda", torch.cuda.current_device())
    calls: list[int] = []
    target = torch.zeros(1, device=device)

    def launcher() -> None:
        calls.append(1)
        target.add_(1)

    replayed = graph.capture(launcher, device)
    torch.cuda.synchronize()
    assert (len(calls), int(target)) == (graph.WARM_UP_LAUNCHES + 1, graph.WARM_UP_LAUNCHES)
    replayed()
    torch.cuda.synchronize()
    assert (len(calls), int(target)) == (graph.WARM_UP_LAUNCHES + 1, graph.WARM_UP_LAUNCHES + 1)
