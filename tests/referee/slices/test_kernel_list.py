"""Kernels of any reader are sorted and checked once, in one place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.slices.kernel_list import Kernel, KernelList, refusal

numbers = st.integers(0, 10**9)
kernels = st.lists(st.builds(Kernel, st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 40), numbers, st.integers(0, 900)),
                   min_size=1, max_size=12, unique=True)  # fmt: skip


@given(kernels)
def test_kernels_come_out_sorted_whatever_their_order(given_kernels: list[Kernel]) -> None:
    """Order of start, and the same list for any order of reading."""
    found = KernelList.of("t", given_kernels)
    assert [k.start_ns for k in found.kernels] == sorted(k.start_ns for k in given_kernels)
    assert found == KernelList.of("t", reversed(given_kernels))
    assert set(found.devices) == {k.device for k in given_kernels}


def test_an_empty_list_is_refused() -> None:
    """A trace without kernels compares nothing."""
    with pytest.raises(RefereeError, match=re.escape("t.json: kernels is 0; allowed: at least one. Profile with CUDA")):
        KernelList.of("t.json", [])


def test_a_negative_duration_is_refused() -> None:
    """The message names the kernel and its time."""
    message = "duration of kernel 'k' at 5 ns, in ns is -1; allowed: 0 or more."
    with pytest.raises(RefereeError, match=re.escape(message)):
        KernelList.of("t", [Kernel("k", 0, 7, 5, -1)])


def test_a_kernel_listed_twice_is_refused() -> None:
    """Two profiles joined into one file would count everything twice."""
    with pytest.raises(RefereeError, match="kernel 'k' at 5 ns on stream 7, times it is listed is 2; allowed: 1"):
        KernelList.of("t", [Kernel("k", 0, 7, 5, 1), Kernel("k", 0, 7, 5, 1)])


def test_durations_in_another_unit_than_starts_are_refused() -> None:
    """Nanoseconds of duration beside microseconds of start fill one stream many times over."""
    mixed = [Kernel("k", 0, 7, 10 * i, 9000) for i in range(40)]
    with pytest.raises(
        RefereeError, match=r"device 0 stream 7, .* is 38\.\d; allowed: at most 8. Starts and durations"
    ):
        KernelList.of("t", mixed)
    assert KernelList.of("t", [k._replace(duration_ns=9) for k in mixed])


def test_neighbours_that_overlap_on_a_stream_are_allowed() -> None:
    """Programmatic dependent launch starts a kernel before the one in front has ended."""
    assert KernelList.of("t", [Kernel("k", 0, 7, 10 * i, 19) for i in range(40)])


def test_a_refusal_cuts_what_was_given() -> None:
    """A huge value does not fill the message."""
    assert len(str(refusal("t", "field", "x" * 10_000, "less"))) < 300
