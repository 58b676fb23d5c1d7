"""Summaries of a run's times: against the baseline, and candidates again against each peer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kda_lab.errors import KdaLabError
from kda_lab.report import grouping
from kda_lab.report.records import RunRecords, first_line
from kda_lab.timing.statistics import RowResult, summarise


@dataclass(frozen=True)
class Comparisons:
    """The same times, divided by one arm after the other."""

    rows: tuple[RowResult, ...]
    """Against the baseline; empty where nothing was timed."""
    against_peers: dict[str, tuple[RowResult, ...]]
    """Peer to rows whose ratios divide the peer's time."""
    problems: tuple[str, ...] = ()

    @property
    def all(self) -> list[tuple[RowResult, ...]]:
        return [self.rows, *self.against_peers.values()]

    @property
    def strongest_peer(self) -> str:
        """The peer with the most rows timed cold, among those the one with the least geometric mean time; or empty."""
        standing = []
        for peer in self.against_peers:
            cold = [r.arm_us for r in self.rows if r.arm == peer and r.state == "cold" and r.arm_us]
            if cold:
                standing.append((-len(cold), math.fsum(math.log(t) for t in cold) / len(cold), peer))
        return min(standing)[2] if standing else ""


def compare(records: RunRecords) -> Comparisons:
    """Summarise a run's timing records; what cannot be summarised becomes a problem, not a crash."""
    lines = list(records.timing)
    try:
        rows = tuple(summarise(lines))
        peers = grouping.arms((r for r in rows if r.arm_us), ("peer",)) if grouping.arms(rows, ("candidate",)) else []
        return Comparisons(rows, {peer: tuple(summarise(lines, baseline=peer)) for peer in peers})
    # Expected: records of another protocol, or with a field of the wrong type; the page shows what else there is.
    except (KdaLabError, ValueError, TypeError, KeyError, ZeroDivisionError) as error:
        return Comparisons(
            (), {}, (f"timing.jsonl: cannot be summarised: {type(error).__name__}: {first_line(error)}",)
        )
