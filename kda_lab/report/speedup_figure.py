"""The speedup figure: one interval a row, against the noise floor of that very row."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.patches import Rectangle

from kda_lab.errors import ParameterError, Reason
from kda_lab.report import grouping, style
from kda_lab.report.numbers import DASH, measured, significant, times
from kda_lab.report.row_plot import Column, Layout, RowPlot, row_plot, set_ticks
from kda_lab.report.style import BAND, GREY, INK, SMALL_PT, VERDICT_STYLE, Picture
from kda_lab.timing.statistics import RowResult, headline

TICKS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.65, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8,
    10, 15, 20, 30, 40, 50, 70, 100, 150, 200, 300, 500, 1000,
)  # fmt: skip


def speedup(rows: Sequence[RowResult], *, candidate: str, baseline: str = "", foot: str = "") -> Picture:
    """Interval plot of one arm against the baseline, rows in case order under their topology.

    Args:
        rows: summarised rows of any arms; those of `candidate` are drawn.
        candidate: name of the arm.
        baseline: the arm in the ratio's numerator; empty takes the rows' own.
        foot: one sentence on GPU, clocks, driver, trials, arm order, cold proof and capture hash.

    Raises:
        ParameterError: no row has that arm, or its ratios divide another baseline.
    """
    chosen = grouping.rows_of(rows, candidate)
    found = sorted({r.baseline for r in chosen if r.baseline})
    if baseline and found and found != [baseline]:
        remedy = "The ratios in the records divide that one."
        raise ParameterError("report", [Reason("baseline", repr(baseline), ", ".join(found), remedy)])
    labels, headings = grouping.with_headings([r.row for r in chosen], chosen)
    by_label = {r.row: r for r in chosen}
    ordered = [by_label.get(label or "") for label in labels]
    base = baseline or (found[0] if found else "baseline")
    layout = Layout(
        title=speedup_title(chosen, candidate, base),
        labels=labels,
        headings=headings,
        columns=_columns(ordered),
        axis_label="speedup = baseline time / candidate time (log scale; right is faster)",
        foot=foot,
        notes=(_band_note(chosen),),
    )
    with style.settings():
        plot = row_plot(layout, _limits(chosen))
        draw_rows(plot, ordered, layout.columns)
        set_ticks(plot.axes, TICKS, [f"{v:g}×" for v in TICKS], anchor=1)
    return plot.picture


def speedup_title(rows: Sequence[RowResult], candidate: str, baseline: str) -> str:
    """The result in one sentence: counts, geomean, minimum, and what was not measured."""
    timed = grouping.judged(rows)
    numbers = headline(timed, candidate)
    op = rows[0].op
    if numbers is None:
        return f"{op}: {candidate} has a verdict on none of {len(rows)} rows"
    counts = {v: sum(r.verdict == v for r in timed) for v in VERDICT_STYLE}
    rest = ", ".join(f"{n} {v}" for v, n in counts.items() if n and v != "faster")
    missing = len(rows) - sum(counts.values())
    parts = [f"{counts['faster']} of {len(rows)} rows faster beyond noise"]
    parts += [rest] if rest else []
    parts += [f"{missing} without a verdict"] if missing else []
    return (
        f"{op}: {candidate} against {baseline}: {', '.join(parts)}; "
        f"geomean {times(numbers.geomean)}, min {times(numbers.minimum)}, n = {numbers.count}"
    )


def _columns(ordered: Sequence[RowResult | None]) -> tuple[Column, ...]:
    def cell(row: RowResult | None) -> str:
        if row is None:
            return ""
        if not row.verdict or not measured(row.ratio):
            return DASH
        return f"{significant(row.ratio)} [{significant(row.low)}, {significant(row.high)}]"

    bases = ["" if r is None else significant(r.baseline_us) for r in ordered]
    candidates = ["" if r is None else significant(r.arm_us) for r in ordered]
    verdicts = ["" if r is None else (r.verdict or DASH) for r in ordered]
    return (
        Column("ratio [95 %]", [cell(r) for r in ordered]),
        Column("base µs", bases),
        Column("cand. µs", candidates),
        Column("verdict", verdicts, align="left"),
    )


def _band_note(rows: Sequence[RowResult]) -> str:
    noises = [r.noise for r in rows if r.noise is not None and measured(r.noise)]
    if not noises:
        return "no A/A arm was measured, so there is no noise floor"
    low, high = (f"{significant(100 * n, 2)}" for n in (min(noises), max(noises)))
    size = f"±{low} %" if low == high else f"±{low} to {high} %"
    return (
        f"grey band: noise floor of the row (A/A arm), {size};  bar: bootstrap 95 % interval;  mark: ratio of medians"
    )


def band_edges(noise: float) -> tuple[float, float]:
    """Edges of the noise band, 1 ± noise; a band as wide as the ratio itself still has a left edge on a log axis."""
    return max(1 - noise, 0.1), 1 + noise


def _limits(rows: Sequence[RowResult]) -> tuple[float, float]:
    values = [1.0]
    for row in grouping.judged(rows):
        values += [v for v in (row.ratio, row.low, row.high) if v is not None and measured(v) and v > 0]
        if row.noise is not None and measured(row.noise):
            values += band_edges(row.noise)
    low, high = min(values), max(values)
    pad = max((high / low) ** 0.05, 1.03)
    return low / pad, high * pad


def draw_rows(plot: RowPlot, ordered: Sequence[RowResult | None], columns: Sequence[Column]) -> None:
    """Noise band, interval, mark and cells of each row, the last column in the colour of the verdict.

    A row without a verdict has its reason in place of a mark. None stands where a heading is.
    """
    axes = plot.axes
    axes.axvline(1, color=INK, linewidth=1.0, zorder=2)
    for index, row in enumerate(ordered):
        if row is None:
            continue
        if row.noise is not None and measured(row.noise):
            left, right = band_edges(row.noise)
            axes.add_patch(Rectangle((left, index - 0.5), right - left, 1, color=BAND, linewidth=0, zorder=1))
        _draw_mark(plot, index, row)
        look = VERDICT_STYLE.get(row.verdict)
        color = look["color"] if look else GREY
        for number, column in enumerate(columns):
            last = number == len(columns) - 1
            bold = last and row.verdict in ("faster", "slower")
            plot.write(number, index, column.cells[index], color=color if last else INK, bold=bold, align=column.align)


def _draw_mark(plot: RowPlot, index: int, row: RowResult) -> None:
    look = VERDICT_STYLE.get(row.verdict)
    if look and measured(row.ratio):
        if measured(row.low) and measured(row.high):
            plot.axes.plot([row.low, row.high], [index, index], color=look["color"], linewidth=2.6,
                           solid_capstyle="butt", zorder=3)  # fmt: skip
        plot.axes.plot([row.ratio], [index], marker=look["marker"], color=look["color"], linestyle="none",
                       markerfacecolor=look["markerfacecolor"], markersize=5.2, markeredgewidth=1.2, zorder=4)  # fmt: skip
    if row.reason and not row.verdict:
        left = plot.axes.get_position().x0
        text = style.clipped(f"{DASH} {row.reason}", SMALL_PT, 2.9)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        style.plain(
            plot.axes.text(left + 0.01, index, text, transform=plot.across, va="center", color=GREY,
                           fontsize=SMALL_PT, bbox=box, zorder=5)
        )  # fmt: skip
