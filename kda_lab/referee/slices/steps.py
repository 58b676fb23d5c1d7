"""Cut a trace into decode steps at a marker kernel, and each step into the slice between two of its markers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise

from kda_lab.errors import Reason, RefereeError
from kda_lab.referee.slices.kernel_list import Kernel, KernelList, refusal


@dataclass(frozen=True)
class Marker:
    """Which kernel marks, how often a step, and which two of its launches bound the slice.

    Raises:
        RefereeError: a number is out of range.
    """

    name: str
    """The whole name of a kernel, or a part that only one kernel's name has."""
    per_step: int
    """Launches of the marker in one decode step: the MoE layers of the model, say."""
    first: int
    """The slice begins with the start of this launch, counted from 0 within the step."""
    last: int
    """The slice ends before the start of this one; `per_step` is the first launch of the next step."""

    def __post_init__(self) -> None:
        rules = (
            ("marker", self.name, bool(self.name.strip()), "a kernel's name"),
            ("per_step", self.per_step, self.per_step >= 1, "1 or more"),
            ("first", self.first, 0 <= self.first < self.per_step, f"0 to {self.per_step - 1}, below per_step"),
            ("last", self.last, self.first < self.last <= self.per_step, f"{self.first + 1} to {self.per_step}"),
        )
        wrong = [Reason(field, repr(given), allowed) for field, given, right, allowed in rules if not right]
        if wrong:
            raise RefereeError("referee", wrong)


@dataclass(frozen=True)
class Slice:
    """The same few layers in one decode step."""

    step: int
    """Counted from 0."""
    start_ns: int
    end_ns: int
    kernels: tuple[Kernel, ...]
    """Those that start in [start_ns, end_ns), in order of start."""
    carried_in: tuple[Kernel, ...]
    """Those that began before and were still running at start_ns."""
    launches: tuple[int, ...]
    """Kernels between one marker of the slice and the next."""


@dataclass(frozen=True)
class Slicing:
    """The slices of one trace."""

    source: str
    marker: Marker
    marker_name: str
    """The marker's whole name in this trace."""
    device: int
    slices: tuple[Slice, ...]

    @property
    def uneven_steps(self) -> tuple[int, ...]:
        """Steps whose kernels between the slice's markers are not as many as in most steps."""
        common = _commonest(self.slices)[0]
        return tuple(s.step for s in self.slices if s.launches != common)


def slice_trace(trace: KernelList, marker: Marker, device: int | None = None) -> Slicing:
    """The slice of every decode step of one device.

    Args:
        trace: kernels of one profile.
        marker: what bounds steps and slices.
        device: the trace's lowest when None.

    Raises:
        RefereeError: no such device; the marker is missing, ambiguous or not a multiple of per_step; or most
            steps do not repeat each other, so that per_step cannot be right.
    """
    if device is None:
        device = trace.devices[0]
    if device not in trace.devices:
        raise refusal(trace.source, "device", device, ", ".join(map(str, trace.devices)))
    kernels = [k for k in trace.kernels if k.device == device]
    name = _marker_name(trace.source, kernels, marker.name)
    marks = [index for index, kernel in enumerate(kernels) if kernel.name == name]
    if len(marks) % marker.per_step:
        allowed = f"a positive multiple of per_step, {marker.per_step}"
        remedy = "The profile must hold whole steps, and per_step be the marker's launches in one of them."
        raise refusal(trace.source, f"launches of {name!r}", len(marks), allowed, remedy)
    found = _cut(kernels, marks, marker)
    if not found:
        remedy = "The last step has no step after it: profile two, or end the slice within the step."
        raise refusal(trace.source, "last", marker.last, f"below {marker.per_step} for a trace of one step", remedy)
    _check_repetition(trace.source, found, marker)
    return Slicing(trace.source, marker, name, device, found)


def _marker_name(source: str, kernels: Sequence[Kernel], wanted: str) -> str:
    names = {k.name for k in kernels}
    if wanted in names:
        return wanted
    found = sorted(n for n in names if wanted in n)
    if len(found) > 1:
        raise refusal(source, f"kernels whose name holds {wanted!r}", found[:6], "one name", "Give the whole name.")
    if not found:
        near = get_close_matches(wanted, sorted(names), 4, 0.4) or [
            n for n, _ in Counter(k.name for k in kernels).most_common(4)
        ]
        raise refusal(source, "marker", wanted, f"a kernel of this trace, such as {', '.join(near)}")
    return found[0]


def _cut(kernels: Sequence[Kernel], marks: Sequence[int], marker: Marker) -> tuple[Slice, ...]:
    starts = [k.start_ns for k in kernels]
    # The latest end of all kernels up to each one: how far back one may have to look for what still runs.
    reach: list[int] = []
    for kernel in kernels:
        reach.append(max(kernel.end_ns, reach[-1]) if reach else kernel.end_ns)
    made = []
    for step in range(len(marks) // marker.per_step):
        bounds = marks[step * marker.per_step + marker.first : step * marker.per_step + marker.last + 1]
        if len(bounds) <= marker.last - marker.first:
            break
        # A kernel may start at the very nanosecond of a marker: the interval decides, not the place in the list.
        edges = [bisect_left(starts, starts[index]) for index in bounds]
        low, high = edges[0], edges[-1]
        carried = []
        earlier = low - 1
        while earlier >= 0 and reach[earlier] > starts[low]:
            if kernels[earlier].end_ns > starts[low]:
                carried.append(kernels[earlier])
            earlier -= 1
        launches = tuple(after - before for before, after in pairwise(edges))
        inside = tuple(kernels[low:high])
        made.append(Slice(step, starts[low], starts[bounds[-1]], inside, tuple(reversed(carried)), launches))
    return tuple(made)


def _commonest(slices: Sequence[Slice]) -> tuple[tuple[int, ...], int]:
    return Counter(s.launches for s in slices).most_common(1)[0]


def _check_repetition(source: str, slices: Sequence[Slice], marker: Marker) -> None:
    count = _commonest(slices)[1]
    if 2 * count <= len(slices) and len(slices) > 1:
        counts = [sum(s.launches) for s in slices][:8]
        allowed = "one number in more than half of the steps"
        remedy = f"per_step {marker.per_step} may be wrong, or the profile begins within a step."
        raise refusal(source, "kernels between the slice's markers, step by step", counts, allowed, remedy)
