"""Proof of what ran: counting the profiler's device events, and saying so when there are none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.timing import activity

CPU, CUDA = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA


def event(name: str, device_type: Any = CUDA, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(name=name, device_type=device_type, **more)


class FakeProfile:
    """Stands in for torch.profiler.profile."""

    def __init__(self, events: list[Any], error: str = "") -> None:
        self.found, self.error = events, error

    def __enter__(self) -> FakeProfile:
        if self.error:
            raise RuntimeError(self.error)
        return self

    def __exit__(self, *arguments: object) -> None:
        return None

    def events(self) -> list[Any]:
        return self.found


@pytest.fixture
def profile_with(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(events: list[Any], error: str = "") -> None:
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.profiler, "profile", lambda activities, acc_events: FakeProfile(events, error))

    return install


def test_kernels_copies_and_fills_count_by_name() -> None:
    """Device events are counted by name; host operators, annotations and the profiler's own events are not."""
    events = [
        event("combine"),
        event("split"),
        event("split"),
        event("Memcpy DtoD (Device -> Device)"),
        event("Memset (Device)"),
        event("aten::copy_", CPU),
        event("my range", is_user_annotation=True),
        event("Activity Buffer Request"),
        event("Stream Sync"),
    ]
    assert activity.count_activities(events) == {
        "Memcpy DtoD (Device -> Device)": 1,
        "Memset (Device)": 1,
        "combine": 1,
        "split": 2,
    }


def test_one_call_is_warmed_up_and_profiled(profile_with: Any) -> None:
    """The call runs once before the profiler and once within it."""
    profile_with([event("split")])
    launches: list[int] = []
    assert activity.profile_call(lambda: launches.append(1), torch.device("cpu")) == activity.Activity({"split": 1})
    assert len(launches) == 2


def test_silent_profiler_is_a_reason(profile_with: Any) -> None:
    """A profiler that saw nothing on the device leaves None and says so."""
    profile_with([event("aten::copy_", CPU)])
    found = activity.profile_call(lambda: None, torch.device("cpu"))
    assert found.kernels is None
    assert found.reason == "unavailable, because the profiler recorded no device activity of this call"


def test_broken_profiler_is_a_reason(profile_with: Any) -> None:
    """A profiler that raises leaves None and its first line."""
    profile_with([], error="CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\nmore")
    found = activity.profile_call(lambda: None, torch.device("cpu"))
    assert found.kernels is None
    assert found.reason == (
        "unavailable, because the profiler raised RuntimeError: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
    )


@pytest.mark.gpu
def test_real_profiler_sees_one_kernel_of_one_add() -> None:
    """On a GPU an element-wise add is one kernel, or the record says why it was not seen."""
    x = torch.ones(1024, device="cuda")
    found = activity.profile_call(lambda: x.add_(1), torch.device("cuda", 0))
    assert (found.kernels is None and found.reason) or sum(found.kernels.values()) == 1


def test_long_names_are_cut() -> None:
    """A name full of template arguments is cut to 120 characters with an ellipsis; its launches still count."""
    found = activity.count_activities([event("k" * 300), event("k" * 300), event("k" * 120)])
    assert found == {"k" * 119 + "…": 2, "k" * 120: 1}
