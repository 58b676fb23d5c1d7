"""What a few runs can say: every relabelling of them, and how often a true change would be found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from matplotlib.axes import Axes

from kda_lab.errors import ParameterError
from kda_lab.report import style
from kda_lab.report.frame import undress, write_around
from kda_lab.report.style import GREY, RULE, SMALL_PT, TEXT_PT, Picture

WIDTH_IN, HEIGHT_IN = 9.6, 3.5
NOTE = "left: each way to hand out the labels, blue as extreme as the observed one;  right: power, by runs an arm"
MOST_RELABELLINGS = 1000


@dataclass(frozen=True)
class PowerCurve:
    """How often a change is found with a number of runs an arm."""

    runs: int
    effects_percent: Sequence[float]
    power: Sequence[float]
    """Shares of 1."""
    mde_percent: float | None
    """Where the curve reaches 0.8; None where it never does."""


def relabelled_percent(baseline: Sequence[float], candidate: Sequence[float]) -> list[float]:
    """Change of the geometric means, in percent, under every way to hand out the labels; the observed one first.

    Raises:
        ParameterError: an arm is empty, a value is not positive, or there are more than `MOST_RELABELLINGS` ways.
    """
    values = [*baseline, *candidate]
    ways = math.comb(len(values), len(candidate))
    if not baseline or not candidate or not all(v > 0 for v in values) or ways > MOST_RELABELLINGS:
        given = f"{len(baseline)} against {len(candidate)} values, {ways} ways"
        raise ParameterError(
            "report", f"runs are {given}; allowed: positive values of both arms, at most {MOST_RELABELLINGS} ways."
        )
    logs = [math.log(v) for v in values]
    found = []
    for chosen in combinations(range(len(logs) - 1, -1, -1), len(candidate)):
        inside = sum(logs[i] for i in chosen) / len(candidate)
        outside = (sum(logs) - inside * len(candidate)) / len(baseline)
        found.append(100 * math.expm1(inside - outside))
    return found


def power(
    baseline: Sequence[float], candidate: Sequence[float], curves: Sequence[PowerCurve], noise_percent: float,
    *, foot: str = "",
) -> Picture:  # fmt: skip
    """Left: the relabellings of the runs at hand. Right: power against the true change, one curve a number of runs.

    Args:
        baseline: one value a run, any unit.
        candidate: the same of the other arm.
        curves: at least one, at one noise.
        noise_percent: standard deviation of one run that the curves assume.
        foot: one sentence on source and units.

    Raises:
        ParameterError: as `relabelled_percent`, or no curve.
    """
    changes = relabelled_percent(baseline, candidate)
    if not curves:
        raise ParameterError("report", "curves are empty; allowed: at least one power curve.")
    title = power_title(changes, len(baseline), len(candidate))
    with style.settings():
        picture = style.new_picture(WIDTH_IN, HEIGHT_IN, title)
        left = picture.add_axes((0.03, 0.2, 0.38, 0.62))
        right = picture.add_axes((0.49, 0.2, 0.34, 0.62))
        _draw_relabelled(left, changes)
        _draw_curves(right, curves, changes[0], noise_percent)
        write_around(picture, [title], [foot], NOTE)
    return picture


def power_title(changes: Sequence[float], baseline_runs: int, candidate_runs: int) -> str:
    """How many relabellings are as extreme as what was seen, in one sentence."""
    extreme = _extreme(changes)
    seen = f"{changes[0]:+.2f} %".replace("-", "−")
    return (
        f"{seen} between the means of {baseline_runs} and {candidate_runs} runs: {extreme} of {len(changes)} "
        f"relabellings are as extreme, p = {extreme / len(changes):.2f}"
    )


def _extreme(changes: Sequence[float]) -> int:
    """Twice the smaller tail, as the referee counts."""
    above = sum(c >= changes[0] - 1e-9 for c in changes)
    below = sum(c <= changes[0] + 1e-9 for c in changes)
    return min(len(changes), 2 * min(above, below))


def _draw_relabelled(axes: Axes, changes: Sequence[float]) -> None:
    ordered = sorted(changes)
    tail = _extreme(changes) // 2
    for rank, change in enumerate(ordered):
        colour = style.BLUE if min(rank, len(ordered) - 1 - rank) < tail else style.NEUTRAL
        axes.plot([0, change], [rank, rank], color=style.BAND, linewidth=1, zorder=1)
        axes.plot([change], [rank], marker="o", markersize=4.5, color=colour, zorder=3)
    seen = ordered.index(changes[0])
    note = axes.annotate("as it was run", (changes[0], seen), xytext=(0, 5), textcoords="offset points",
                         ha="right" if changes[0] > 0 else "left", fontsize=SMALL_PT, color=style.BLUE)  # fmt: skip
    style.plain(note)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_yticks([])
    axes.set_ylim(-1, len(ordered) + 1)
    axes.set_xlabel("change of the means under each relabelling, %", fontsize=TEXT_PT)
    undress(axes)
    axes.spines["left"].set_visible(False)


def _draw_curves(axes: Axes, curves: Sequence[PowerCurve], seen_percent: float, noise_percent: float) -> None:
    widest = max(max(c.effects_percent) for c in curves)
    for number, curve in enumerate(curves):
        colour, marker = style.line_look(number)
        axes.plot(curve.effects_percent, [100 * p for p in curve.power], color=colour, linewidth=1.1, marker=marker,
                  markersize=3.5, zorder=3)  # fmt: skip
        mde = "never 80 %" if curve.mde_percent is None else f"80 % at {curve.mde_percent:.2f} %"
        y = 1 - 0.12 * number
        key = axes.text(1.03, y, f"{curve.runs} v {curve.runs}: {mde}", transform=axes.transAxes, fontsize=SMALL_PT,
                        color=colour, va="top")  # fmt: skip
        style.plain(key)
    axes.axhline(80, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    if abs(seen_percent) <= widest:
        axes.axvline(abs(seen_percent), color=RULE, linewidth=1)
        style.plain(axes.text(abs(seen_percent), 3, " seen", fontsize=SMALL_PT, color=GREY))
    axes.set_xlim(0, widest * 1.02)
    axes.set_ylim(-2, 102)
    axes.set_xlabel(f"true change, % (noise of one run {noise_percent:.2f} %)", fontsize=TEXT_PT)
    axes.set_ylabel("found, % of experiments", fontsize=TEXT_PT)
    undress(axes)
