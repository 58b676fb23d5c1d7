"""What a page says of a run that timed a chain: results in every place, findings, and its own short table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kda_lab.report.comparisons import NOT_SUMMARISED, not_summarised
from kda_lab.report.pipeline_figure import check_table, pipeline_table
from kda_lab.report.records import RunRecords
from kda_lab.report.tables import Table
from kda_lab.timing.chain.comparison import CHAIN, compare, findings, recorded_protocol
from kda_lab.timing.protocol import Protocol
from kda_lab.timing.statistics import RowResult

PLACES = (
    "Layers one after another in one CUDA graph, with state between their products, and the same products each in a loop "
    "of its own. Of a single product only a win is told that its layer does not show."
)

NO_CHECKS = check_table(())


@dataclass(frozen=True)
class ChainPart:
    """The chain of a run; everything is empty where none was timed."""

    results: tuple[RowResult, ...] = ()
    """As `timing.chain.comparison.compare` gives them, by the trials that the records name."""
    timed: tuple[dict[str, Any], ...] = ()
    """Trials of chains: lines of chain.jsonl."""
    checks: Table = NO_CHECKS
    notes: tuple[str, ...] = ()
    """What a reader must know before the verdicts."""
    problems: tuple[str, ...] = ()

    @property
    def table(self) -> Table:
        """Every arm in every place."""
        return pipeline_table(self.results)

    @property
    def short(self) -> Table:
        """Policies, baseline and peers in the chain alone, as the top of the page shows them."""
        inside = pipeline_table(
            [r for r in self.results if r.row == CHAIN and r.role in ("policy", "baseline", "peer")]
        )
        reference = next((r.baseline for r in self.results if r.baseline), "the reference")
        return replace(inside, caption=f"In the chain, in short: µs of one layer against {reference}.")

    @property
    def findings(self) -> list[str]:
        """What became of each policy's isolated result."""
        return findings(self.results)

    @property
    def speedups(self) -> list[dict[str, Any]]:
        """Ratios of the policies in the chain that have a verdict, as the index shows speedups."""
        judged = [r for r in self.results if r.row == CHAIN and r.role == "policy" and r.verdict and r.ratio]
        return [
            {"arm": f"{r.arm} in the chain", "baseline": r.baseline, "geomean": r.ratio, "minimum": r.ratio, "count": 1}
            for r in judged
        ]


def chain_part(records: RunRecords) -> ChainPart:
    """Compare a run's chain with its isolated products; what cannot be compared becomes a problem, not a crash."""
    checks = check_table(records.chain)
    timed = tuple(records.chained)
    if not timed:
        return ChainPart(checks=checks)
    protocol = recorded_protocol(timed)
    isolated = [r for r in records.timing if r["kind"] in ("timing", "refused")]
    try:
        results = tuple(compare(records.chain, isolated, protocol=protocol))
    # Expected: isolated records of another protocol, or with a field missing or of the wrong type.
    except NOT_SUMMARISED as error:
        return ChainPart(checks=checks, problems=(not_summarised("chain.jsonl", error),))
    return ChainPart(results, timed, checks, tuple(_notes(results, protocol)))


def kernel_rows(rows: Sequence[RowResult]) -> list[RowResult]:
    """Isolated rows with the reference policy as the candidate and no other policy beside it.

    How near a kernel comes to the roof is one question; what its policies do is the chain's.
    """
    return [replace(r, role="candidate") if r.role == "baseline" else r for r in rows if r.role != "candidate"]


def _notes(results: Sequence[RowResult], protocol: Protocol) -> list[str]:
    found = [PLACES]
    least = Protocol().trials
    if protocol.trials < least:
        found.append(
            f"Only {protocol.trials} trials an arm: verdicts of this section are by these, while the rows below keep to the "
            f"{least} of protocol v1. Read them as a demonstration."
        )
    warm = next((r.reason for r in results if r.row == CHAIN and r.reason.startswith("warm: ")), "")
    return (
        [*found, f"The chain is not cold, so weights may outlast a pass: {warm.removeprefix('warm: ')}."]
        if warm
        else found
    )
