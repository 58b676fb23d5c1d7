"""The numbers that a contract claims, against the evidence that it cites: timed rows, headline, gate power.

A contract is not hashed by anything, so an edited ratio would go unnoticed. Rows over the speed baseline stand in the
evidence file and must be those; rows over peers do not, so of them only their own arithmetic can be checked. An arm may be
the baseline of one run and a peer of another: which it was for a row, the evidence's rows say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kda_lab.audit.exported_files import evidence_content
from kda_lab.audit.exported_model import Exported, Outcome
from kda_lab.contracts.model import BenchRow, Headline, Qualification

TOLERANCE = 1e-9
"""Relative: the numbers went through JSON and one more sum, nothing else."""
FIELDS = {
    "baseline_us": "baseline_us",
    "kernel_us": "arm_us",
    "ratio": "ratio",
    "low": "low",
    "high": "high",
    "noise": "noise",
}
"""Number of a contract's row to the same number of an evidence row."""
Record = dict[str, Any]


def check_claims(kernel: Exported) -> Outcome:
    """Every claimed number follows from the cited evidence, or from the rows beside it."""
    contract = kernel.contract
    contents = [(a, evidence_content(kernel, a.evidence)) for a in contract.architectures if a.evidence is not None]
    read = [(architecture, content) for architecture, content in contents if content is not None]
    if not read:
        return kernel.not_run("claims", "no evidence can be read")
    faults = [*headline_faults(contract.headline, contract.benchmarks), *map(_ratio_fault, contract.benchmarks)]
    for architecture, content in read:
        faults += _row_faults(contract.benchmarks, architecture, content)
    faults.append(_power_fault(kernel, [content for _, content in read]))
    test = "make the numbers again from the runs that the evidence names"
    findings = [kernel.finding("claims", "silent-wrong", lost, test) for lost in faults if lost]
    words = _confirmed(kernel, [content for _, content in read])
    return kernel.judged("claims", findings, words)


def _confirmed(kernel: Exported, contents: Iterable[Record]) -> str:
    """What the evidence confirms, and what only adds up."""
    measured = {(str(r.get("row")), str(r.get("baseline"))) for content in contents for r in _records(content, "rows")}
    rows = kernel.contract.benchmarks
    inside = sum((row.row, row.baseline) in measured for row in rows)
    peers = f"; {len(rows) - inside} rows over peers only add up" if inside < len(rows) else ""
    return (
        f"{inside} rows and the gate power are those of the evidence{peers}; {len(kernel.contract.headline)} headlines"
    )


def headline_faults(headline: Iterable[Headline], rows: Iterable[BenchRow]) -> Iterator[str]:
    """Headlines that are not geomean, minimum and count of their rows, and rows without a headline."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        ratios.setdefault(row.baseline, []).append(row.ratio)
    for line in headline:
        own = ratios.pop(line.baseline, [])
        if line.count != len(own) or not own:
            yield f"the headline over {line.baseline} counts {line.count} rows; there are {len(own)}"
            continue
        geomean = math.exp(math.fsum(map(math.log, own)) / len(own)) if min(own) > 0 else math.nan
        for name, said, found in (("geomean", line.geomean, geomean), ("minimum", line.minimum, min(own))):
            if not same(said, found):
                yield f"the {name} over {line.baseline} is {said:.6g}; its rows give {found:.6g}"
    for baseline, own in ratios.items():
        yield f"{len(own)} rows over {baseline} have no headline"


def same(first: Any, second: Any) -> bool:
    """Whether two values are equal numbers, up to rounding; anything that is no finite number is unequal to all."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in (first, second))
    return numbers and math.isclose(first, second, rel_tol=TOLERANCE)


def _ratio_fault(row: BenchRow) -> str:
    """A ratio is baseline by kernel: above 1 the kernel is faster."""
    quotient = row.baseline_us / row.kernel_us if row.kernel_us else math.nan
    if same(row.ratio, quotient):
        return ""
    return f"{row.row} over {row.baseline}: ratio {row.ratio:.6g}; its times give {quotient:.6g}"


def _row_faults(rows: Sequence[BenchRow], architecture: Qualification, content: Record) -> Iterator[str]:
    """Rows of one architecture that the evidence has otherwise, or not at all; and the reverse."""
    measured = {(str(r.get("row")), str(r.get("baseline"))): r for r in _records(content, "rows")}
    baselines = {baseline for _, baseline in measured}
    claimed = {
        (r.row, r.baseline): r for r in rows if r.capability == architecture.capability and r.baseline in baselines
    }
    if not claimed and any(r.capability == architecture.capability for r in rows):
        yield f"no row of the contract stands in {architecture.evidence.path if architecture.evidence else 'evidence'}"
    for key, row in claimed.items():
        record = measured.get(key)
        if record is None:
            yield _unmeasured_fault(row, [r for (name, _), r in measured.items() if name == row.row])
            continue
        wrong = [own for own, theirs in FIELDS.items() if not same(getattr(row, own), record.get(theirs))]
        wrong += [own for own in ("verdict", "trials") if getattr(row, own) != record.get(own)]
        if wrong:
            yield f"{row.row} over {row.baseline} differs from the evidence in {', '.join(wrong)}"
    for (name, baseline), record in measured.items():
        if (name, baseline) not in claimed and _is_complete(record):
            yield f"{name} over {baseline} is measured ({record['verdict']}) and left out of the contract"


def _unmeasured_fault(row: BenchRow, others: Sequence[Record]) -> str:
    """What is wrong with a row over an arm that was no baseline there; `others` are that row over its own baselines."""
    if not others:
        return f"{row.row} over {row.baseline} is not in the evidence"
    if not any(same(row.kernel_us, record.get(FIELDS["kernel_us"])) for record in others):
        return f"{row.row} over {row.baseline} differs from the evidence in kernel_us"
    return ""


def _is_complete(record: Record) -> bool:
    """Whether a row belongs into a contract: judged, with an interval and a noise."""
    return bool(record.get("verdict")) and None not in (record.get("low"), record.get("high"), record.get("noise"))


def _records(content: Record, field: str) -> list[Record]:
    """The objects in a list of the evidence; anything else in it is none."""
    found = content.get(field)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _power_fault(kernel: Exported, contents: Iterable[Record]) -> str:
    """Killed and total of the contract, counted again: a mutant counts as killed when every capture killed it."""
    killed: dict[str, bool] = {}
    for power in (p for content in contents for p in _records(content, "power")):
        for mutant in _records(power, "mutants"):
            if mutant.get("applies") is True:
                name = str(mutant.get("name"))
                killed[name] = killed.get(name, True) and mutant.get("killed") is True
    found, said = (
        (sum(killed.values()), len(killed)),
        (kernel.contract.gate_power.killed, kernel.contract.gate_power.total),
    )
    if found == said:
        return ""
    return f"gate power is {said[0]} of {said[1]}; the evidence has {found[0]} of {found[1]}"
