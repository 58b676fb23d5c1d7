"""The tables of a report: rounded and right-aligned for the page, unrounded for CSV and Parquet."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kda_lab.report import grouping
from kda_lab.report.error_figure import limit_of
from kda_lab.report.numbers import DASH, measured, percent, scientific, significant, times
from kda_lab.timing.statistics import RowResult, headline

if TYPE_CHECKING:
    import pandas

FIELDS = (
    "op", "row", "arm", "role", "baseline", "baseline_us", "arm_us", "ratio", "low", "high", "noise", "verdict",
    "trials", "dropped_trials", "roof_us", "roof_share", "bandwidth_gb_s", "state", "reason",
)  # fmt: skip
"""Columns of rows.csv and rows.parquet beside one `axis_<name>` for each axis."""
_TEXT_FIELDS = ("op", "row", "arm", "role", "baseline", "verdict", "state", "reason")


@dataclass(frozen=True)
class Table:
    """A table as the page prints it: heads with units, cells as text."""

    caption: str
    heads: tuple[str, ...]
    text_columns: frozenset[int]
    """Columns set flush left; all others hold numbers and are set flush right."""
    lines: tuple[tuple[str, ...], ...]


def rows_table(rows: Sequence[RowResult], noun: str = "Timing rows") -> Table:
    """Every summarised row: the baseline and refused rows too, a dash and the reason where nothing was measured."""
    heads = (
        "row", "arm", "role", "baseline µs", "arm µs", "ratio × [95 %]", "noise ± %", "verdict", "roof µs", "of roof %",
        "GB/s", "trials", "state, reason",
    )  # fmt: skip
    lines = tuple(
        (
            r.row, r.arm, r.role, significant(r.baseline_us), significant(r.arm_us), interval(r), percent(r.noise),
            r.verdict or DASH, significant(r.roof_us), percent(r.roof_share), significant(r.bandwidth_gb_s), _trials(r),
            ", ".join(t for t in (r.state, r.reason) if t),
        )
        for r in rows
    )  # fmt: skip
    caption = (
        f"{noun}: ratio = baseline time / arm time, above 1 the arm is faster. Unrounded in rows.csv and rows.parquet."
    )
    return Table(caption, heads, frozenset({0, 1, 2, 7, 12}), lines)


def interval(row: RowResult) -> str:
    """The ratio with its bootstrap interval: `1.49 [1.46, 1.52]`; a dash where there is no ratio."""
    if not measured(row.ratio):
        return DASH
    return f"{significant(row.ratio)} [{significant(row.low)}, {significant(row.high)}]"


def _trials(row: RowResult) -> str:
    return f"{row.trials} (−{row.dropped_trials})" if row.dropped_trials else str(row.trials)


def batch_table(rows: Sequence[RowResult]) -> Table:
    """Geomean, minimum and count of the ratios of each arm: over all rows, each batch, each topology; a candidate also over each batch of a topology.

    Where the op's source tells sizes of captures apart, they have lines of their own: `large`, `small`.
    """
    lines: list[tuple[str, ...]] = []
    compared = [r for r in rows if r.role in ("candidate", "peer")]
    for arm, of_arm in grouping.grouped(compared, lambda r: r.arm).items():
        lines.append(_batch_line(arm, "all", "all", of_arm))
        lines += _lines_by_size(arm, of_arm)
        lines += _lines_by_batch(arm, "all", of_arm)
        topologies = list(grouping.grouped(of_arm, grouping.topology).values())
        for members in topologies if len(topologies) > 1 else []:
            title = grouping.topology_title(members)
            lines.append(_batch_line(arm, title, "all", members))
            if members[0].role == "candidate":
                lines += _lines_by_batch(arm, title, members)
    heads = (
        "arm",
        "topology",
        "batch",
        "geomean ×",
        "minimum ×",
        "count",
        "faster",
        "slower",
        "same",
        "ambiguous",
        "none",
    )
    caption = "Ratios per batch: geomean, minimum and count over the rows with a verdict; none = rows without one."
    return Table(caption, heads, frozenset({0, 1}), tuple(lines))


def _lines_by_batch(arm: str, topology: str, rows: Sequence[RowResult]) -> list[tuple[str, ...]]:
    batches = grouping.grouped([r for r in rows if grouping.batch(r) is not None], grouping.batch)
    return [_batch_line(arm, topology, f"{batch:g}", batches[batch]) for batch in sorted(batches)]


def _lines_by_size(arm: str, rows: Sequence[RowResult]) -> list[tuple[str, ...]]:
    sizes = grouping.grouped([r for r in rows if grouping.size(r)], grouping.size)
    return [_batch_line(arm, "all", size, sizes[size]) for size in sorted(sizes)]


def _batch_line(arm: str, topology: str, batch: str, rows: Sequence[RowResult]) -> tuple[str, ...]:
    numbers = headline(rows, arm)
    counts = [str(sum(r.verdict == v for r in rows)) for v in ("faster", "slower", "same", "ambiguous", "")]
    told = (DASH, DASH, "0") if numbers is None else (
        significant(numbers.geomean), significant(numbers.minimum), str(numbers.count)
    )  # fmt: skip
    return (arm, topology, batch, *told, *counts)


def verify_table(replays: Sequence[Mapping[str, Any]]) -> Table:
    """Every replay: its errors beside limit and floor, checks passed of checks run, and what failed."""
    heads = (
        "capture", "kind", "arm", "role", "FP32 error", "FP64 error", "pinned error", "worst row", "floor", "limit",
        "row limit", "checks", "verdict", "what failed",
    )  # fmt: skip
    lines = []
    for record in replays:
        errors, checks = record["errors"], record["checks"]
        failed = [c for c in checks if not c.get("passed")]
        words = "; ".join(f"{c['name']}: {c['detail']}" if c.get("detail") else str(c["name"]) for c in failed)
        shown = [scientific(errors.get(n)) for n in ("fp32", "fp64", "pinned", "row_max", "floor")]
        limits = [scientific(limit_of(record, n)) for n in ("error_fp32", "row_max")]
        lines.append((
            str(record["capture"]), str(record.get("capture_kind", "")), str(record["arm"]), str(record.get("role", "")),
            *shown, *limits, f"{len(checks) - len(failed)}/{len(checks)}",
            "passed" if record.get("passed") is True else "FAILED", words,
        ))  # fmt: skip
    caption = "Replays: relative L2 errors against the FP32 and FP64 oracles and the pinned output; floor = rounding alone, emulated."
    return Table(caption, heads, frozenset({0, 1, 2, 3, 12, 13}), tuple(lines))


def power_table(power: Sequence[Mapping[str, Any]]) -> Table:
    """Gate power a capture: mutants killed of mutants that apply, and who survived."""
    lines = []
    for record in power:
        survivors = [str(m["name"]) for m in record["mutants"] if m.get("applies", True) and not m.get("killed")]
        idle = sum(not m.get("applies", True) for m in record["mutants"])
        control = record.get("control")
        failed = control.get("failed") or () if isinstance(control, Mapping) else ()
        sound = not isinstance(control, Mapping) or control.get("passed") is True
        full = record["killed"] == record["total"] > 0 and not survivors
        words = (
            "VOID" if not sound else "all killed" if full else "SURVIVORS" if record["total"] else "NO MUTANT APPLIES"
        )
        notes = survivors if sound else [f"the right arithmetic itself fails {', '.join(map(str, failed))}"]
        lines.append(
            (str(record["capture"]), f"{record['killed']}/{record['total']}", str(idle), words, ", ".join(notes))
        )
    heads = ("capture", "killed", "not applicable", "verdict", "survivors")
    caption = "Gate power: deliberately wrong kernels that the gates rejected on these very inputs."
    return Table(caption, heads, frozenset({0, 3, 4}), tuple(lines))


def mutant_table(power: Sequence[Mapping[str, Any]]) -> Table:
    """Gate power a mutant: on how many captures it was killed, by which check, and where it does not apply and why."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in power:
        for mutant in record["mutants"]:
            found.setdefault(str(mutant["name"]), []).append(mutant)
    lines = []
    for name, outcomes in found.items():
        judged = [m for m in outcomes if m.get("applies", True)]
        killed = [m for m in judged if m.get("killed")]
        by: dict[str, int] = {}
        for mutant in killed:
            by[str(mutant.get("by", ""))] = by.get(str(mutant.get("by", "")), 0) + 1
        checks = ", ".join(f"{check} ({count})" for check, count in sorted(by.items(), key=lambda i: (-i[1], i[0])))
        why = "; ".join(
            dict.fromkeys(str(m.get("why_not") or "no reason given") for m in outcomes if not m.get("applies", True))
        )
        words = DASH if not judged else "killed" if len(killed) == len(judged) else "SURVIVED"
        lines.append((name, f"{len(killed)}/{len(judged)}", words, checks, str(len(outcomes) - len(judged)), why))
    heads = ("mutant", "killed", "verdict", "killed by check (captures)", "not applicable", "why not applicable")
    return Table(
        "Mutants: which check rejected each one, and on how many captures.",
        heads,
        frozenset({0, 2, 3, 5}),
        tuple(lines),
    )


