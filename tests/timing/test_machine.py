"""The machine: what may be timed at all."""

from __future__ import annotations

import pytest
import torch

from kda_lab import runtime
from kda_lab.errors import UnavailableError
from kda_lab.timing import machine


def test_interpreter_is_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the interpreter on, even a GPU is not timed."""
    monkeypatch.setattr(runtime, "interpreter_on", lambda: True)
    assert machine.why_not_timed(torch.device("cuda", 0)) == "not timed (interpreter)"


def test_cpu_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the interpreter a CPU is refused for want of a GPU, and a GPU is not refused."""
    monkeypatch.setattr(runtime, "interpreter_on", lambda: False)
    assert machine.why_not_timed(torch.device("cpu")) == "not timed (no GPU)"
    assert machine.why_not_timed(torch.device("cuda", 0)) == ""


def test_machine_of_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for the machine of a CPU raises with device, allowed and remedy."""
    monkeypatch.setattr(runtime, "interpreter_on", lambda: False)
    with pytest.raises(
        UnavailableError, match=r"not timed \(no GPU\): device is 'cpu'; allowed: a CUDA device\. Run on"
    ):
        machine.machine_for(torch.device("cpu"))


@pytest.mark.gpu
def test_machine_of_a_gpu_knows_its_l2_and_copy_rate() -> None:
    """On a GPU the parts of the machine are filled in."""
    found = machine.machine_for(torch.device("cuda", 0))
    assert found.l2_bytes > 1 << 20
    assert found.copy_gb_s > 100
    assert found.timer.name == "cuda graph, events"
    assert found.provenance["device"]["uuid"]
