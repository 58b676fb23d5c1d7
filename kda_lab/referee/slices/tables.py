"""The numbers of a comparison as text: CSV of all steps, and tables of the representative slices for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

from kda_lab.referee.slices.comparison import SliceComparison, change_percent
from kda_lab.referee.slices.kernel_list import NS_PER_US
from kda_lab.referee.slices.measures import SliceMeasure

CSV_COLUMNS = (
    "variant", "step", "wall_us", "summed_kernel_us", "kernels", "union_us", "overlap_us", "idle_us", "streams",
    "carried_in_us", "running_past_us", "representative",
)  # fmt: skip
PARTS: tuple[tuple[str, Callable[[SliceMeasure], int]], ...] = (
    ("wall", lambda m: m.wall_ns),
    ("union of intervals", lambda m: m.union_ns),
    ("idle", lambda m: m.idle_ns),
    ("summed durations", lambda m: m.summed_ns),
    ("overlap", lambda m: m.overlap_ns),
)
Lines = tuple[tuple[str, ...], ...]
DASH = "—"


def steps_csv(found: SliceComparison) -> str:
    """Every slice of both arms, a line each; microseconds with their nanoseconds, so nothing is rounded."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for arm in found.arms:
        for index, m in enumerate(arm.measures):
            times = (m.union_ns, m.overlap_ns, m.idle_ns)
            writer.writerow([
                arm.variant, m.step, _us(m.wall_ns), _us(m.summed_ns), m.kernels, *map(_us, times), m.streams,
                _us(m.carried_in_ns), _us(m.running_past_ns), int(index == arm.chosen),
            ])  # fmt: skip
    return stream.getvalue()


def part_lines(found: SliceComparison) -> Lines:
    """Measure, baseline, candidate, difference and change of the representative slices; the counts last."""
    base, ours = (a.shown for a in found.arms)
    lines = [_line(f"{name}, µs", of(base), of(ours)) for name, of in PARTS]
    for name, before, after in (("kernels", base.kernels, ours.kernels), ("streams", base.streams, ours.streams)):
        lines.append((name, str(before), str(after), f"{after - before:+d}", _change(before, after)))
    return tuple(lines)


def category_lines(found: SliceComparison) -> Lines:
    """Category, µs in the baseline and the candidate, difference, change, kernels before and after; empty ones are left out."""
    base, ours = (a.shown for a in found.arms)
    return tuple(
        (
            *_line(name, base.category_ns[name], ours.category_ns[name]),
            str(base.category_kernels[name]),
            str(ours.category_kernels[name]),
        )
        for name in found.categories.names
        if base.category_kernels[name] or ours.category_kernels[name]
    )


def step_lines(found: SliceComparison) -> Lines:
    """Variant, step, wall, summed, union, overlap, idle in µs, kernels, and a mark at the representative step."""
    return tuple(
        (
            arm.variant, str(m.step), *(f"{v / NS_PER_US:.3f}" for v in (m.wall_ns, m.summed_ns, m.union_ns, m.overlap_ns, m.idle_ns)),
            str(m.kernels), "representative" if index == arm.chosen else "",
        )
        for arm in found.arms
        for index, m in enumerate(arm.measures)
    )  # fmt: skip


PART_HEADS = ("measure", "baseline", "candidate", "difference", "change %")
CATEGORY_HEADS = ("category", "baseline µs", "candidate µs", "difference µs", "change %", "kernels before", "after")
STEP_HEADS = ("variant", "step", "wall µs", "summed µs", "union µs", "overlap µs", "idle µs", "kernels", "")


def _line(name: str, before_ns: int, after_ns: int) -> tuple[str, ...]:
    cells = (
        f"{before_ns / NS_PER_US:.3f}",
        f"{after_ns / NS_PER_US:.3f}",
        f"{(after_ns - before_ns) / NS_PER_US:+.3f}",
    )
    return (name, *cells, _change(before_ns, after_ns))


def _change(before: float, after: float) -> str:
    change = change_percent(before, after)
    return DASH if change is None else f"{change:+.2f}"


def _us(value_ns: int) -> str:
    """Nanoseconds as microseconds, exact: 1977.695."""
    sign = "-" if value_ns < 0 else ""
    return f"{sign}{abs(value_ns) // NS_PER_US}.{abs(value_ns) % NS_PER_US:03d}"