def stress_table(stress: Sequence[Mapping[str, Any]]) -> Table:
    """Repeated launches of one call: how many gave other bits, and what state was left behind."""
    lines = tuple(
        (
            str(r["capture"]), str(r["arm"]), str(r.get("role", "")), str(r["launches"]), str(r.get("differing", DASH)),
            str(r.get("nonzero_state", DASH)), "passed" if r.get("passed") is True else "FAILED", str(r.get("failure") or ""),
        )
        for r in stress
    )  # fmt: skip
    heads = ("capture", "arm", "role", "launches", "with other bits", "state not zero", "verdict", "what failed")
    return Table("Stress: the same call launched again and again.", heads, frozenset({0, 1, 2, 6, 7}), lines)


def refused_table(refused: Sequence[Mapping[str, Any]]) -> Table:
    """Arms that could not run, with the reason in their own words."""
    lines = tuple((_refused_where(r), str(r["arm"]), str(r.get("role", "")), str(r["reason"])) for r in refused)
    return Table(
        "Refused: arms that could not run, and why.",
        ("row or capture", "arm", "role", "reason"),
        frozenset(range(4)),
        lines,
    )


def _refused_where(record: Mapping[str, Any]) -> str:
    return str(record.get("row") or record.get("capture") or ("in the chain" if "layers" in record else "all"))


