"""A tap under threads: every call is counted once and every capture is whole."""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kda_lab.captures.recorder import record
from kda_lab.captures.store import CaptureSet
from kda_lab.captures.tap import Statistics

OUTCOMES = (
    "recorded sampled_out in_graph_capture nested duplicates over_quota target_raised failed".split()  # noqa: SIM905
)


def test_threads_record_each_call_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads of ten different calls give forty captures that all verify."""
    host = ModuleType("threaded_program")
    host.negate = lambda x: -x  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "threaded_program", host)
    failures = []

    def work(number: int) -> None:
        for i in range(10):
            x = torch.full((3,), float(10 * number + i))
            if not torch.equal(host.negate(x), -x):
                failures.append(x)

    with record("threaded_program.negate", op="test.op", directory=tmp_path / "live") as tap:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    captures = CaptureSet.open(tap.path)
    values = sorted(captures.load(name).call.inputs["x"][0].item() for name in captures.names())
    assert values == [float(i) for i in range(40)] and not failures
    assert captures.verify() == []
    assert tap.statistics.seen == sum(asdict(tap.statistics)[name] for name in OUTCOMES) == 40


def test_every_outcome_is_a_counter() -> None:
    """The statistics name every way a call can end, and start at zero."""
    assert all(asdict(Statistics())[name] == 0 for name in OUTCOMES)
