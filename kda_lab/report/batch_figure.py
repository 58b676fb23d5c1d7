"""Speedup over batch: one panel a topology, one line a class or a baseline, the interval at each point."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from kda_lab.errors import ParameterError
from kda_lab.report import grouping, style
from kda_lab.report.numbers import measured, times
from kda_lab.report.panels import EndLabel, Grid, label_ends, padded, panel_grid, ticks
from kda_lab.report.speedup_figure import TICKS, speedup_title
from kda_lab.report.style import BAND, INK, SMALL_PT, Picture
from kda_lab.timing.statistics import RowResult, headline


def speedup_by_batch(rows: Sequence[RowResult], *, candidate: str, foot: str = "") -> Picture:
    """Speedup of one arm against batch, both on log axes, with bootstrap 95 % intervals: one line a class.

    Args:
        rows: summarised rows of any arms; those of `candidate` with a batch and a verdict are drawn.
        candidate: name of the arm.
        foot: one sentence on GPU, clocks, driver, trials, arm order, cold proof and capture hash.

    Raises:
        ParameterError: no row has that arm, or none of its rows has both a batch and a verdict.
    """
    all_rows = grouping.rows_of(rows, candidate)
    chosen = _with_batch(all_rows, candidate)
    title = speedup_title(all_rows, candidate, chosen[0].baseline or "baseline")
    return _figure(chosen, title, grouping.row_class, foot)


def speedup_over_each(comparisons: Sequence[Sequence[RowResult]], *, candidate: str, foot: str = "") -> Picture:
    """The same against several baselines at once: one line a baseline, and a class where there are several.

    Args:
        comparisons: summarised rows, once for each arm that was divided by.
        candidate, foot: as for `speedup_by_batch`.

    Raises:
        ParameterError: as `speedup_by_batch`.
    """
    # A baseline is a row of the comparison with another one, too; beside itself it has no ratio.
    all_rows = [r for rows in comparisons for r in grouping.rows_of(rows, candidate)]
    chosen = _with_batch(all_rows, candidate)
    several = len({grouping.row_class(r) for r in chosen}) > 1
    parts = []
    for name, members in grouping.grouped(chosen, lambda r: r.baseline).items():
        numbers = headline(members, candidate)
        if numbers is not None:
            parts.append(f"{times(numbers.geomean)} over {name} (min {times(numbers.minimum)}, n = {numbers.count})")
    title = f"{chosen[0].op}: {candidate}, geomean: {', '.join(parts)}"
    return _figure(chosen, title, lambda r: f"{r.baseline} {grouping.row_class(r)}" if several else r.baseline, foot)


def _with_batch(rows: Sequence[RowResult], candidate: str) -> list[RowResult]:
    chosen = [r for r in grouping.judged(rows) if (grouping.batch(r) or 0) > 0]
    if not chosen:
        axis = grouping.batch_axis(rows)
        raise ParameterError("report", f"{candidate} has no row with a verdict and a batch axis {axis!r}.")
    return chosen


def _figure(chosen: Sequence[RowResult], title: str, line: Callable[[RowResult], str], foot: str) -> Picture:
    """One panel a topology, one line for each value of `line`."""
    lines = list(dict.fromkeys(line(r) for r in chosen))
    groups = list(grouping.grouped(chosen, grouping.topology).values())
    batches = sorted({grouping.batch(r) or 0 for r in chosen})
    ratios = [1.0, *[v for r in chosen for v in (r.ratio, r.low, r.high) if v is not None and measured(v) and v > 0]]
    grid = Grid(
        title=title,
        panel_titles=[grouping.topology_title(g) for g in groups],
        columns=2,
        x_label=f"{grouping.batch_label(chosen)} (log scale)",
        y_label="speedup = baseline time / candidate time (log scale; up is faster)",
        foot=foot,
        label_in=0.2 + max(style.text_width_in(name, SMALL_PT) for name in lines),
        panel_width_in=2.6,
        panel_height_in=2.3,
        notes=("bar: bootstrap 95 % interval;  grey band: widest noise floor of the panel (A/A arm)",),
    )
    with style.settings():
        picture, panels = panel_grid(grid, padded(batches, 0.05), padded(ratios))
        for axes, members in zip(panels, groups, strict=True):
            _draw_panel(axes, members, line, lines)
            ticks(axes, batches, TICKS, "×")
    return picture


def _draw_panel(axes: Axes, rows: Sequence[RowResult], line: Callable[[RowResult], str], lines: Sequence[str]) -> None:
    noise = max([r.noise for r in rows if r.noise is not None and measured(r.noise)] or [0.0])
    axes.axhspan(max(1 - noise, 0.1), 1 + noise, color=BAND, linewidth=0, zorder=1)
    axes.axhline(1, color=INK, linewidth=1.0, zorder=2)
    labels = []
    for name, members in grouping.grouped(rows, line).items():
        number = lines.index(name)
        color, marker = style.line_look(number)
        members = sorted(members, key=lambda r: (grouping.batch(r) or 0, r.row))
        # A small shift keeps the intervals of the lines at one batch apart.
        shift = 1 + 0.035 * (number - (len(lines) - 1) / 2)
        xs = [(grouping.batch(r) or 0) * shift for r in members]
        ys = [r.ratio or 1 for r in members]
        axes.plot(xs, ys, color=color, marker=marker, markersize=4, linewidth=1.1, zorder=3)
        for x, row in zip(xs, members, strict=True):
            if measured(row.low) and measured(row.high):
                axes.plot([x, x], [row.low, row.high], color=color, linewidth=2.2, solid_capstyle="butt", zorder=4)
        labels.append(EndLabel(name or "all", color, xs[-1], ys[-1]))
    label_ends(axes, labels)
