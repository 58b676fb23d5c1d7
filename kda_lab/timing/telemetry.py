"""Telemetry through NVML: clocks, power, temperature, throttle reasons and other processes of one GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from kda_lab import runtime

THROTTLE_BITS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Clock limits that make a trial slower than the trials beside it: such a trial is dropped."""

SETTING_BITS = 0x1 | 0x2 | 0x100
"""Idle, application clocks and display clock: settings that hold for every trial alike, so no throttling."""

FIELDS = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "throttle", "other_processes")

Telemetry = Callable[[], dict[str, Any]]
"""Reads the GPU once: the fields of `FIELDS` plus `reason` (empty when everything could be read)."""


def throttle_names(mask: int) -> list[str]:
    """Names of the throttle reasons in NVML's bit mask; an unknown bit counts and is named by its number."""
    names = []
    for bit in (1 << position for position in range(mask.bit_length())):
        if mask & bit and not bit & SETTING_BITS:
            names.append(THROTTLE_BITS.get(bit, f"unknown_{bit:#x}"))
    return names


def unreadable(reason: str) -> dict[str, Any]:
    """The record of telemetry that could not be read: every field None, and why."""
    return {**dict.fromkeys(FIELDS), "reason": reason}


def reader(device: torch.device) -> Telemetry:
    """A telemetry reader of one CUDA device; without NVML it returns the reason, and never raises."""
    nvml = runtime.import_optional("pynvml")
    if nvml.module is None:
        return lambda: unreadable(nvml.reason)
    module = nvml.module
    try:
        module.nvmlInit()
        handle = module.nvmlDeviceGetHandleByUUID(nvml_uuid(str(torch.cuda.get_device_properties(device).uuid)))
    except module.NVMLError as error:
        reason = f"unavailable, because NVML says {error}"
        return lambda: unreadable(reason)
    return lambda: read(module, handle)


def nvml_uuid(uuid: str) -> str:
    """NVML's spelling of a device's UUID: torch leaves the prefix `GPU-` out."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def read(nvml: ModuleType, handle: object) -> dict[str, Any]:
    """Read one GPU. Clocks and throttle reasons come first, since they fall off first when work ends.

    A field that this GPU or driver does not offer is None and named in `reason`.
    """
    queries: dict[str, Callable[[], Any]] = {
        "throttle": lambda: throttle_names(int(_throttle_query(nvml)(handle))),
        "sm_clock_mhz": lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "memory_clock_mhz": lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "temperature_c": lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "other_processes": lambda: other_processes(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    }
    found, missing = unreadable(""), []
    for field, query in queries.items():
        try:
            found[field] = query()
        except nvml.NVMLError as error:
            missing.append(f"{field} unavailable, because NVML says {error}")
    found["reason"] = "; ".join(missing)
    return found


def _throttle_query(nvml: ModuleType) -> Callable[[object], int]:
    # Newer bindings renamed the query; the old name is the only one in bindings before 12.
    new = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return new if new is not None else nvml.nvmlDeviceGetCurrentClocksThrottleReasons


def other_processes(processes: Sequence[object]) -> int:
    """How many compute processes besides this one hold the GPU.

    One entry is always this process, whose context is open while it times. Ids are not compared:
    inside a container NVML may list the host's numbers.
    """
    return max(0, len(processes) - 1)


def disturbance(reading: Mapping[str, Any]) -> str:
    """Why a trial with this reading does not count: a limited clock, or company on the GPU; empty when neither is known."""
    if reading["throttle"]:
        return f"throttled: {', '.join(reading['throttle'])}"
    others = reading["other_processes"] or 0
    return f"shared: {others} other process{'es' if others > 1 else ''} on the GPU" if others > 0 else ""
