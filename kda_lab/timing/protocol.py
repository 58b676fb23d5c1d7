"""The timing protocol as data: how many input sets, calls, replays and trials, and in which order."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal

from kda_lab.errors import ParameterError, Reason, TimingError

COLD_L2_MULTIPLE = 5.0
"""A time is cold only when the rotated bytes are at least this many times the L2."""


Mode = Literal["cold", "warm", "eager", "eight"]
SUFFIXES: dict[Mode, str] = {"cold": "", "warm": " (warm L2)", "eager": " (eager)", "eight": " (eight sets)"}
"""What the label of a row gets, so that times of different modes never stand in one row."""
EIGHT = 8
"""Input sets of the mode `eight`, whatever the L2 holds."""


def mode_of(label: str) -> Mode:
    """The mode in which a row with this label was timed."""
    found: list[Mode] = [mode for mode, suffix in SUFFIXES.items() if suffix and label.endswith(suffix)]
    return found[0] if found else "cold"


def plain_label(label: str) -> str:
    """The label without its mode: what rows of one case have in common."""
    return label.removesuffix(SUFFIXES[mode_of(label)])


@dataclass(frozen=True)
class Protocol:
    """The numbers of protocol v1. Another value in any field shows in `label`, which every record carries."""

    name: str = "v1"
    mode: Mode = "cold"
    """`cold`: rotated graphs, the only mode with verdicts. The others make labelled rows of their own."""
    trials: int = 5
    """Good trials an arm needs for a verdict; each trial has its own allocations and its own graph."""
    spare_trials: int = 2
    """Trials that may be added where one was dropped."""
    l2_multiple: float = COLD_L2_MULTIPLE
    """Bytes to rotate over, in multiples of the L2. Below 5 the time is warm and gets no verdict."""
    minimum_sets: int = 2
    min_graph_us: float = 1000.0
    """Least work in one graph, so that the launch of the graph itself (5 to 7 us) does not count."""
    warmup_replays: int = 2
    replays: int = 5
    """Timed replays a trial; each gives one sample."""
    max_calls_per_graph: int = 16384
    """More launches than this take too long to capture; a row that needs more sets stays warm."""
    memory_share: float = 0.4
    """Part of the device's memory that the input sets of one arm may take."""
    max_graph_us: float = math.inf
    """A slow call gets fewer input sets than a cold time needs, so that one graph stays below this; its row is then `warm`."""
    copy_allowance: float = 1.02
    """Bandwidth above this many times the measured memory rate cannot come from memory: the time is warm.

    The 2 % are the uncertainty of that measurement: docs/decisions/0001-cold-ceiling.md.
    """
    resamples: int = 5000
    confidence: float = 0.95
    seed: int = 20261129

    def __post_init__(self) -> None:
        reasons = [
            Reason(name, repr(getattr(self, name)), f"at least {least}")
            for name, least in _LEAST.items()
            if not getattr(self, name) >= least
        ]
        if self.mode not in SUFFIXES:
            reasons.append(Reason("mode", repr(self.mode), ", ".join(SUFFIXES)))
        if not 0 < self.memory_share < 1:
            reasons.append(Reason("memory_share", repr(self.memory_share), "more than 0 and less than 1"))
        if not 0 < self.confidence < 1:
            reasons.append(Reason("confidence", repr(self.confidence), "more than 0 and less than 1"))
        if reasons:
            raise ParameterError("timing", reasons)

    @property
    def label(self) -> str:
        """The name, with every field that differs from v1: `v1` or `v1 (trials=3)`."""
        changed = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name not in ("name", "mode") and getattr(self, f.name) != f.default
        ]
        return f"{self.name} ({', '.join(changed)})" if changed else self.name

    def warm(self) -> Protocol:
        """This protocol on one input set, which stays in the L2 where it fits."""
        return replace(self, name=f"{self.name}-warm", mode="warm", l2_multiple=0.0, minimum_sets=1)

    def eager(self) -> Protocol:
        """This protocol with launches from the host instead of a graph."""
        return replace(self, name=f"{self.name}-eager", mode="eager")

    def eight(self) -> Protocol:
        """Exactly eight input sets in one graph: the protocol of the source thread of `nvfp4.gemm`.

        Eight sets of a small call fit in a large L2, so its times are compared with that thread's and with
        nothing else: rows of their own, without a verdict.
        """
        return replace(self, name="thread-eight", mode="eight", l2_multiple=0.0, minimum_sets=EIGHT)

    def in_mode(self, mode: Mode) -> Protocol:
        """This protocol in another mode.

        Raises:
            ParameterError: there is no such mode.
        """
        if mode not in SUFFIXES:
            raise ParameterError("timing", [Reason("mode", repr(mode), ", ".join(SUFFIXES))])
        return self if mode == "cold" else {"warm": self.warm, "eager": self.eager, "eight": self.eight}[mode]()


