"""The bench of a CUDA device, and its refusal elsewhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kda_lab.errors import UnavailableError
from kda_lab.projection import bench


def test_a_cpu_has_no_bench() -> None:
    """Nothing may be timed where kernels do not run on a GPU."""
    with pytest.raises(UnavailableError, match="not timed"):
        bench.cuda_bench(torch.device("cpu"))


def test_a_bench_takes_its_numbers_from_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates and L2 of the timing room; weights rotate over five times the L2; a limit of tokens by capability."""
    machine = SimpleNamespace(
        copy_gb_s=4300.0, l2_bytes=60, synchronise=lambda: None, release=lambda: None, clock=lambda: 1.0, provenance={"a": 1},
        current=None,
    )  # fmt: skip
    monkeypatch.setattr(bench, "machine_for", lambda device: machine)
    monkeypatch.setattr(bench, "CudaSideStream", lambda device: f"side of {device}")
    monkeypatch.setattr(bench.runtime, "capability", lambda device: (10, 0))
    monkeypatch.setattr(bench.traces, "profile", lambda replay, device: (replay, device))
    made = bench.cuda_bench(torch.device("cpu"))
    assert (made.copy_gb_s, made.l2_bytes, made.rotated_bytes) == (4300.0, 60, 300)
    assert (made.rule.side, made.rule.limit) == ("side of cpu", 128)
    assert {mode: timer.name for mode, timer in made.timers.items()} == {
        "graph": "cuda graph, events", "eager": "eager, events"
    }  # fmt: skip
    assert made.profile("replay") == ("replay", torch.device("cpu"))
