"""The error figure: what an arm's error is on each capture, and how far the tolerance is away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kda_lab.errors import ParameterError, Reason
from kda_lab.report import style
from kda_lab.report.numbers import measured, scientific
from kda_lab.report.panels import padded
from kda_lab.report.row_plot import Column, Layout, RowPlot, row_plot, set_ticks
from kda_lab.report.style import BLUE, GREY, INK, NEUTRAL, SMALL_PT, VERMILLION, Picture

NOTES = (
    "● error against the FP32 oracle;  ◆ error against the pinned output",
    "○ floor: rounding alone, emulated;  │ limit of the gate on the FP32 error",
)


def errors(verify_records: Sequence[Mapping[str, Any]], *, arm: str = "", foot: str = "") -> Picture:
    """Errors of one arm on every capture (rel-L2, log axis) beside the floor and the limit.

    Args:
        verify_records: lines of verify.jsonl; those of kind `replay` for the arm are drawn.
        arm: name of the arm; empty takes the first candidate, else the first arm.
        foot: one sentence on the device and the captures' hash.

    Raises:
        ParameterError: no replay of that arm, or none with an error.
    """
    replays = [r for r in verify_records if r.get("kind", "replay") == "replay"]
    chosen = _of_arm(replays, arm)
    name = str(chosen[0]["arm"])
    values = [v for r in chosen for v in _values(r).values() if v is not None and v > 0]
    if not values and not any(_values(r)["fp32"] == 0 for r in chosen):
        raise ParameterError("report", f"{name} has no positive error on any of {len(chosen)} captures.")
    counts = [_counts(r) for r in chosen]
    layout = Layout(
        title=_title(chosen, name),
        labels=[str(r["capture"]) for r in chosen],
        headings=[""] * len(chosen),
        columns=(
            Column("FP32 error", [scientific(_values(r)["fp32"]) for r in chosen]),
            Column("pinned error", [scientific(_values(r)["pinned"]) for r in chosen]),
            Column("limit", [scientific(_values(r)["limit"]) for r in chosen]),
            Column("checks", [f"{k}/{n}" for k, n in counts]),
            Column("verdict", ["passed" if r.get("passed") else "FAILED" for r in chosen], align="left"),
        ),
        axis_label="relative L2 error (log scale; left is better)",
        foot=foot,
        notes=NOTES,
    )
    with style.settings():
        plot = row_plot(layout, padded(values or EXACT_RANGE))
        for index, record in enumerate(chosen):
            _draw_row(plot, index, record, layout.columns)
        set_ticks(plot.axes, DECADES_SMALL, [scientific_tick(v) for v in DECADES_SMALL], anchor=1e-3)
    return plot.picture


EXACT_RANGE = (1e-8, 1e-3)
"""Ends of the axis where every error is 0, which a log axis cannot show."""
DECADES_SMALL = tuple(m * 10.0**e for e in range(-12, 2) for m in (1, 1.5, 2, 3, 5, 7))


def scientific_tick(value: float) -> str:
    """A tick label as short as it can be: 2e-3."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def limit_of(record: Mapping[str, Any], check: str) -> float | None:
    """The limit that a named check of a replay had; None when the check did not run or has none."""
    for item in record.get("checks") or ():
        if item.get("name") == check and measured(item.get("limit")):
            return float(item["limit"])
    return None


def _of_arm(replays: Sequence[Mapping[str, Any]], arm: str) -> list[Mapping[str, Any]]:
    candidates = [r for r in replays if r.get("role") == "candidate"]
    wanted = arm or str((candidates or replays or [{"arm": ""}])[0]["arm"])
    chosen = [r for r in replays if r.get("arm") == wanted]
    if not chosen:
        allowed = ", ".join(dict.fromkeys(str(r["arm"]) for r in replays)) or "none, since there are no replays"
        raise ParameterError("report", [Reason("arm", repr(wanted), allowed, "Name an arm that was replayed.")])
    return chosen


def _values(record: Mapping[str, Any]) -> dict[str, float | None]:
    found = record.get("errors") or {}
    values = {n: float(found[n]) if measured(found.get(n)) else None for n in ("fp32", "pinned", "floor")}
    return {**values, "limit": limit_of(record, "error_fp32")}


def _counts(record: Mapping[str, Any]) -> tuple[int, int]:
    checks = record.get("checks") or ()
    return sum(bool(c.get("passed")) for c in checks), len(checks)


def _title(records: Sequence[Mapping[str, Any]], name: str) -> str:
    passed = sum(bool(r.get("passed")) for r in records)
    worst = max((_values(r) for r in records), key=_closeness)
    told = ""
    if worst["fp32"] is not None and worst["limit"]:
        side = "nearest to" if worst["fp32"] <= worst["limit"] else "farthest beyond"
        told = f"; {side} the limit: {scientific(worst['fp32'])} against {scientific(worst['limit'])}"
    return f"{records[0].get('op', '')}: {name} passed every check on {passed} of {len(records)} captures{told}"


def _closeness(values: Mapping[str, float | None]) -> float:
    return (values["fp32"] or 0) / values["limit"] if values["limit"] else 0.0


def _draw_row(plot: RowPlot, index: int, record: Mapping[str, Any], columns: Sequence[Column]) -> None:
    values, passed = _values(record), bool(record.get("passed"))
    axes, color = plot.axes, BLUE if passed else VERMILLION
    limit = values["limit"]
    if limit:
        axes.plot([limit, limit], [index - 0.32, index + 0.32], color=INK, linewidth=1.6, zorder=2)
    if values["floor"]:
        axes.plot([values["floor"]], [index], marker="o", markersize=7.5, markerfacecolor="none", markeredgewidth=1,
                  color=NEUTRAL, linestyle="none", zorder=3)  # fmt: skip
    if values["pinned"]:
        axes.plot([values["pinned"]], [index], marker="D", markersize=4, color=GREY, linestyle="none", zorder=4)
    if values["fp32"]:
        marker = "o" if passed else "s"
        axes.plot([values["fp32"]], [index], marker=marker, markersize=4.4, color=color, linestyle="none", zorder=5)
    if values["fp32"] == 0:
        left = axes.get_position().x0
        style.plain(
            axes.text(left + 0.005, index, "0: equal to the oracle", transform=plot.across, va="center", color=color,
                      fontsize=SMALL_PT)
        )  # fmt: skip
    for number, column in enumerate(columns):
        last = number == len(columns) - 1
        plot.write(number, index, column.cells[index], color=color if last else INK, bold=last, align=column.align)
