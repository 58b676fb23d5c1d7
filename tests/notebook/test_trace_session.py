"""A trace session checks every arm's calls, times them on a GPU, and ends in a verdict of no speed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_lab.notebook import Session, chain_run
from kda_lab.notebook.trace_session import TraceSession
from kda_lab.ops.protocol import Launcher
from kda_lab.timing.activity import Activity
from kda_lab.timing.chain.arms import ChainArm
from kda_lab.timing.machine import Machine

NOT_TIMED = "not timed (interpreter)"


@pytest.fixture
def opened(tmp_path: Path) -> TraceSession:
    """The smallest trace: two forwards of two calls, with torch in the place of both arms."""
    session = Session.open("test", str(tmp_path / "run"), "cpu")
    return TraceSession.open(
        session, "qsa.packed_decode", "tp2", size=(1, 2), kinds=("short", "short"), layers=(1, 1), seed=1
    )


class Arm:
    """A right arm in torch that the fake timer calls so fast."""

    source_sha256 = ""
    reads_live_lengths = True

    def __init__(self, name: str, op: Any, factor: float = 1.0) -> None:
        self.name, self.op, self.factor = name, op, factor

    def unavailable(self, device: torch.device) -> str:
        return ""

    def bind(self, calls: Sequence[Any]) -> list[Launcher]:
        return [lambda call=call: self._launch(call) for call in calls]

    def _launch(self, call: Any) -> None:
        call.outputs["out"].copy_(self.op.oracle.emulate(call)["out"] * self.factor)


def choose(trace: TraceSession, factor: float = 1.0) -> None:
    """A baseline and a candidate, wrong by a factor."""
    trace.arms = [ChainArm(Arm("slow", trace.op), "reference"), ChainArm(Arm("fast", trace.op, factor), "policy")]


class Timer:
    """Reports 900 us a pass, and 300 for the candidate."""

    name = "cuda graph, events"

    def prepare(self, launchers: Sequence[Any], calls: int) -> Launcher:
        self.us = calls * (300.0 if launchers[0].fast else 900.0)
        return lambda: [launch() for launch in launchers for _ in range(calls)] and None

    def sample_us(self, replay: Launcher, replays: int, warmup: int, while_busy: Callable[[], None]) -> list[float]:
        while_busy()
        return [self.us] * replays


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a CPU stand for a GPU: a fake timer, a tiny L2, a provenance without an interpreter."""
    quiet = {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "power_w": 300.0, "temperature_c": 40, "throttle": [],
             "other_processes": 0, "reason": ""}  # fmt: skip
    machine = Machine(
        device=torch.device("cpu"), l2_bytes=1000, memory_bytes=1 << 30, copy_gb_s=4300.0, read_gb_s=4200.0, timer=Timer(),
        telemetry=lambda: dict(quiet), profile=lambda launch, device: Activity(None, "unavailable, because it is a test"),
        provenance={"device": {"type": "cuda", "name": "Toy GPU", "uuid": "test", "interpreter": False}},
        synchronise=lambda: None, release=lambda: None,
    )  # fmt: skip
    monkeypatch.setattr(chain_run, "why_not_timed", lambda device: "")
    monkeypatch.setattr(chain_run, "machine_for", lambda device: machine)
    real = ChainArm.build

    def build(self: ChainArm, *given: Any, **named: Any) -> Any:
        chain = real(self, *given, **named)
        # The timer is told whose chain it times.
        object.__setattr__(chain, "fast", self.name == "fast")
        return chain

    monkeypatch.setattr(ChainArm, "build", build)


def test_a_cpu_run_is_checked_and_not_timed(opened: TraceSession) -> None:
    """Calls and bytes are told, every arm is judged, nothing is timed, and the verdict says so."""
    shown = opened.geometry().to_html()
    assert "tp2-B4-short, calls a forward" in shown and "calls of the trace" in shown
    choose(opened)
    assert opened.check().to_html().count("right") == 2
    assert {opened.time(5), opened.table(), opened.figure()} == {NOT_TIMED}
    verdict = opened.verdict()
    assert verdict.passed, verdict.failures
    assert verdict.sentence == f"pass: 2 of 2 traces of 4 calls right; {NOT_TIMED}"
    lines = (opened.session.run.path / "trace.jsonl").read_text().splitlines()
    assert [json.loads(line)["role"] for line in lines] == ["reference", "policy"]


def test_a_wrong_candidate_fails(opened: TraceSession) -> None:
    """Ten percent too much is a fault with its error and limit, and nothing checked is no pass."""
    assert not opened.verdict().passed
    choose(opened, factor=1.1)
    opened.check()
    verdict = opened.verdict()
    assert not verdict.passed
    assert any(text.startswith("fast: layer 0, tp2-B4-short: error is 0.1") for text in verdict.failures)


@pytest.mark.usefixtures("on_a_gpu")
def test_a_timed_run_gives_calls_and_totals(opened: TraceSession) -> None:
    """300 us a pass of four calls are 75 us a call, three times as fast; the figure is in the folder."""
    choose(opened)
    opened.check()
    assert opened.time(2).startswith("6 records of traces")
    table = opened.table()
    assert not isinstance(table, str)
    shown = table.to_html()
    assert all(word in shown for word in ("75.0", "300.0", "3.00 [3.00, 3.00]", "faster", "baseline again (A/A)"))
    against = opened.table(against="fast")
    assert not isinstance(against, str)
    assert "0.333" in against.to_html()
    opened.figure()
    assert (opened.session.run.path / "trace.svg").is_file()
    verdict = opened.verdict()
    assert verdict.passed, verdict.failures
    assert verdict.sentence == "pass: 2 of 2 traces of 4 calls right; fast 75 µs a call (faster)"


def test_arms_have_the_roles_of_a_chain(opened: TraceSession) -> None:
    """Candidates are compared with the first baseline; further ones are peers."""
    shown = opened.choose_arms(["grouped"], ["per_head", "flashinfer_ragged_fa2"]).to_html()
    assert "FlashInfer needs a CUDA device" in shown
    assert [(a.name, a.role) for a in opened.arms] == [
        ("grouped", "policy"),
        ("per_head", "reference"),
        ("flashinfer_ragged_fa2", "peer"),
    ]
