"""Derived numbers as somebody printed them, computed again from the inputs that the same text prints.

`derived.csv` has the columns `name, statistic, inputs, printed, where`. Inputs are numbers as printed, apart by blanks;
`1.7066*6` stands six times; a whole number is a count and exact, unless `~` follows it (a measured value, rounded).

A printed number *agrees* where the inputs, taken as they stand, give its digits; it is within *rounding* where some
unrounded inputs would; else it *disagrees*. Without inputs nobody can say.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from kda_lab.referee.readers.quantities import Printed, printed_at
from kda_lab.referee.readers.text import refuse, table_rows

Status = Literal["agrees", "rounding", "disagrees", "no inputs"]
COLUMNS = ("name", "statistic", "inputs", "printed", "where")
MOST_INPUTS = 1000
_INPUT = re.compile(r"^([+\-]?\d+(?:\.(\d+))?)(~?)(?:\*(\d{1,3}))?$")


def _largest_change(values: Sequence[float]) -> float:
    pairs = zip(values[::2], values[1::2], strict=True)
    return max(abs(100 * (b / a - 1)) for a, b in pairs)


def _difference_of_means(values: Sequence[float]) -> float:
    half = len(values) // 2
    return statistics.fmean(values[half:]) - statistics.fmean(values[:half])


def _spread(values: Sequence[float]) -> float:
    return 100 * (max(values) / min(values) - 1)


STATISTICS: MappingProxyType[str, tuple[str, Callable[[Sequence[float]], float]]] = MappingProxyType(
    {
        "change": ("100 * (second / first - 1)", lambda v: 100 * (v[1] / v[0] - 1)),
        "difference": ("second - first", lambda v: v[1] - v[0]),
        "ratio": ("first / second", lambda v: v[0] / v[1]),
        "share": ("100 * first / second", lambda v: 100 * v[0] / v[1]),
        "per_second": ("1000 * first / second", lambda v: 1000 * v[0] / v[1]),
        "product": ("product", math.prod),
        "mean": ("mean", statistics.fmean),
        "median": ("median", statistics.median),
        "geomean": ("geometric mean", statistics.geometric_mean),
        "minimum": ("smallest", min),
        "maximum": ("largest", max),
        "difference_of_means": ("mean of the second half - mean of the first half", _difference_of_means),
        "spread": ("100 * (largest / smallest - 1)", _spread),
        "spread_within": ("100 * (largest / smallest - 1), at most the printed", _spread),
        "change_within": ("largest |100 * (second / first - 1)| of the pairs, at most the printed", _largest_change),
    }
)
"""Statistic to its formula in words and its function."""
OF_TWO = ("change", "difference", "ratio", "share", "per_second")
OF_PAIRS = ("change_within", "difference_of_means")
RISING = ("product", "mean", "median", "geomean", "minimum", "maximum")
"""Statistics that rise with each input: their extremes need two evaluations, not every mixture of ends."""


@dataclass(frozen=True)
class Derived:
    """One derived number and what became of it."""

    name: str
    statistic: str
    inputs: tuple[Printed, ...]
    printed: Printed
    text: str
    """The number as it was printed."""
    where: str
    line: int

    @property
    def recomputed(self) -> float | None:
        """From the inputs as printed; None without any."""
        return STATISTICS[self.statistic][1]([p.value for p in self.inputs]) if self.inputs else None

    @property
    def span(self) -> tuple[float, float] | None:
        """Smallest and largest result that the unrounded inputs may have had."""
        if not self.inputs:
            return None
        function = STATISTICS[self.statistic][1]
        low, high = ([p.value + sign * p.half_step for p in self.inputs] for sign in (-1, 1))
        if self.statistic in RISING and min(low) > 0:
            return function(low), function(high)
        found = [function(v) for v in _corners(low, high)]
        return min(found), max(found)

    @property
    def status(self) -> Status:
        """Whether the printed digits follow from the printed inputs."""
        if self.recomputed is None or self.span is None:
            return "no inputs"
        # Binary fractions: a value that lies on the edge must not fall off it.
        step = 0.5 * 10.0**-self.printed.digits * (1 + 1e-9) + 1e-12
        low, high = self.printed.value - step, self.printed.value + step
        if self.statistic.endswith("within"):
            low = -math.inf
        if low <= self.recomputed <= high:
            return "agrees"
        return "rounding" if self.span[0] <= high and low <= self.span[1] else "disagrees"


def _corners(low: Sequence[float], high: Sequence[float]) -> list[Sequence[float]]:
    """Every mixture of two ends; for long lists the alternating and the halved ones, which hold the extremes."""
    if len(low) <= 6:
        return list(product(*zip(low, high, strict=True)))
    both, half = list(zip(low, high, strict=True)), len(low) // 2
    mixed = [[pair[(n + start) % 2] for n, pair in enumerate(both)] for start in (0, 1)]
    return [low, high, *mixed, [*low[:half], *high[half:]], [*high[:half], *low[half:]]]


def read_derived(path: Path) -> list[Derived]:
    """The derived numbers of a file.

    Raises:
        RefereeError: unreadable, other columns, an unknown statistic, no number, too many inputs, or a zero divisor.
    """
    header, rows = table_rows(path)
    if tuple(header) != COLUMNS:
        refuse(path, 1, "header", repr(header), ", ".join(COLUMNS))
    return [_derived(path, line, row) for line, row in rows]


def _derived(path: Path, line: int, row: dict[str, str]) -> Derived:
    if row["statistic"] not in STATISTICS:
        refuse(path, line, "statistic", repr(row["statistic"]), ", ".join(STATISTICS))
    shown = printed_at(path, line, "printed", row["printed"])
    inputs = tuple(p for text in row["inputs"].split() for p in _inputs(path, line, text))
    odd = len(inputs) % 2 and row["statistic"] in OF_PAIRS
    if inputs and (odd or (row["statistic"] in OF_TWO and len(inputs) != 2)):
        refuse(path, line, "inputs", f"{len(inputs)} numbers", f"two, or pairs for {' and '.join(OF_PAIRS)}")
    if len(inputs) > MOST_INPUTS:
        refuse(path, line, "inputs", f"{len(inputs)} numbers", f"at most {MOST_INPUTS}")
    made = Derived(row["name"], row["statistic"], inputs, shown, row["printed"], row["where"], line)
    try:
        _ = made.status
    except (ZeroDivisionError, OverflowError, statistics.StatisticsError) as error:
        refuse(path, line, "inputs", f"{row['inputs']!r} ({error})", "numbers that can be divided by")
    return made


def _inputs(path: Path, line: int, text: str) -> list[Printed]:
    match = _INPUT.match(text)
    if not match:
        refuse(path, line, "input", repr(text), "a number such as 3055.28, 114, 4606~ or 1.7066*6")
    value, fraction, measured, times = match.groups()
    exact = fraction is None and not measured
    # 17 digits behind the point: no rounding that a double could show.
    one = Printed(float(value), "", 17 if exact else len(fraction or ""))
    return [one] * int(times or 1)
