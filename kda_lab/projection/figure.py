"""Speedup of the fused arms over the unfused one against tokens: a panel for each attention-parallel size."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from kda_lab.errors import ParameterError
from kda_lab.projection.arms import SIDE, THREE
from kda_lab.projection.results import Result, geomean
from kda_lab.report import style
from kda_lab.report.numbers import times
from kda_lab.report.panels import EndLabel, Grid, label_ends, padded, panel_grid, ticks
from kda_lab.report.style import BAND, INK, Picture

TICKS = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0)
NAMES = {THREE: "three", SIDE: "three + side"}


def fusion_speedup(results: Sequence[Result], foot: str = "") -> Picture:
    """One line an arm and mode, intervals at every point, the A/A band behind them.

    Args:
        results: from `results.summarise`.
        foot: one sentence on GPU, rounds, order and rotation.

    Raises:
        ParameterError: there is nothing to draw.
    """
    if not results:
        raise ParameterError("projection", "results is empty; allowed: at least one measured cell. Measure on a GPU.")
    sizes = sorted({r.cell.attn_tp for r in results})
    lines = list(dict.fromkeys(_line(r) for r in results))
    tokens = sorted({r.cell.tokens for r in results})
    grid = Grid(
        title=_title(results),
        panel_titles=[f"attention parallel {size}" for size in sizes],
        columns=3,
        x_label="tokens M (log scale)",
        y_label="speedup = time of five GEMMs / time of the arm (log scale; up is faster)",
        foot=foot,
        label_in=0.2 + max(style.text_width_in(name, style.SMALL_PT) for name in lines),
        panel_width_in=2.3,
        panel_height_in=2.1,
        notes=("bar: bootstrap 95 % interval of paired rounds;  grey band: widest A/A difference of the panel",),
    )
    values = [1.0, *[v for r in results for v in (r.speedup, r.low, r.high)]]
    with style.settings():
        picture, panels = panel_grid(grid, padded(tokens, 0.05), padded(values))
        for axes, size in zip(panels, sizes, strict=True):
            _panel(axes, [r for r in results if r.cell.attn_tp == size], lines)
            ticks(axes, tokens, TICKS, "×")
    return picture


def _line(result: Result) -> str:
    return f"{NAMES.get(result.arm, result.arm)}, {result.cell.mode}"


def _title(results: Sequence[Result]) -> str:
    parts = []
    for name in dict.fromkeys(_line(r) for r in results):
        parts.append(f"{name} {times(geomean([r for r in results if _line(r) == name]))}")
    return f"Projection fusion, geomean over five GEMMs: {'; '.join(parts)}"


def _panel(axes: Axes, results: Sequence[Result], lines: Sequence[str]) -> None:
    noise = max(abs(r.control_percent) for r in results) / 100
    axes.axhspan(max(1 - noise, 0.1), 1 + noise, color=BAND, linewidth=0, zorder=1)
    axes.axhline(1, color=INK, linewidth=1.0, zorder=2)
    labels = []
    for number, name in enumerate(lines):
        members = sorted((r for r in results if _line(r) == name), key=lambda r: r.cell.tokens)
        if not members:
            continue
        color, mark = style.line_look(number)
        # A small shift keeps the intervals of the lines at one number of tokens apart.
        shift = 1 + 0.035 * (number - (len(lines) - 1) / 2)
        xs, ys = [r.cell.tokens * shift for r in members], [r.speedup for r in members]
        axes.plot(xs, ys, color=color, marker=mark, markersize=4, linewidth=1.1, zorder=3)
        for x, r in zip(xs, members, strict=True):
            axes.plot([x, x], [r.low, r.high], color=color, linewidth=2.2, solid_capstyle="butt", zorder=4)
        labels.append(EndLabel(name, color, xs[-1], ys[-1]))
    label_ends(axes, labels)
