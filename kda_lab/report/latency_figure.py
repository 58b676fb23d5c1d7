"""The latency figure: every arm's time against the time the bytes alone would need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from kda_lab.errors import ParameterError
from kda_lab.report import grouping, style
from kda_lab.report.numbers import measured, times
from kda_lab.report.panels import EndLabel, Grid, label_ends, padded, panel_grid, ticks
from kda_lab.report.style import GREY, SMALL_PT, Picture
from kda_lab.timing.statistics import RowResult

DECADES = tuple(m * 10.0**e for e in range(-3, 7) for m in (1, 2, 5))
ROOF_MARKS = tuple(m * 10.0**e for e in range(-3, 7) for m in (1, 1.5, 2, 3, 5, 7))
ROOF = "roof"


@dataclass(frozen=True)
class _Axis:
    """What x means: the batch, or the roof where batches alone would not order the rows."""

    label: str
    value: Callable[[RowResult], float | None]
    panel: Callable[[RowResult], str]
    marks: Sequence[float]


def latency(rows: Sequence[RowResult], *, foot: str = "") -> Picture:
    """Time per call of each arm beside the roofline, log-log, one panel a topology and class.

    x is the batch where each panel has several batches; else it is the roof itself (bytes divided
    by the measured copy rate), one panel a topology, so that a set of unlike captures has an order too.

    Args:
        rows: summarised rows; the control arm (the baseline again) is left out.
        foot: one sentence on GPU, clocks, driver, trials, arm order, cold proof and capture hash.

    Raises:
        ParameterError: nothing was timed, so there is nothing to draw.
    """
    timed = [r for r in rows if r.role != "control" and measured(r.arm_us)]
    chosen = [r for r in timed if r.state == "cold" and measured(r.roof_us) and (r.roof_us or 0) > 0]
    if not chosen:
        raise ParameterError("report", "no row has both a cold time and a roof, so there is no latency to draw.")
    left_out = len(timed) - len(chosen)
    axis = _choose_axis(chosen)
    chosen = [r for r in chosen if (axis.value(r) or 0) > 0]
    # Candidates come first, so that the first colour is theirs in every figure.
    names = [
        *grouping.arms(chosen, ("candidate",)),
        *grouping.arms(chosen, ("peer",)),
        *grouping.arms(chosen, ("baseline",)),
    ]
    groups = list(grouping.grouped(chosen, lambda r: (axis.panel(r), grouping.topology(r))).values())
    groups.sort(key=lambda g: _panel_order(g[0], chosen, axis))
    by_class = len({axis.panel(r) for r in chosen}) > 1
    all_us = [t for r in chosen for t in (r.arm_us, r.roof_us) if t is not None]
    grid = Grid(
        title=_title(chosen),
        panel_titles=[_panel_title(g, axis if by_class else None) for g in groups],
        columns=min(2, len({grouping.topology(r) for r in chosen})) if by_class else 2,
        x_label=axis.label,
        y_label="time per call in µs (log scale; down is faster)",
        foot=foot,
        label_in=0.2 + max(style.text_width_in(n, SMALL_PT) for n in (*names, ROOF)),
        notes=(
            "dashed: roof = bytes / measured copy rate"
            + (f";  {left_out} times that are not cold are left out" if left_out else ""),
        ),
    )
    with style.settings():
        picture, panels = panel_grid(grid, padded([axis.value(r) or 1 for r in chosen]), padded(all_us))
        for axes, members in zip(panels, groups, strict=True):
            _draw_panel(axes, members, names, axis)
            ticks(axes, axis.marks, DECADES)
    return picture


def _choose_axis(rows: Sequence[RowResult]) -> _Axis:
    panels = grouping.grouped(rows, lambda r: (grouping.topology(r), grouping.row_class(r)))
    several = [g for g in panels.values() if len({grouping.batch(r) for r in g}) > 1]
    if all(grouping.batch(r) for r in rows) and 2 * len(several) > len(panels):
        marks = sorted({grouping.batch(r) or 0 for r in rows})
        return _Axis(f"{grouping.batch_label(rows)} (log scale)", grouping.batch, grouping.row_class, marks)
    return _Axis("roof in µs (log scale)", lambda r: r.roof_us, lambda r: "", ROOF_MARKS)


def _panel_order(row: RowResult, rows: Sequence[RowResult], axis: _Axis) -> tuple[int, int]:
    classes = list(dict.fromkeys(axis.panel(r) for r in rows))
    topologies = list(dict.fromkeys(grouping.topology(r) for r in rows))
    return classes.index(axis.panel(row)), topologies.index(grouping.topology(row))


def _panel_title(rows: Sequence[RowResult], axis: _Axis | None) -> str:
    return grouping.topology_title(rows, "" if axis is None else axis.panel(rows[0]) or "all")


def _title(rows: Sequence[RowResult]) -> str:
    """How near each candidate comes to the roof, at its best and at its worst row."""
    parts = []
    for name in grouping.arms(rows, ("candidate",)):
        gaps = [(r.arm_us or 0) / (r.roof_us or 1) for r in rows if r.arm == name]
        parts.append(f"{name} takes {times(min(gaps))} to {times(max(gaps))} the roof")
    told = "; ".join(parts) or "no candidate was timed"
    return f"{rows[0].op}: {told}, {len({r.row for r in rows})} rows"


def _draw_panel(axes: Axes, rows: Sequence[RowResult], names: Sequence[str], axis: _Axis) -> None:
    labels = []
    for name, members in grouping.grouped(rows, lambda r: r.arm).items():
        base = members[0].role == "baseline"
        color, marker = style.BASELINE_LOOK if base else style.line_look(names.index(name))
        points = sorted((axis.value(r) or 0, r.arm_us or 0) for r in members)
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        heavy = members[0].role == "candidate"
        axes.plot(xs, ys, color=color, marker=marker, markersize=4 if heavy else 3.2, linewidth=1.8 if heavy else 0.9,
                  zorder=4 if heavy else 3)  # fmt: skip
        labels.append(EndLabel(name, color, xs[-1], ys[-1]))
    roof = sorted({(axis.value(r) or 0, r.roof_us or 0) for r in rows})
    xs, ys = [p[0] for p in roof], [p[1] for p in roof]
    axes.plot(xs, ys, color=GREY, linewidth=1.2, linestyle=(0, (4, 2)), zorder=2)
    labels.append(EndLabel(ROOF, GREY, xs[-1], ys[-1]))
    label_ends(axes, labels)
