"""Throughput against requests in flight: arms that were measured at different occupancy, and at an equal one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from kda_lab.errors import ParameterError
from kda_lab.report import style
from kda_lab.report.frame import write_around
from kda_lab.report.style import RULE, SMALL_PT, TEXT_PT, Picture

WIDTH_IN, HEIGHT_IN = 7.6, 3.3
NOTE = "filled: as measured;  hollow: moved along the arm's line of constant latency to the same number in flight"


@dataclass(frozen=True)
class OccupiedArm:
    """What one arm had in flight, and what it delivered there."""

    arm: str
    in_flight: float
    throughput_tok_s: float

    def throughput_at(self, in_flight: float) -> float:
        """Tokens a second of a closed loop with another number in flight, at this arm's latency."""
        return self.throughput_tok_s * in_flight / self.in_flight


def occupancy(baseline: OccupiedArm, candidates: Sequence[OccupiedArm], *, foot: str = "") -> Picture:
    """Both arms on their lines of constant latency, and both at the candidate's number in flight.

    Args:
        baseline: the arm that is divided by.
        candidates: runs of the candidate, at least one; the first names the arm.
        foot: one sentence on hardware, source and units.

    Raises:
        ParameterError: no candidate, or a number that is not positive.
    """
    if not candidates or not all(a.in_flight > 0 and a.throughput_tok_s > 0 for a in (baseline, *candidates)):
        raise ParameterError(
            "report",
            "arms are without a positive number in flight and throughput; allowed: a baseline and a candidate.",
        )
    title = occupancy_title(baseline, candidates)
    with style.settings():
        picture = style.new_picture(WIDTH_IN, HEIGHT_IN, title)
        axes = picture.add_axes((0.085, 0.2, 0.6, 0.62))
        _draw(axes, baseline, candidates)
        write_around(picture, [title], [foot], NOTE)
    return picture


def occupancy_title(baseline: OccupiedArm, candidates: Sequence[OccupiedArm]) -> str:
    """The change as measured and at equal occupancy, in one sentence."""
    moved, rate, equal = _means(baseline, candidates)
    printed = 100 * (rate / baseline.throughput_tok_s - 1)
    at_equal = 100 * (equal / baseline.throughput_at(moved) - 1)
    title = (
        f"{printed:+.1f} % with {baseline.in_flight:.1f} against {moved:.1f} requests in flight "
        f"is {at_equal:+.1f} % at the same number"
    )
    return title.replace("-", "−")


def _means(baseline: OccupiedArm, candidates: Sequence[OccupiedArm]) -> tuple[float, float, float]:
    """Requests in flight, throughput, and throughput at that number in flight: means of the candidate's runs."""
    count = len(candidates)
    in_flight = sum(c.in_flight for c in candidates) / count
    rate = sum(c.throughput_tok_s for c in candidates) / count
    return in_flight, rate, sum(c.throughput_at(in_flight) for c in candidates) / count


def _draw(axes: Axes, baseline: OccupiedArm, candidates: Sequence[OccupiedArm]) -> None:
    moved, _, equal = _means(baseline, candidates)
    ends = [min(baseline.in_flight, moved), max(baseline.in_flight, moved)]
    room = max(0.25, 0.35 * (ends[1] - ends[0]))
    x = [ends[0] - room, ends[1] + room]
    colours = (style.NEUTRAL, style.BLUE)
    for arm, colour in ((baseline, colours[0]), (OccupiedArm(candidates[0].arm, moved, equal), colours[1])):
        y = [arm.throughput_at(v) for v in x]
        axes.plot(x, y, color=colour, linewidth=1, linestyle=(0, (4, 3)), zorder=2)
        slope = f" {arm.arm}: {arm.throughput_at(1):.2f} tok/s a request"
        style.plain(axes.text(x[1], y[1], slope, fontsize=SMALL_PT, color=colour, va="center", clip_on=False))
    axes.plot([baseline.in_flight], [baseline.throughput_tok_s], marker="s", color=colours[0], markersize=6, zorder=4)
    for run in candidates:
        axes.plot([run.in_flight], [run.throughput_tok_s], marker="o", color=colours[1], markersize=6, zorder=4)
    there = baseline.throughput_at(moved)
    axes.plot([moved], [there], marker="s", color=colours[0], markerfacecolor="white", markersize=7, zorder=4)
    axes.axvline(moved, color=RULE, linewidth=0.8, zorder=1)
    _label(axes, baseline.in_flight, baseline.throughput_tok_s, f"{baseline.throughput_tok_s:.1f}", (-5, 7), "right")
    _label(axes, moved, there, f"{there:.1f} at {moved:.1f} in flight", (-7, 7), "right")
    _label(axes, moved, equal, f"{equal:.1f}", (7, -9), "left")
    axes.set_xlim(*x)
    axes.set_xlabel("requests in flight (throughput × latency)", fontsize=TEXT_PT)
    axes.set_ylabel("output tokens a second", fontsize=TEXT_PT)
    axes.grid(color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL_PT, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _label(axes: Axes, x: float, y: float, text: str, offset: tuple[float, float], align: str) -> None:
    note = axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", fontsize=SMALL_PT, ha=align)
    style.plain(note)
