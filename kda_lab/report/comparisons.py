"""Summaries of a run's times: against the baseline, and candidates again against each peer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kda_lab.errors import KdaLabError
from kda_lab.report import grouping
from kda_lab.report.records import RunRecords, first_line
from kda_lab.timing.protocol import mode_of
from kda_lab.timing.statistics import RowResult, summarise

NOT_SUMMARISED = (KdaLabError, ValueError, TypeError, KeyError, ZeroDivisionError)
"""What records of another protocol raise, or those with a field missing or of the wrong type."""


def not_summarised(file: str, error: Exception) -> str:
    """The problem of a file whose records cannot be summarised, for the page."""
    return f"{file}: cannot be summarised: {type(error).__name__}: {first_line(error)}"


@dataclass(frozen=True)
class Comparisons:
    """The same times, divided by one arm after the other."""

    rows: tuple[RowResult, ...]
    """Against the baseline, rows of the cold protocol; empty where nothing was timed."""
    against_peers: dict[str, tuple[RowResult, ...]]
    """Peer to rows whose ratios divide the peer's time."""
    problems: tuple[str, ...] = ()
    labelled: tuple[RowResult, ...] = ()
    """Against the baseline, rows of other modes: `… (eight sets)`. They have times and ratios, no verdict."""

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
    lines = [line for line in records.timing if line["kind"] in ("timing", "refused")]
    cold = [line for line in lines if mode_of(str(line.get("row", ""))) == "cold"]
    others = [line for line in lines if mode_of(str(line.get("row", ""))) != "cold"]
    try:
        rows = tuple(summarise(cold))
        peers = grouping.arms((r for r in rows if r.arm_us), ("peer",)) if grouping.arms(rows, ("candidate",)) else []
        return Comparisons(rows, {peer: _against(cold, peer) for peer in peers}, labelled=tuple(summarise(others)))
    # Expected: records of another protocol, or with a field of the wrong type; the page shows what else there is.
    except NOT_SUMMARISED as error:
        return Comparisons((), {}, (not_summarised("timing.jsonl", error),))


def _against(lines: Sequence[dict[str, Any]], peer: str) -> tuple[RowResult, ...]:
    """Rows that divide the peer's time; other peers are left out, since how peers stand to one another is not asked."""
    return tuple(summarise([r for r in lines if r["role"] != "peer" or r["arm"] == peer], baseline=peer))
