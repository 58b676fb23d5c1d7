"""Lines that a policy asked the L2 to keep are given back, or it is said why not."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from kda_lab import runtime
from kda_lab.runtime import OptionalModule
from kda_lab.timing.chain.persisting import reset_persisting_lines

GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let torch believe in a device that is idle."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return monkeypatch


def driver(status: str) -> SimpleNamespace:
    """A driver whose reset returns `status`."""
    return SimpleNamespace(
        cuCtxResetPersistingL2Cache=lambda: (status,), CUresult=SimpleNamespace(CUDA_SUCCESS="success")
    )


def test_a_cpu_has_nothing_to_reset() -> None:
    """The reason names the device."""
    assert reset_persisting_lines(torch.device("cpu")).startswith("unavailable, because a cpu has no L2")


@pytest.mark.parametrize(
    ("status", "words"),
    [("success", ""), ("failed", "unavailable, because cuCtxResetPersistingL2Cache returned failed")],
)
def test_the_driver_is_asked(gpu: pytest.MonkeyPatch, status: str, words: str) -> None:
    """Its success is silent, anything else a reason."""
    gpu.setattr(runtime, "import_optional", lambda name: OptionalModule(name, driver(status), ""))  # type: ignore[arg-type]
    assert reset_persisting_lines(GPU) == words


def test_without_bindings_it_says_so(gpu: pytest.MonkeyPatch) -> None:
    """The reason of the missing package is handed on."""
    gpu.setattr(runtime, "import_optional", lambda name: OptionalModule(name, None, f"unavailable, because {name}"))
    assert reset_persisting_lines(GPU) == "unavailable, because cuda.bindings.driver"


@pytest.mark.gpu
def test_a_gpu_gives_lines_back() -> None:
    """On a real device with bindings the reset succeeds."""
    torch.cuda.init()
    assert reset_persisting_lines(torch.device("cuda", torch.cuda.current_device())) == ""
