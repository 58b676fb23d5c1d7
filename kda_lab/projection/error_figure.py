"""Error of every arm on drawn and on real rows of x, side by side: a panel an arm, a line a kind of rows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from kda_lab.errors import ParameterError
from kda_lab.projection.arms import FIVE, SIDE, THREE
from kda_lab.projection.equality import EqualityRow, worst_of
from kda_lab.projection.inputs import RANDOM
from kda_lab.projection.measure import ERROR_LIMIT
from kda_lab.report import style
from kda_lab.report.numbers import scientific, significant
from kda_lab.report.panels import EndLabel, Grid, label_ends, padded, panel_grid, ticks
from kda_lab.report.style import GREY, SMALL_PT, Picture
from kda_lab.verify.metrics import worst

PANELS = (FIVE, THREE, SIDE)
NAMES = {FIVE: "five GEMMs", THREE: "three", SIDE: "three + side, serial branch"}
TICKS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0)


def input_errors(rows: Sequence[EqualityRow], foot: str = "") -> Picture:
    """Errors against FP64 over tokens; a line's name says how far the largest |x| lies above the root mean square.

    Args:
        rows: from `equality.compare_arms`, of drawn and of real x.
        foot: one sentence on device, model and weights.

    Raises:
        ParameterError: there is no row, or none with a positive, finite error.
    """
    chosen = [r for r in rows if r.arm in PANELS and 0 < r.error < float("inf")]
    if not chosen:
        given = "rows is empty or without an error that can be drawn"
        raise ParameterError("projection", f"{given}; allowed: rows with positive errors. Compare the arms.")
    labels = list(dict.fromkeys(r.x.label for r in chosen))
    names = {label: _name(label, chosen) for label in labels}
    tokens = sorted({r.tokens for r in chosen})
    grid = Grid(
        title=_title(rows),
        panel_titles=[NAMES[arm] for arm in PANELS],
        columns=3,
        x_label="tokens M (log scale)",
        y_label="worst relative L2 error of qkv, gate, b and a against FP64 (log scale; down is better)",
        foot=foot,
        label_in=0.2 + max(style.text_width_in(name, SMALL_PT) for name in names.values()),
        panel_width_in=2.1,
        panel_height_in=2.1,
        notes=("dashed: limit;  a line's number: largest |x| over the root mean square of x", _bits(rows)),
    )
    with style.settings():
        picture, panels = panel_grid(grid, padded(tokens), padded([ERROR_LIMIT, *(r.error for r in chosen)]))
        for axes, arm in zip(panels, PANELS, strict=True):
            _panel(axes, [r for r in chosen if r.arm == arm], names)
            ticks(axes, tokens, TICKS)
    return picture


def _name(label: str, rows: Sequence[EqualityRow]) -> str:
    peak = worst([r.extent.peak for r in rows if r.x.label == label])
    return f"{label}: {significant(peak, 2)}"


def _title(rows: Sequence[EqualityRow]) -> str:
    parts = []
    for source in _sources(rows):
        error, peak = worst_of(rows, source)
        parts.append(f"{scientific(error)} on {_kind(source)} x (|x| up to {significant(peak, 2)} × rms)")
    return f"Projection errors: at most {' and '.join(parts)}, limit {scientific(ERROR_LIMIT)}"


def _bits(rows: Sequence[EqualityRow]) -> str:
    parts = []
    for arm in (THREE, SIDE):
        counts = []
        for source in _sources(rows):
            bits = [all(r.bits.values()) for r in rows if r.arm == arm and r.x.record()["source"] == source]
            counts.append(f"{sum(bits)} of {len(bits)} on {_kind(source)} x")
        parts.append(f"{NAMES[arm].partition(',')[0]} {', '.join(counts)}")
    return f"calls with the bits of five GEMMs: {'; '.join(parts)}"


def _sources(rows: Sequence[EqualityRow]) -> list[str]:
    return list(dict.fromkeys(r.x.record()["source"] for r in rows))


def _kind(source: str) -> str:
    return "drawn" if source == RANDOM else "real"


def _panel(axes: Axes, rows: Sequence[EqualityRow], names: dict[str, str]) -> None:
    axes.axhline(ERROR_LIMIT, color=GREY, linewidth=1.0, linestyle=(0, (4, 2)), zorder=2)
    ends = []
    for number, label in enumerate(names):
        members = sorted((r for r in rows if r.x.label == label), key=lambda r: r.tokens)
        if not members:
            continue
        color, mark = style.line_look(number)
        xs, ys = [r.tokens for r in members], [r.error for r in members]
        axes.plot(xs, ys, color=color, marker=mark, markersize=4, linewidth=1.1, zorder=3)
        ends.append(EndLabel(names[label], color, xs[-1], ys[-1]))
    label_ends(axes, ends)
