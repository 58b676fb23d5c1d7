"""Telemetry: NVML's bits in words, and what a GPU that cannot tell leaves in the record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kda_lab import runtime
from kda_lab.timing import telemetry


class FakeError(Exception):
    """NVML's error class."""


def fake_nvml(**changes: Any) -> SimpleNamespace:
    parts: dict[str, Any] = {
        "NVMLError": FakeError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x1 | 0x4,
        "nvmlDeviceGetClockInfo": lambda handle, which: {1: 1980, 2: 3201}[which],
        "nvmlDeviceGetPowerUsage": lambda handle: 312_500,
        "nvmlDeviceGetTemperature": lambda handle, which: 41,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: ["me", "another"],
    }
    return SimpleNamespace(**{**parts, **changes})


def fail(*arguments: object) -> None:
    raise FakeError("Not Supported")


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0x0, []),
        (0x1, []),
        (0x2 | 0x100, []),
        (0x4, ["sw_power_cap"]),
        (0x8 | 0x40, ["hw_slowdown", "hw_thermal_slowdown"]),
        (0x1 | 0x20 | 0x80, ["sw_thermal_slowdown", "hw_power_brake_slowdown"]),
        (0x8000, ["unknown_0x8000"]),
    ],
)
def test_throttle_bits_become_names(mask: int, names: list[str]) -> None:
    """Idle and clock settings are no throttling; every other bit is, an unknown one included."""
    assert telemetry.throttle_names(mask) == names


@given(st.integers(0, 2**16 - 1))
def test_every_bit_but_the_settings_counts(mask: int) -> None:
    """The number of names is the number of bits that are not settings."""
    assert len(telemetry.throttle_names(mask)) == bin(mask & ~telemetry.SETTING_BITS).count("1")


def test_constants_agree_with_the_bindings() -> None:
    """The bit values are those of the installed NVML bindings."""
    pynvml = pytest.importorskip("pynvml")
    assert telemetry.THROTTLE_BITS[pynvml.nvmlClocksEventReasonSwPowerCap] == "sw_power_cap"
    assert telemetry.THROTTLE_BITS[pynvml.nvmlClocksEventReasonHwThermalSlowdown] == "hw_thermal_slowdown"
    assert telemetry.SETTING_BITS & pynvml.nvmlClocksEventReasonGpuIdle
    assert telemetry.SETTING_BITS & pynvml.nvmlClocksEventReasonApplicationsClocksSetting


def test_reading_has_units_and_words() -> None:
    """A reading is in MHz, W and degrees, with throttle names and the other processes."""
    assert telemetry.read(fake_nvml(), "handle") == {
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "power_w": 312.5,
        "temperature_c": 41,
        "throttle": ["sw_power_cap"],
        "other_processes": 1,
        "reason": "",
    }


def test_missing_field_is_none_and_named() -> None:
    """A query that the GPU does not offer leaves None and a reason; the others stay."""
    found = telemetry.read(fake_nvml(nvmlDeviceGetPowerUsage=fail), "handle")
    assert found["power_w"] is None
    assert found["sm_clock_mhz"] == 1980
    assert found["reason"] == "power_w unavailable, because NVML says Not Supported"


def test_old_bindings_serve_the_throttle_query() -> None:
    """Bindings that only know the old name of the query are read too."""
    nvml = fake_nvml(nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x40)
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    assert telemetry.read(nvml, "handle")["throttle"] == ["hw_thermal_slowdown"]


def test_reader_without_nvml_returns_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bindings a reading is all None with the reason."""
    missing = runtime.OptionalModule("pynvml", None, "unavailable, because importing pynvml raised ImportError")
    monkeypatch.setattr(runtime, "import_optional", lambda name: missing)
    found = telemetry.reader(torch.device("cuda"))()
    assert found["reason"] == "unavailable, because importing pynvml raised ImportError"
    assert all(found[field] is None for field in telemetry.FIELDS)


def test_reader_on_a_dead_driver_returns_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that refuses NVML leaves the reason, not a crash."""
    nvml = runtime.OptionalModule("pynvml", fake_nvml(nvmlInit=fail), "")
    monkeypatch.setattr(runtime, "import_optional", lambda name: nvml)
    assert telemetry.reader(torch.device("cuda"))()["reason"] == "unavailable, because NVML says Not Supported"


def test_uuid_gets_its_prefix_once() -> None:
    """torch's UUID has no prefix, NVML's has."""
    assert telemetry.nvml_uuid("1234") == "GPU-1234"
    assert telemetry.nvml_uuid("GPU-1234") == "GPU-1234"
    assert telemetry.nvml_uuid("MIG-1234") == "MIG-1234"


def test_own_process_is_not_another() -> None:
    """The list holds this process once; an empty list, as in some containers, means no other."""
    assert [telemetry.other_processes(["p"] * n) for n in (0, 1, 3)] == [0, 0, 2]


def test_a_trial_with_company_or_limited_clocks_is_disturbed() -> None:
    """Either is named, clocks first; what cannot be read disturbs nothing."""
    quiet = {"throttle": [], "other_processes": 0}
    assert telemetry.disturbance(quiet) == ""
    assert telemetry.disturbance({"throttle": None, "other_processes": None}) == ""
    assert telemetry.disturbance({**quiet, "other_processes": 1}) == "shared: 1 other process on the GPU"
    assert telemetry.disturbance({**quiet, "other_processes": 3}) == "shared: 3 other processes on the GPU"
    assert telemetry.disturbance({"throttle": ["sw_power_cap"], "other_processes": 3}) == "throttled: sw_power_cap"


@pytest.mark.gpu
def test_reader_reads_a_real_gpu() -> None:
    """On a GPU the clocks are plausible and nothing raises."""
    found = telemetry.reader(torch.device("cuda", 0))()
    assert found["sm_clock_mhz"] > 100, found["reason"]