_LEAST = {
    "trials": 1,
    "spare_trials": 0,
    "l2_multiple": 0.0,
    "minimum_sets": 1,
    "min_graph_us": 0.0,
    "warmup_replays": 0,
    "replays": 1,
    "max_calls_per_graph": 1,
    "max_graph_us": 0.0,
    "copy_allowance": 0.0,
    "resamples": 100,
    "seed": 0,
}


@dataclass(frozen=True)
class CallSize:
    """What one call needs and what the device has, all in bytes."""

    bytes_per_call: int
    """Least bytes a call moves: the work model's `bytes_moved`."""
    footprint_bytes: int
    """Memory that one input set takes, outputs included."""
    l2_bytes: int
    memory_bytes: int
    """Memory of the device."""


@dataclass(frozen=True)
class SetPlan:
    """How one arm's graph is built; with the bytes it rotates over, the record proves that the time is cold."""

    input_sets: int
    calls_per_graph: int
    """A multiple of `input_sets`: every set is used equally often."""
    bytes_rotated: int


def plan_sets(size: CallSize, estimate_us: float, protocol: Protocol) -> SetPlan:
    """Choose the input sets and the calls of one graph.

    Args:
        size: bytes of one call and of the device.
        estimate_us: time of one call; too small an estimate only makes the graph longer.
        protocol: the limits.

    Raises:
        TimingError: the sets do not fit into the protocol's share of the device's memory, or the
            work model says that a call moves no bytes.
    """
    if size.bytes_per_call <= 0:
        raise TimingError(
            "timing",
            [Reason("bytes_per_call", repr(size.bytes_per_call), "more than 0", "Correct the op's work model.")],
        )
    wanted = max(protocol.minimum_sets, math.ceil(protocol.l2_multiple * size.l2_bytes / size.bytes_per_call))
    within_time = max(protocol.minimum_sets, int(min(protocol.max_graph_us / max(estimate_us, 1e-3), wanted)))
    sets = min(within_time, protocol.max_calls_per_graph)
    _require_memory(sets, size, protocol)
    calls_for_time = math.ceil(protocol.min_graph_us / max(estimate_us, 1e-3))
    rounds = max(1, min(math.ceil(calls_for_time / sets), protocol.max_calls_per_graph // sets))
    return SetPlan(sets, sets * rounds, sets * size.bytes_per_call)


def _require_memory(sets: int, size: CallSize, protocol: Protocol) -> None:
    taken, allowed = sets * size.footprint_bytes, int(protocol.memory_share * size.memory_bytes)
    if taken > allowed:
        given = f"{sets} sets of {size.footprint_bytes} bytes, {taken} bytes in all"
        limit = f"at most {allowed} bytes ({protocol.memory_share:.0%} of the device's memory)"
        raise TimingError("timing", [Reason("input_sets", given, limit, "Time a smaller row or use a larger device.")])


def order_of(trial: int, arms: int) -> list[int]:
    """Positions of the arms in one trial: forward in even trials, backward in odd ones (A B C, C B A)."""
    forward = list(range(arms))
    return forward if trial % 2 == 0 else forward[::-1]
