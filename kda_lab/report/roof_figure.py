"""The roof figure: which share of the memory roofline each arm reaches on every row."""

from __future__ import annotations

from collections.abc import Sequence

from kda_lab.errors import ParameterError
from kda_lab.report import grouping, style
from kda_lab.report.numbers import measured, percent, significant
from kda_lab.report.panels import padded
from kda_lab.report.row_plot import Column, Layout, RowPlot, row_plot, set_ticks
from kda_lab.report.style import INK, Picture
from kda_lab.timing.statistics import RowResult

SHARE_TICKS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100)
_SIGNS = {"o": "●", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖", "s": "■"}
"""How the note under the title prints a marker."""


def roof_shares(rows: Sequence[RowResult], *, foot: str = "") -> Picture:
    """Roof time over measured time, in percent on a log axis, one line a row and one mark an arm; 100 % is the roof.

    The roof is the least bytes of a call divided by the measured copy rate. Columns give the first candidate's numbers.

    Args:
        rows: summarised rows; the control arm (the baseline again) and times that are not cold are left out.
        foot: one sentence on GPU, clocks, driver, trials, arm order, cold proof and capture hash.

    Raises:
        ParameterError: no candidate has a cold time and a roof.
    """
    chosen = [r for r in rows if r.role != "control" and r.state == "cold" and measured(r.roof_share)]
    candidates = grouping.arms(chosen, ("candidate",))
    if not candidates:
        raise ParameterError("report", "no candidate has both a cold time and a roof, so there is no share to draw.")
    names = [*candidates, *grouping.arms(chosen, ("peer",)), *grouping.arms(chosen, ("baseline",))]
    looks = {n: style.BASELINE_LOOK if _is_baseline(chosen, n) else style.line_look(i) for i, n in enumerate(names)}
    labels, headings = grouping.with_headings(dict.fromkeys(r.row for r in chosen), chosen)
    by_row = grouping.grouped(chosen, lambda r: r.row)
    firsts = [next((r for r in by_row.get(label or "", ()) if r.arm == candidates[0]), None) for label in labels]
    layout = Layout(
        title=_title(chosen, candidates),
        labels=labels,
        headings=headings,
        columns=_columns(candidates[0], firsts),
        axis_label="share of the roof in % (log scale; right is faster)",
        foot=foot,
        notes=(";  ".join(f"{_SIGNS[marker]} {name}" for name, (_, marker) in looks.items()),
               "black line: the roof, bytes / measured copy rate"),
    )  # fmt: skip
    with style.settings():
        plot = row_plot(layout, padded([100.0, *(100 * (r.roof_share or 0) for r in chosen if r.roof_share)]))
        plot.axes.axvline(100, color=INK, linewidth=1.2, zorder=2)
        for index, label in enumerate(labels):
            _draw_row(plot, index, by_row.get(label or "", []), looks)
            for number, column in enumerate(layout.columns):
                plot.write(number, index, column.cells[index])
        set_ticks(plot.axes, SHARE_TICKS, [f"{v:g}" for v in SHARE_TICKS], anchor=100)
    return plot.picture


def _is_baseline(rows: Sequence[RowResult], name: str) -> bool:
    return any(r.arm == name and r.role == "baseline" for r in rows)


def _title(rows: Sequence[RowResult], candidates: Sequence[str]) -> str:
    parts = []
    for name in candidates:
        shares = [r.roof_share for r in rows if r.arm == name and r.roof_share]
        parts.append(f"{name} reaches {percent(min(shares))} to {percent(max(shares))} % of the roof")
    return f"{rows[0].op}: {'; '.join(parts)}, {len({r.row for r in rows})} rows"


def _columns(name: str, rows: Sequence[RowResult | None]) -> tuple[Column, ...]:
    def cells(field: str) -> list[str]:
        return ["" if r is None else significant(getattr(r, field)) for r in rows]

    return (
        Column(f"{name} %", ["" if r is None else percent(r.roof_share) for r in rows]),
        Column("µs", cells("arm_us")),
        Column("roof µs", cells("roof_us")),
        Column("GB/s", cells("bandwidth_gb_s")),
    )


def _draw_row(plot: RowPlot, index: int, rows: Sequence[RowResult], looks: dict[str, tuple[str, str]]) -> None:
    for row in rows:
        color, marker = looks[row.arm]
        heavy = row.role == "candidate"
        plot.axes.plot([100 * (row.roof_share or 0)], [index], marker=marker, markersize=5.2 if heavy else 3.8, color=color,
                       markerfacecolor=color if heavy else "white", linestyle="none", zorder=5 if heavy else 4)  # fmt: skip
