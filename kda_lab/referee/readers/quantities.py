"""Names and texts that carry a unit: columns such as `e2e_mean_s`, and numbers as somebody printed them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kda_lab.errors import RefereeError
from kda_lab.referee.metrics import METRICS, UNITS, to_metric
from kda_lab.referee.readers.text import refuse

UNIT_SUFFIXES: MappingProxyType[str, str] = MappingProxyType(
    {
        "tok_s": "tok/s", "tok_ms": "tok/ms", "ktok_s": "ktok/s", "tok_min": "tok/min", "req_s": "req/s",
        "req_min": "req/min", "gb_s": "GB/s", "tb_s": "TB/s", "s": "s", "ms": "ms", "us": "us", "ns": "ns", "min": "min",
    }
)  # fmt: skip
"""Ending of a column's name to the unit of its cells."""
PRINTED_UNITS = MappingProxyType(
    {"%": "percent", "percent": "percent", "pp": "points", "points": "points", "x": "x", "×": "x", "": "count"}
)
# A group before a comma never starts with 0: `0,500` is a decimal comma.
_DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)"
_NUMBER = re.compile(rf"^\s*([+\-−–]?)\s*({_DIGITS}(?:\.(\d+))?|\.(\d+))\s*(\S*)\s*$", re.ASCII)
_CELL = re.compile(rf"[+-]?(?:nan|inf|infinity|(?:{_DIGITS}(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """What a column name means: the metric, and the unit in which its cells are typed."""

    name: str
    metric: str
    unit: str


def column_of(name: str) -> Column | None:
    """The metric behind a name with a unit; None when no metric has that stem.

    `e2e_mean_s` is `e2e_mean_ms` typed in seconds; `kernels` has no unit.
    """
    if name in METRICS:
        return Column(name, name, METRICS[name].unit)
    for suffix in sorted(UNIT_SUFFIXES, key=len, reverse=True):
        stem = name.removesuffix(f"_{suffix}")
        if stem != name:
            unit = UNIT_SUFFIXES[suffix]
            dimension = UNITS[unit][0]
            same = [m for m in METRICS if _stem(m) == stem and UNITS[METRICS[m].unit][0] == dimension]
            return Column(name, same[0], unit) if same else None
    return None


def _stem(metric: str) -> str:
    if METRICS[metric].unit == "req/s":
        return metric.removesuffix("_s")
    return next((metric.removesuffix(f"_{s}") for s in UNIT_SUFFIXES if metric.endswith(f"_{s}")), metric)


def columns_of(path: Path, line: int, names: Iterable[str]) -> dict[str, Column]:
    """Columns that hold metrics.

    Raises:
        RefereeError: an unknown name, or one metric in two units.
    """
    found: dict[str, Column] = {}
    for name in names:
        column = column_of(name)
        if column is None:
            endings = ", ".join(f"_{s}" for s in UNIT_SUFFIXES)
            refuse(path, line, "column", repr(name), f"a known column, or {', '.join(METRICS)} ({endings})")
        other = next((c for c in found.values() if c.metric == column.metric), None)
        if other is not None:
            refuse(path, line, "columns", f"{other.name!r} and {name!r}", "one unit a metric", "Convert one of them.")
        found[name] = column
    return found


def number(path: Path, line: int, field: str, text: str | float | int) -> float:
    """A cell or value as a number; `nan` is read, since a judge must see it.

    A comma separates thousands, in groups of three: `1,024.5`.

    Raises:
        RefereeError: it is no number, it carries a unit, a decimal comma or an underscore, or it is infinite.
    """
    if isinstance(text, bool):
        refuse(path, line, field, repr(text), "a number")
    if isinstance(text, str) and not _CELL.fullmatch(text.strip()):
        remedy = "The unit stands in the column's name."
        if re.fullmatch(r"[\s+\-\d.,_]+", text):
            remedy = "A point begins the decimals, a comma parts groups of three digits."
        refuse(path, line, field, repr(text), "a number, such as 1024.5 or 1,024.5", remedy)
    try:
        value = float(text.replace(",", "")) if isinstance(text, str) else float(text)
    except (ValueError, OverflowError):
        refuse(path, line, field, repr(text), "a number a float can hold")
    if math.isinf(value):
        refuse(path, line, field, repr(text), "a finite number")
    return value


def metrics_of(path: Path, line: int, values: Mapping[str, str | float]) -> dict[str, float]:
    """Metric names to values in the metrics' own units; empty cells are left out.

    Raises:
        RefereeError: as `columns_of` and `number`.
    """
    columns = columns_of(path, line, values)
    found: dict[str, float] = {}
    for name, text in values.items():
        if text != "":
            value = number(path, line, name, text)
            found[columns[name].metric] = to_metric(columns[name].metric, value, columns[name].unit)
    return found


@dataclass(frozen=True)
class Printed:
    """A number as it was printed: its value, its unit and how many digits stand behind the point."""

    value: float
    unit: str
    digits: int

    @property
    def half_step(self) -> float:
        """Half of the last printed digit: what rounding may have taken."""
        return 0.5 * 10.0**-self.digits


def printed_at(path: Path, line: int, field: str, text: str) -> Printed:
    """`printed`, for a text of a file.

    Raises:
        RefereeError: as `printed`; file and line are named.
    """
    try:
        return printed(text)
    except RefereeError as error:
        refuse(path, line, field, repr(text), "a number and its unit, such as '+2.19%'", str(error).split("; ")[-1])


def printed(text: str) -> Printed:
    """Read `+2.19%`, `-0.381 pp`, `1.319x`, `5,899.09 ms` or `2651`.

    Raises:
        RefereeError: no number, or a unit that is not known.
    """
    match = _NUMBER.match(text)
    if not match:
        raise RefereeError("referee", f"printed is {text!r}; allowed: a number and its unit, such as '+2.19%'.")
    sign, digits, fraction, bare, unit = match.groups()
    unit = PRINTED_UNITS.get(unit, unit)
    if unit not in UNITS and unit not in ("points", "x"):
        raise RefereeError(
            "referee", f"printed is {text!r}, whose unit is {unit!r}; allowed: %, pp, x, {', '.join(UNITS)}."
        )
    value = float(digits.replace(",", ""))
    return Printed(-value if sign in ("-", "−", "–") else value, unit, len(fraction or bare or ""))
