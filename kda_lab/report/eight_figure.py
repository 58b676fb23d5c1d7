"""The eight-set figure: each row's speedup by the source thread's protocol beside the cold one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kda_lab.errors import ParameterError
from kda_lab.report import grouping, style
from kda_lab.report.numbers import measured, significant, times
from kda_lab.report.panels import padded
from kda_lab.report.row_plot import Column, Layout, RowPlot, row_plot, set_ticks
from kda_lab.report.speedup_figure import TICKS
from kda_lab.report.style import BLUE, INK, VERMILLION, Picture
from kda_lab.timing.protocol import mode_of, plain_label
from kda_lab.timing.statistics import RowResult

NOTES = (
    "● cold: rotated over five L2 or more;  ◇ eight sets in one graph, as the source thread timed;  bar: bootstrap 95 %",
    "8 sets / L2: at 1 or less all eight sets fit in the cache, and both arms may read from it",
)


@dataclass(frozen=True)
class _Pair:
    """One case of one arm, timed by both protocols."""

    cold: RowResult
    eight: RowResult

    @property
    def change(self) -> float:
        """The eight-set ratio over the cold one."""
        return (self.eight.ratio or 1.0) / (self.cold.ratio or 1.0)


def eight_sets(
    rows: Sequence[RowResult], *, candidate: str, l2_shares: Mapping[str, float] | None = None, foot: str = ""
) -> Picture:
    """Speedup of one arm over the baseline by both protocols, on a log axis, one line a case.

    Args:
        rows: summarised rows of both modes, as `Comparisons.rows` and `.labelled` hold them.
        candidate: name of the arm.
        l2_shares: row label to bytes rotated over bytes of the L2; see `rotated_shares`.
        foot: one sentence on GPU, clocks, driver, trials, arm order and capture hash.

    Raises:
        ParameterError: no case has a ratio in both modes.
    """
    found = _pairs([r for r in rows if r.arm == candidate and r.role != "control" and measured(r.ratio)])
    if not found:
        raise ParameterError("report", f"{candidate} has no case that was timed both cold and with eight sets.")
    labels, headings = grouping.with_headings(found, [pair.cold for pair in found.values()])
    shares = {label: (l2_shares or {}).get(pair.eight.row) for label, pair in found.items()}
    ordered = [found.get(label or "") for label in labels]
    layout = Layout(
        title=_title(found, shares, candidate),
        labels=labels,
        headings=headings,
        columns=_columns(ordered, [shares.get(label or "") for label in labels]),
        axis_label="speedup = baseline time / candidate time (log scale; right is faster)",
        foot=foot,
        notes=NOTES,
    )
    ends = [e for p in found.values() for r in (p.cold, p.eight) for e in (r.ratio, r.low, r.high) if e and measured(e)]
    with style.settings():
        plot = row_plot(layout, padded([1.0, *ends]))
        plot.axes.axvline(1, color=INK, linewidth=1.0, zorder=2)
        for index, pair in enumerate(ordered):
            if pair is not None:
                _draw(plot, index, pair)
            for number, column in enumerate(layout.columns):
                plot.write(number, index, column.cells[index])
        set_ticks(plot.axes, TICKS, [f"{v:g}×" for v in TICKS], anchor=1)
    return plot.picture


def rotated_shares(trials: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Row label to the bytes that its input sets rotate over, in multiples of the L2."""
    known = [
        r for r in trials if measured(r.get("bytes_rotated")) and measured(r.get("l2_bytes")) and r["l2_bytes"] > 0
    ]
    return {str(r["row"]): r["bytes_rotated"] / r["l2_bytes"] for r in known}


def _pairs(rows: Sequence[RowResult]) -> dict[str, _Pair]:
    cold = {r.row: r for r in rows if mode_of(r.row) == "cold"}
    eight = {plain_label(r.row): r for r in rows if mode_of(r.row) == "eight"}
    return {label: _Pair(row, eight[label]) for label, row in cold.items() if label in eight}


def _title(pairs: Mapping[str, _Pair], shares: Mapping[str, float | None], candidate: str) -> str:
    first = next(iter(pairs.values())).cold
    geomean = math.exp(math.fsum(math.log(p.change) for p in pairs.values()) / len(pairs))
    farthest = max(pairs, key=lambda label: abs(math.log(pairs[label].change)))
    known = [share for share in shares.values() if share is not None]
    fit = f"; eight sets fit in the L2 on {sum(s <= 1 for s in known)} of {len(known)} rows" if known else ""
    return (
        f"{first.op}: {candidate} against {first.baseline}: eight-set speedup over cold speedup, geomean {times(geomean)}, "
        f"farthest {times(pairs[farthest].change)} on {farthest}{fit}"
    )


def _columns(pairs: Sequence[_Pair | None], shares: Sequence[float | None]) -> tuple[Column, ...]:
    return (
        Column("cold ×", ["" if p is None else significant(p.cold.ratio) for p in pairs]),
        Column("8 sets ×", ["" if p is None else significant(p.eight.ratio) for p in pairs]),
        Column("8 sets / cold", ["" if p is None else significant(p.change) for p in pairs]),
        Column("8 sets µs", ["" if p is None else significant(p.eight.arm_us) for p in pairs]),
        Column("8 sets / L2", ["" if p is None else significant(s) for p, s in zip(pairs, shares, strict=True)]),
    )


def _draw(plot: RowPlot, index: int, pair: _Pair) -> None:
    looks = ((pair.cold, -0.14, BLUE, "o", BLUE), (pair.eight, 0.14, VERMILLION, "D", "white"))
    for row, shift, color, marker, face in looks:
        if measured(row.low) and measured(row.high):
            plot.axes.plot([row.low, row.high], [index + shift] * 2, color=color, linewidth=2.0, solid_capstyle="butt",
                           zorder=3)  # fmt: skip
        plot.axes.plot([row.ratio or 1], [index + shift], marker=marker, color=color, markerfacecolor=face, markersize=4.2,
                       linestyle="none", zorder=4)  # fmt: skip
