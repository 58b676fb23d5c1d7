"""Laws of wall, sum, union, overlap and idle, on any kernels at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.referee.slices.categories import Categories
from kda_lab.referee.slices.kernel_list import Kernel
from kda_lab.referee.slices.measures import SliceMeasure, measure, representative, union_ns
from kda_lab.referee.slices.steps import Slice

WALL = 1000
names = st.sampled_from(["nvjet_a", "moe_b", "kda_c", "x"])
inside = st.lists(
    st.builds(Kernel, names, st.just(0), st.integers(0, 3), st.integers(0, WALL - 1), st.integers(0, 400)), max_size=12
)
before = st.lists(
    st.builds(Kernel, names, st.just(0), st.integers(0, 3), st.integers(-300, -1), st.integers(301, 900)), max_size=4
)
intervals = st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), max_size=12)


def part(kernels: list[Kernel], carried: list[Kernel] | None = None) -> Slice:
    """A slice of [0, WALL)."""
    return Slice(0, 0, WALL, tuple(sorted(kernels, key=lambda k: k.start_ns)), tuple(carried or ()), (len(kernels),))


@given(intervals)
def test_the_union_is_the_number_of_covered_points(spans: list[tuple[int, int]]) -> None:
    """Counted one by one."""
    assert union_ns(spans) == len({point for start, end in spans for point in range(start, end)})


@given(intervals, st.integers(-1000, 1000))
def test_the_union_does_not_care_when_it_happened(spans: list[tuple[int, int]], shift: int) -> None:
    """Translation changes nothing."""
    assert union_ns((a + shift, b + shift) for a, b in spans) == union_ns(spans)


@given(inside, before)
def test_every_slice_obeys_the_laws(kernels: list[Kernel], carried: list[Kernel]) -> None:
    """Union <= summed; idle >= 0; wall = union - running past + carried in + idle; categories add up."""
    found = measure(part(kernels, carried), Categories())
    assert 0 <= found.union_ns <= found.summed_ns
    assert found.overlap_ns == found.summed_ns - found.union_ns
    assert 0 <= found.idle_ns <= found.wall_ns == WALL
    assert found.wall_ns == found.union_ns - found.running_past_ns + found.carried_in_ns + found.idle_ns
    assert min(found.carried_in_ns, found.running_past_ns) >= 0
    assert sum(found.category_ns.values()) == found.summed_ns
    assert sum(found.category_kernels.values()) == found.kernels == len(kernels)


@given(inside)
def test_kernels_that_lie_inside_leave_the_rest_idle(kernels: list[Kernel]) -> None:
    """Union <= wall, and idle is the difference."""
    cut = [k._replace(duration_ns=min(k.duration_ns, WALL - k.start_ns)) for k in kernels]
    found = measure(part(cut), Categories())
    assert found.union_ns <= found.wall_ns
    assert (found.idle_ns, found.running_past_ns, found.carried_in_ns) == (found.wall_ns - found.union_ns, 0, 0)


@given(inside, before, st.integers(-(10**12), 10**12))
def test_a_slice_does_not_care_when_it_happened(kernels: list[Kernel], carried: list[Kernel], shift: int) -> None:
    """Translation changes no measure."""
    here = part(kernels, carried)
    there = replace(
        here, start_ns=shift, end_ns=shift + WALL,
        kernels=tuple(k._replace(start_ns=k.start_ns + shift) for k in here.kernels),
        carried_in=tuple(k._replace(start_ns=k.start_ns + shift) for k in here.carried_in),
    )  # fmt: skip
    assert measure(there, Categories()) == measure(here, Categories())


@given(inside)
def test_one_stream_without_overlap_has_a_sum_that_is_its_union(kernels: list[Kernel]) -> None:
    """Overlap is zero exactly where no two kernels share a moment."""
    at, serial = 0, []
    for kernel in kernels:
        serial.append(kernel._replace(start_ns=at, stream=7))
        at += kernel.duration_ns
    found = measure(part(serial), Categories())
    assert found.overlap_ns == 0
    assert found.streams == min(1, len(serial))


def test_a_slice_computed_by_hand() -> None:
    """Two streams, one kernel carried in, one running past."""
    kernels = [Kernel("moe", 0, 7, 100, 300), Kernel("nvjet", 0, 23, 300, 300), Kernel("x", 0, 7, 900, 150)]
    found = measure(part(kernels, [Kernel("moe", 0, 7, -50, 120)]), Categories())
    assert (found.summed_ns, found.union_ns, found.overlap_ns) == (750, 650, 100)
    assert (found.carried_in_ns, found.running_past_ns, found.idle_ns) == (70, 50, 1000 - 70 - 500 - 100 + 0)
    assert {n: v for n, v in found.category_ns.items() if v} == {"moe": 300, "projection": 300, "other": 150}
    assert (found.kernels, found.streams) == (3, 2)


@pytest.mark.parametrize(
    ("walls", "chosen"),
    [
        ([5], 0),
        ([1, 9, 4], 2),
        ([1, 3], 0),
        ([3, 1], 0),
        ([4, 1, 2, 9], 0),
        ([1, 2, 4, 9], 1),
        ([7, 7, 7], 0),
        ([2, 4, 4, 6], 1),
    ],
)
def test_the_representative_is_nearest_the_median(walls: list[int], chosen: int) -> None:
    """Of two as near, the lower step."""
    made = [SliceMeasure(i, w, 0, 0, 0, 0, 0, 0, 0, 0, {}, {}) for i, w in enumerate(walls)]
    assert representative(made) == chosen
