"""The figures of one slice comparison: what is drawn of it, its title and its small print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kda_lab.referee.slices.categories import OTHER
from kda_lab.referee.slices.comparison import ArmSlices, SliceComparison, change_percent
from kda_lab.referee.slices.kernel_list import NS_PER_US

if TYPE_CHECKING:
    from kda_lab.report.slice_figure import DrawnArm
    from kda_lab.report.style import Picture


def drawn_files(found: SliceComparison) -> dict[str, str | bytes]:
    """Both figures as SVG and PNG: file name to content, for `outputs.write_outputs`."""
    from kda_lab.report.style import png_bytes, svg_text  # lazy: matplotlib

    files: dict[str, str | bytes] = {}
    for name, picture in (("slice_lanes", lanes_figure(found)), ("slice_parts", parts_figure(found))):
        files |= {f"{name}.svg": svg_text(picture), f"{name}.png": png_bytes(picture)}
    return files


def lanes_figure(found: SliceComparison) -> Picture:
    """Both representative slices from their start on: a lane a stream, a colour a category."""
    from kda_lab.report.slice_figure import slice_lanes  # lazy: matplotlib

    arms = [_drawn(a, found) for a in found.arms]
    return slice_lanes(arms, found.categories.names, OTHER, title=title(found), foot=_foot(found))


def parts_figure(found: SliceComparison) -> Picture:
    """Wall and summed durations of both representative slices, each in its parts."""
    from kda_lab.report.slice_figure import slice_parts  # lazy: matplotlib

    return slice_parts([_drawn(a, found) for a in found.arms], title=title(found), foot=_foot(found))


def title(found: SliceComparison) -> str:
    """The change of wall, summed durations and kernels in one sentence."""
    base, ours = (a.shown for a in found.arms)
    wall = _words(change_percent(base.wall_ns, ours.wall_ns))
    summed = _words(change_percent(base.summed_ns, ours.summed_ns))
    return f"Wall of the slice {wall}, summed kernel durations {summed}, kernels {base.kernels} → {ours.kernels}"


def _words(change: float | None) -> str:
    return "without a change that can be given" if change is None else f"{change:+.2f} %".replace("-", "−")


def _drawn(arm: ArmSlices, found: SliceComparison) -> DrawnArm:
    from kda_lab.report.slice_figure import Bar, DrawnArm  # lazy: matplotlib

    part, shown = arm.shown_slice, arm.shown
    lanes: dict[str, list[Bar]] = {f"stream {s}": [] for s in sorted({k.stream for k in part.kernels})}
    for kernel in part.kernels:
        start_us = (kernel.start_ns - part.start_ns) / NS_PER_US
        bar = Bar(start_us, kernel.duration_ns / NS_PER_US, found.categories.of(kernel.name))
        lanes[f"stream {kernel.stream}"].append(bar)
    return DrawnArm(
        name=arm.variant,
        lanes=lanes,
        wall_us=shown.wall_ns / NS_PER_US,
        union_us=shown.union_ns / NS_PER_US,
        overlap_us=shown.overlap_ns / NS_PER_US,
        idle_us=shown.idle_ns / NS_PER_US,
    )


def _foot(found: SliceComparison) -> str:
    marker = found.baseline.slicing.marker
    base, ours = (Path(a.slicing.source).name for a in found.arms)
    steps = ", ".join(f"{a.variant} step {a.shown.step} of 0 to {a.measures[-1].step}" for a in found.arms)
    return f"{base} against {ours} · {marker.name}, launches {marker.first} to {marker.last} of {marker.per_step} · {steps}"
