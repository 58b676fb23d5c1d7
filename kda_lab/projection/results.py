"""From records to results: every arm against the unfused one, judged by the referee's statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kda_lab.projection.arms import CONTROL, FIVE, OUTPUTS, SIDE, THREE
from kda_lab.projection.plan import Cell
from kda_lab.referee.statistics import Comparison, compare

Word = Literal["faster", "slower", "same", "ambiguous"]
MARGIN_PERCENT = 1.0
WORDS: dict[str, Word] = {"lower": "faster", "higher": "slower", "equivalent": "same", "undecided": "ambiguous"}
COMPARED = (THREE, SIDE)
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """One arm in one cell against the unfused arm. Times are of one call."""

    cell: Cell
    arm: str
    branch: str
    """`side` where two GEMMs ran on a side stream, else `serial`."""
    arm_us: float
    five_us: float
    speedup: float
    """five_us / arm_us over paired rounds, the median: above 1 the arm is faster."""
    low: float
    high: float
    """Bootstrap 95 % interval of the speedup; the speedup itself where there are too few rounds for one."""
    p: float
    word: Word
    control_percent: float
    """How far the A/A control lies from the unfused arm."""
    floor_us: float
    """Bytes of weights, tokens and results over the measured copy rate."""
    summed_percent: float | None
    """Change of the summed kernel durations; None where no kernels were recorded."""
    overlap_us: float | None

    @property
    def saved_us(self) -> float:
        """Time that the arm saves a call."""
        return self.five_us - self.arm_us

    @property
    def contradicts(self) -> bool:
        """Whether the sum of kernel durations rises while the wall falls."""
        return self.word == "faster" and self.summed_percent is not None and self.summed_percent > 0


def summarise(records: Sequence[Record]) -> list[Result]:
    """Results of both fused arms in every measured cell, in the order of the records."""
    cells: dict[Cell, dict[str, Record]] = {}
    for record in records:
        if record["kind"] == "projection":
            cells.setdefault(cell_of(record), {})[record["arm"]] = record
    return [_result(cell, arm, found) for cell, found in cells.items() for arm in COMPARED if arm in found]


def cell_of(record: Record) -> Cell:
    """The cell of a record."""
    return Cell(record["attn_tp"], record["tokens"], record["mode"])


def geomean(results: Sequence[Result]) -> float:
    """Geometric mean of the speedups; NaN of none."""
    return math.exp(math.fsum(math.log(r.speedup) for r in results) / len(results)) if results else math.nan


def faults(records: Sequence[Record]) -> list[str]:
    """What of the records is wrong, one sentence each: values beyond their limit, never a speed."""
    return [
        f"{cell_of(r).label} {r['arm']}: error {r['check']['error']:.3g}, limit {r['check']['limit']:g}"
        for r in records
        if r["kind"] == "projection" and not r["check"]["passed"]
    ]


def bit_counts(records: Sequence[Record]) -> list[tuple[str, str, int, int, int]]:
    """(mode, arm, cells, cells in which the unfused arm repeats its bits, cells with the same bits as it).

    Cells whose A/A control differs say nothing about equality and are not among the last.
    """
    repeats = {cell_of(r): all(r["bits"].values()) for r in records if r.get("arm") == CONTROL}
    counted: dict[tuple[str, str], list[int]] = {}
    for record in records:
        if record.get("arm") in COMPARED:
            sound = repeats[cell_of(record)]
            numbers = counted.setdefault((record["mode"], record["arm"]), [0, 0, 0])
            for place, seen in enumerate((True, sound, sound and all(record["bits"][n] for n in OUTPUTS))):
                numbers[place] += seen
    return [(mode, arm, *numbers) for (mode, arm), numbers in counted.items()]  # type: ignore[misc]


def _result(cell: Cell, arm: str, found: Mapping[str, Record]) -> Result:
    base, ours = found[FIVE], found[arm]
    compared, control = _compared(base, ours), _compared(base, found[CONTROL])
    word = WORDS[compared.word]
    # What the unfused arm differs from itself by is no effect of fusing.
    if word in ("faster", "slower") and abs(compared.decided_percent) <= abs(control.decided_percent):
        word = "ambiguous"
    speedup = _speedup(compared.change_percent)
    interval = compared.interval_percent
    before, after = base.get("busy"), ours.get("busy")
    return Result(
        cell=cell,
        arm=arm,
        branch=ours["branch"],
        arm_us=ours["median_us"],
        five_us=base["median_us"],
        speedup=speedup,
        low=speedup if interval is None else _speedup(interval[1]),
        high=speedup if interval is None else _speedup(interval[0]),
        p=compared.p,
        word=word,
        control_percent=control.decided_percent,
        floor_us=ours["floor_us"],
        summed_percent=100 * (after["summed_us"] / before["summed_us"] - 1) if before and after else None,
        overlap_us=after["overlap_us"] if after else None,
    )


def _compared(base: Record, ours: Record) -> Comparison:
    pairs = zip(base["rounds_us"], ours["rounds_us"], strict=True)
    return compare([((b,), (c,)) for b, c in pairs], MARGIN_PERCENT)


def _speedup(change_percent: float) -> float:
    return 1 / (1 + change_percent / 100)
