"""A decode trace: mean time of a call and total of every arm, as a table and as one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kda_lab.errors import ParameterError
from kda_lab.report import style
from kda_lab.report.numbers import DASH, measured, percent, significant, times
from kda_lab.report.panels import padded
from kda_lab.report.row_plot import Column, Layout, row_plot, set_ticks
from kda_lab.report.style import BASELINE_LOOK, INK, Picture
from kda_lab.report.tables import Table, interval
from kda_lab.timing.statistics import RowResult

TICKS = tuple(lead * 10.0**power for power in range(-1, 4) for lead in (1, 2, 3, 5, 7))
ROLES = {"policy": "candidate", "reference": "baseline", "control": "baseline again (A/A)", "peer": "peer"}
"""Roles of a chain in the words of a trace."""


@dataclass(frozen=True)
class TraceSize:
    """Geometry of a trace that turns the time of one forward into the time of a call."""

    calls: int
    """Of one forward."""
    forwards: int
    roof_us: float
    """Of one forward: its least bytes at the measured copy rate."""

    def call_us(self, result: RowResult) -> float | None:
        """Mean time of one call; None where nothing was measured."""
        return result.arm_us / self.calls if measured(result.arm_us) and result.arm_us is not None else None


def trace_table(results: Sequence[RowResult], size: TraceSize) -> Table:
    """Every arm: mean of a call, total of the trace, ratio with its interval; refused arms stay in with their reason.

    Args:
        results: of `timing.chain.comparison.compare`, in the chain.
        size: of the trace.
    """
    lines = tuple(
        (
            r.arm, ROLES.get(r.role, r.role), significant(size.call_us(r)),
            DASH if r.arm_us is None else significant(r.arm_us * size.forwards, 4),
            percent(size.roof_us / r.arm_us if r.arm_us else None), interval(r), percent(r.noise), r.verdict or DASH,
            r.reason,
        )
        for r in results
    )  # fmt: skip
    heads = ("arm", "role", "mean call µs", "total µs", "of roof %", "ratio × [95 %]", "noise ± %", "verdict", "reason")
    against = next((r.baseline for r in results if r.baseline), DASH)
    caption = (
        f"{size.calls * size.forwards} calls of {size.forwards} forwards in one graph; ratio = time of {against} / "
        "time of the arm."
    )
    return Table(caption, heads, frozenset({0, 1, 7, 8}), lines)


def trace(results: Sequence[RowResult], size: TraceSize, *, foot: str = "") -> Picture:
    """Mean time of a call of each arm on a log axis, the fastest on top, the roof as a line.

    Args:
        results: of `timing.chain.comparison.compare`, in the chain; the control and refused arms are left out.
        size: of the trace.
        foot: one sentence on GPU, clocks, trials and geometry.

    Raises:
        ParameterError: no candidate was timed.
    """
    drawn = sorted((r for r in results if r.role != "control" and size.call_us(r)), key=lambda r: r.arm_us or 0.0)
    candidates = [r for r in drawn if r.role == "policy"]
    if not candidates:
        raise ParameterError("report", "no candidate was timed in the trace; allowed: at least one. Time it first.")
    names = [r.arm for r in drawn if r.role != "reference"]
    roof_us = size.roof_us / size.calls
    layout = Layout(
        title=_title(candidates[0], size),
        labels=[r.arm for r in drawn],
        headings=[""] * len(drawn),
        columns=(
            Column("call µs", [significant(size.call_us(r)) for r in drawn]),
            Column("total µs", [significant((r.arm_us or 0.0) * size.forwards, 4) for r in drawn]),
            Column("ratio [95 %]", [interval(r) for r in drawn]),
            Column("verdict", [r.verdict or ROLES.get(r.role, r.role) for r in drawn], align="left"),
        ),
        axis_label="mean time of a call in µs (log scale; left is faster)",
        foot=foot,
        notes=("black line: the roof, bytes / measured copy rate",),
    )
    with style.settings():
        plot = row_plot(layout, padded([roof_us, *(size.call_us(r) or roof_us for r in drawn)]))
        plot.axes.axvline(roof_us, color=INK, linewidth=1.2, zorder=2)
        for index, result in enumerate(drawn):
            color, marker = BASELINE_LOOK if result.role == "reference" else style.line_look(names.index(result.arm))
            filled = color if result.role == "policy" else "white"
            plot.axes.plot([size.call_us(result) or roof_us], [index], marker=marker, color=color, markerfacecolor=filled,
                           linestyle="none", markersize=5.2, zorder=4)  # fmt: skip
            for number, column in enumerate(layout.columns):
                plot.write(number, index, column.cells[index], align=column.align)
        set_ticks(plot.axes, TICKS, [f"{v:g}" for v in TICKS], anchor=1)
    return plot.picture


def _title(best: RowResult, size: TraceSize) -> str:
    ratio = f", {times(best.ratio)} over {best.baseline}" if measured(best.ratio) else ""
    return f"{best.op}: {best.arm} takes {significant(size.call_us(best))} µs a call{ratio}, {size.calls * size.forwards} calls"
