"""The one form in which every trace is read: kernels with a name, a device, a stream, a start and a duration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kda_lab.errors import Reason, RefereeError
from kda_lab.referee.readers.text import shown

NS_PER_US = 1000
STREAM_OVERLAP_LIMIT = 8
"""How many times over the durations of one stream may fill its time. A stream runs one kernel after another;
programmatic dependent launch lets neighbours overlap, which makes it at most about two."""
STREAM_KERNELS = 20
"""Kernels a stream needs before its overlap says anything about units."""


class Kernel(NamedTuple):
    """One kernel as it ran."""

    name: str
    device: int
    stream: int
    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True)
class KernelList:
    """The kernels of one trace in order of their start, checked.

    Attributes:
        source: file that they were read from.
        kernels: sorted by start, then stream; at least one, none twice, no duration below zero.
    """

    source: str
    kernels: tuple[Kernel, ...]

    @classmethod
    def of(cls, source: str, kernels: Iterable[Kernel]) -> KernelList:
        """Sort and check kernels.

        Raises:
            RefereeError: there is none, one has a negative duration or stands twice, or starts and durations cannot be
                in the same unit.
        """
        ordered = tuple(sorted(kernels, key=lambda k: (k.start_ns, k.device, k.stream, k.duration_ns, k.name)))
        if not ordered:
            raise refusal(source, "kernels", 0, "at least one", "Profile with CUDA activities on.")
        _check_each(source, ordered)
        _check_units(source, ordered)
        return cls(source, ordered)

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices on which a kernel ran, ascending."""
        return tuple(sorted({k.device for k in self.kernels}))


def refusal(source: str, field: str, given: Any, allowed: str, remedy: str = "") -> RefereeError:
    """The error of a trace: names the file, the field, what was found and what is allowed."""
    return RefereeError("referee", [Reason(f"{source}: {field}", shown(repr(given)), allowed, remedy)])


def _check_each(source: str, ordered: tuple[Kernel, ...]) -> None:
    for index, kernel in enumerate(ordered):
        if kernel.duration_ns < 0:
            field = f"duration of kernel {kernel.name!r} at {kernel.start_ns} ns, in ns"
            raise refusal(source, field, kernel.duration_ns, "0 or more")
        if index and kernel == ordered[index - 1]:
            field = f"kernel {kernel.name!r} at {kernel.start_ns} ns on stream {kernel.stream}, times it is listed"
            raise refusal(source, field, 2, "1", "Two profiles may have been joined: read each alone.")


def _check_units(source: str, ordered: tuple[Kernel, ...]) -> None:
    streams: dict[tuple[int, int], list[Kernel]] = defaultdict(list)
    for kernel in ordered:
        streams[kernel.device, kernel.stream].append(kernel)
    for (device, stream), members in sorted(streams.items()):
        span = max(k.end_ns for k in members) - members[0].start_ns
        summed = sum(k.duration_ns for k in members)
        if len(members) >= STREAM_KERNELS and summed > STREAM_OVERLAP_LIMIT * span:
            field = f"summed durations of device {device} stream {stream}, over its time from first start to last end"
            remedy = "Starts and durations are in different units: give both in one."
            raise refusal(source, field, round(summed / max(span, 1), 1), f"at most {STREAM_OVERLAP_LIMIT}", remedy)
