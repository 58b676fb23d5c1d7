"""What a slice took: wall, sum of durations, union of intervals, overlap, idle, and the sum of each category.

    wall    = end - start
    summed  = sum of the durations of the slice's kernels
    union   = length of the union of their intervals (the time in which at least one of them ran)
    overlap = summed - union
    idle    = wall - time within the slice in which any kernel of the device ran

A kernel belongs to the slice in which it starts. So its end may lie past the slice's (`running_past`), and one of the
slice before may still run at the start (`carried_in`): wall = union - running_past + carried_in + idle, exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from kda_lab.referee.slices.categories import Categories
from kda_lab.referee.slices.kernel_list import Kernel
from kda_lab.referee.slices.steps import Slice


@dataclass(frozen=True)
class SliceMeasure:
    """Times of one slice in nanoseconds; every one is whole and exact."""

    step: int
    wall_ns: int
    summed_ns: int
    kernels: int
    """How many."""
    union_ns: int
    overlap_ns: int
    idle_ns: int
    carried_in_ns: int
    """In which only kernels of before the slice ran."""
    running_past_ns: int
    """By which the union goes on after the slice's end."""
    streams: int
    category_ns: dict[str, int]
    """Category to the sum of its kernels' durations; every category, `other` last."""
    category_kernels: dict[str, int]


def union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union of intervals [start, end); one that is empty or turned round counts nothing."""
    total, reached = 0, None
    for start, end in sorted(intervals):
        begin = start if reached is None else max(start, reached)
        if end > begin:
            total += end - begin
            reached = end
    return total


def measure(part: Slice, categories: Categories) -> SliceMeasure:
    """Measure one slice."""
    own = [(k.start_ns, k.end_ns) for k in part.kernels]
    summed, union = sum(k.duration_ns for k in part.kernels), union_ns(own)
    within = union_ns((start, min(end, part.end_ns)) for start, end in own)
    any_kernel = [*own, *((part.start_ns, k.end_ns) for k in part.carried_in)]
    busy = union_ns((start, min(end, part.end_ns)) for start, end in any_kernel)
    durations, counts = _by_category(part.kernels, categories)
    wall = part.end_ns - part.start_ns
    return SliceMeasure(
        step=part.step,
        wall_ns=wall,
        summed_ns=summed,
        kernels=len(part.kernels),
        union_ns=union,
        overlap_ns=summed - union,
        idle_ns=wall - busy,
        carried_in_ns=busy - within,
        running_past_ns=union - within,
        streams=len({k.stream for k in part.kernels}),
        category_ns=durations,
        category_kernels=counts,
    )


def _by_category(kernels: Sequence[Kernel], categories: Categories) -> tuple[dict[str, int], dict[str, int]]:
    durations: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for kernel in kernels:
        category = categories.of(kernel.name)
        durations[category] += kernel.duration_ns
        counts[category] += 1
    return {n: durations[n] for n in categories.names}, {n: counts[n] for n in categories.names}


def representative(measures: Sequence[SliceMeasure]) -> int:
    """Index of the slice whose wall is nearest the median of all; of two as near, that of the lower step.

    Args:
        measures: at least one, in the order of their steps.
    """
    middle = median(m.wall_ns for m in measures)
    return min(range(len(measures)), key=lambda i: (abs(measures[i].wall_ns - middle), measures[i].step))
