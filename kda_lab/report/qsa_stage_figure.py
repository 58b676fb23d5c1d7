"""The stages of a pipeline, one line each: how far each is from its oracle, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kda_lab.errors import ParameterError
from kda_lab.report import grouping, style
from kda_lab.report.error_figure import DECADES_SMALL, EXACT_RANGE, scientific_tick
from kda_lab.report.latency_figure import DECADES
from kda_lab.report.numbers import DASH, measured, scientific, significant, times
from kda_lab.report.panels import padded
from kda_lab.report.row_plot import Column, Layout, RowPlot, row_plot, set_ticks
from kda_lab.report.style import BASELINE_LOOK, BLUE, INK, SMALL_PT, VERMILLION, Picture
from kda_lab.timing.statistics import RowResult

NOTE = "● error on what the stage before wrote;  │ its limit;  end to end and drafted attention: against dense attention in FP64"


@dataclass(frozen=True)
class StageCheck:
    """One stage through one arm, against an oracle."""

    stage: str
    arm: str
    error: float
    """In the metric of the stage; NaN where it could not be computed."""
    limit: float
    metric: str = "rel-L2"
    detail: str = ""
    """What failed, in words; empty when the stage is right."""

    @property
    def passed(self) -> bool:
        """Nothing failed, and the error is at most the limit: a NaN fails."""
        return not self.detail and self.error <= self.limit


def stage_errors(checks: Sequence[StageCheck], *, foot: str = "") -> Picture:
    """Error of each stage on a log axis beside its limit; a stage that rounds nothing must be equal.

    Raises:
        ParameterError: no stage was checked.
    """
    if not checks:
        raise ParameterError("report", "checks is empty; allowed: at least one checked stage.")
    values = [v for c in checks for v in (c.error, c.limit) if measured(v) and v > 0]
    layout = Layout(
        title=errors_title(checks),
        labels=[c.stage for c in checks],
        headings=[""] * len(checks),
        columns=(
            Column("arm", [c.arm for c in checks], align="left"),
            Column("error", [scientific(c.error) for c in checks]),
            Column("limit", [scientific(c.limit) for c in checks]),
            Column("of", [c.metric for c in checks], align="left"),
            Column("verdict", ["right" if c.passed else "WRONG" for c in checks], align="left"),
        ),
        axis_label="error (log scale; left is better)",
        foot=foot,
        notes=(NOTE,),
    )
    with style.settings():
        plot = row_plot(layout, padded(values or EXACT_RANGE))
        for index, check in enumerate(checks):
            _draw_check(plot, index, check, layout.columns)
        set_ticks(plot.axes, DECADES_SMALL, [scientific_tick(v) for v in DECADES_SMALL], anchor=1e-3)
    return plot.picture


def errors_title(checks: Sequence[StageCheck]) -> str:
    """How many stages are right, and which of those that round comes nearest to its limit."""
    right = sum(c.passed for c in checks)
    rounding = [c for c in checks if c.limit > 0 and measured(c.error)]
    told = f"Of {len(checks)} checks along the pipeline {right} are right"
    if not rounding:
        return f"{told}; none of them rounds"
    nearest = max(rounding, key=lambda c: c.error / c.limit)
    return f"{told}; nearest to its limit: {nearest.stage}, {scientific(nearest.error)} of {scientific(nearest.limit)}"


def _draw_check(plot: RowPlot, index: int, check: StageCheck, columns: Sequence[Column]) -> None:
    axes, colour = plot.axes, BLUE if check.passed else VERMILLION
    if check.limit > 0:
        axes.plot([check.limit] * 2, [index - 0.32, index + 0.32], color=INK, linewidth=1.6, zorder=2)
    if measured(check.error) and check.error > 0:
        marker = "o" if check.passed else "s"
        axes.plot([check.error], [index], marker=marker, markersize=4.4, color=colour, linestyle="none", zorder=5)
    elif check.error == 0:
        left = axes.get_position().x0
        style.plain(
            axes.text(
                left + 0.005, index, "0: equal", transform=plot.across, va="center", color=colour, fontsize=SMALL_PT
            )
        )
    for number, column in enumerate(columns):
        last = number == len(columns) - 1
        plot.write(number, index, column.cells[index], color=colour if last else INK, bold=last, align=column.align)


def stage_times(
    stages: Sequence[RowResult], ways: Sequence[RowResult], parts: Sequence[RowResult] = (), *, foot: str = ""
) -> Picture:
    """Microseconds a call: each stage's kernel beside its baseline and its roof, then the ways to attend, each whole.

    Args:
        stages: summarised rows of the stages that select, one row a stage.
        ways: summarised arms of one row: the same attention by different ways; the control is left out.
        parts: summarised rows of the two parts of attention over compacted rows.
        foot: one sentence on GPU, clocks, driver, trials, arm order, cold proof.

    Raises:
        ParameterError: nothing was timed.
    """
    lines = [*_stage_lines("selection", stages), *_way_lines(ways), *_stage_lines("parts of the compacted way", parts)]
    timed = [v for line in lines for v in (line.time_us, line.baseline_us, line.roof_us) if v]
    if not timed:
        raise ParameterError("report", "no stage has a time; allowed: at least one. Time the stages on a GPU first.")
    layout = Layout(
        title=times_title(stages, ways),
        labels=[line.label for line in lines],
        headings=[line.heading for line in lines],
        columns=(
            Column("µs", [significant(line.time_us) if line.label else "" for line in lines]),
            Column("baseline µs", [significant(line.baseline_us) if line.label else "" for line in lines]),
            Column("ratio", [_ratio(line) for line in lines]),
            Column("roof µs", [significant(line.roof_us) if line.label else "" for line in lines]),
            Column("state, reason", [line.state for line in lines], align="left"),
        ),
        axis_label="time per call in µs (log scale; left is faster)",
        foot=foot,
        notes=("● kernel;  □ the op's baseline;  │ roof: bytes / measured copy rate",),
    )
    with style.settings():
        plot = row_plot(layout, padded(timed))
        for index, line in enumerate(lines):
            _draw_line(plot, index, line)
            for number, column in enumerate(layout.columns):
                plot.write(number, index, column.cells[index], align=column.align)
        set_ticks(plot.axes, DECADES, [f"{v:g}" for v in DECADES], anchor=1)
    return plot.picture


def times_title(stages: Sequence[RowResult], ways: Sequence[RowResult]) -> str:
    """The sum of the stages that select, and the fastest way to attend."""
    total = [r.arm_us for r in stages if r.role == "candidate" and r.arm_us]
    timed = [r for r in ways if r.role != "control" and r.arm_us]
    parts = []
    if total:
        parts.append(f"the {len(total)} stages that select sum, timed apart, to {significant(sum(total))} µs")
    if timed:
        best = min(timed, key=lambda r: r.arm_us or 0)
        parts.append(f"of {len(timed)} ways to attend {best.arm} is the fastest, {significant(best.arm_us)} µs")
    told = "; ".join(parts) or "nothing was timed"
    return told[0].upper() + told[1:]


@dataclass(frozen=True)
class _Line:
    label: str | None
    heading: str = ""
    time_us: float | None = None
    baseline_us: float | None = None
    roof_us: float | None = None
    state: str = ""


def _stage_lines(heading: str, rows: Sequence[RowResult]) -> list[_Line]:
    found = [
        _Line(f"{r.row}: {r.arm}", "", r.arm_us, r.baseline_us, r.roof_us, _state(r))
        for members in grouping.grouped(rows, lambda r: r.row).values()
        for r in members
        if r.role == "candidate"
    ]
    return [_Line(None, heading), *found] if found else []


def _way_lines(rows: Sequence[RowResult]) -> list[_Line]:
    found = [_Line(r.arm, "", r.arm_us, r.baseline_us, r.roof_us, _state(r)) for r in rows if r.role != "control"]
    return [_Line(None, "attention, each way whole"), *found] if found else []


def _state(row: RowResult) -> str:
    return ", ".join(part for part in (row.state, row.verdict, row.reason) if part)


def _ratio(line: _Line) -> str:
    if not line.label:
        return ""
    return times(line.baseline_us / line.time_us) if line.baseline_us and line.time_us else DASH


def _draw_line(plot: RowPlot, index: int, line: _Line) -> None:
    axes = plot.axes
    if line.roof_us:
        axes.plot([line.roof_us] * 2, [index - 0.32, index + 0.32], color=INK, linewidth=1.4, zorder=2)
    if line.baseline_us:
        colour, marker = BASELINE_LOOK
        axes.plot([line.baseline_us], [index], marker=marker, markersize=4.2, color=colour, markerfacecolor="white",
                  linestyle="none", zorder=4)  # fmt: skip
    if line.time_us:
        axes.plot([line.time_us], [index], marker="o", markersize=4.6, color=BLUE, linestyle="none", zorder=5)