def headline_table(comparisons: Sequence[Sequence[RowResult]]) -> Table:
    """One line an arm and what it is compared with: geomean, minimum and count, as the top of the page shows them.

    Args:
        comparisons: summarised rows, once for each arm that was divided by.
    """
    lines = []
    for number, rows in enumerate(comparisons):
        for arm in grouping.arms(rows, ("candidate", "peer")):
            members = [r for r in rows if r.arm == arm and r.role != "control"]
            numbers = headline(members, arm)
            # Beside the baseline itself only candidates are compared: how peers stand to one another is not asked.
            if arm == members[0].baseline or (number and members[0].role != "candidate"):
                continue
            told = (DASH, DASH, "0") if numbers is None else (
                times(numbers.geomean), times(numbers.minimum), str(numbers.count)
            )  # fmt: skip
            faster, slower = (f"{sum(r.verdict == v for r in members)} of {len(members)}" for v in ("faster", "slower"))
            lines.append((arm, members[0].role, members[0].baseline or DASH, *told, faster, slower))
    heads = ("arm", "role", "against", "geomean", "minimum", "rows counted", "faster", "slower")
    caption = "Speedup in short: geometric mean, minimum and count of the ratios with a verdict."
    return Table(caption, heads, frozenset({0, 1, 2}), tuple(lines))


def rows_frame(rows: Sequence[RowResult]) -> pandas.DataFrame:
    """All rows, unrounded: one column a field of `FIELDS`, one `axis_<name>` an axis; lists as JSON text."""
    import pandas  # lazy: pandas

    axes = sorted({name for r in rows for name in r.axes})
    data: dict[str, Any] = {"op": [r.op for r in rows], "row": [r.row for r in rows]}
    for name in axes:
        data[f"axis_{name}"] = _axis_column([r.axes.get(name) for r in rows])
    for name in FIELDS[2:]:
        values = [getattr(r, name) for r in rows]
        kind = "object" if name in _TEXT_FIELDS else "int64" if name.endswith("trials") else "float64"
        data[name] = pandas.Series(values, dtype=kind)
    return pandas.DataFrame(data)


def _axis_column(values: Sequence[Any]) -> list[Any]:
    """Numbers stay numbers where the whole column is numbers; any other column becomes text."""
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        return list(values)
    return ["" if v is None else v if isinstance(v, str) else json.dumps(v, sort_keys=True) for v in values]


def csv_text(frame: pandas.DataFrame) -> str:
    """The frame as CSV, numbers with all their digits, missing ones empty."""
    return str(frame.to_csv(index=False, lineterminator="\n"))


def parquet_bytes(frame: pandas.DataFrame) -> bytes:
    """The frame as Parquet (zstd)."""
    stream = io.BytesIO()
    frame.to_parquet(stream, engine="pyarrow", index=False, compression="zstd")
    return stream.getvalue()
