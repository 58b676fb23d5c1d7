"""Steps are cut at a marker, slices at two of its launches, by the start of kernels alone."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.slices.kernel_list import Kernel, KernelList
from kda_lab.referee.slices.steps import Marker, slice_trace


def trace(pattern: str, gap_ns: int = 100) -> KernelList:
    """A kernel a letter, one after another; `m` is the marker. Each runs for half of the gap."""
    kernels = [Kernel(f"{name}_kernel", 0, 7, gap_ns * i, gap_ns // 2) for i, name in enumerate(pattern)]
    return KernelList.of("t.json", kernels)


def test_a_slice_reaches_from_one_start_to_another() -> None:
    """The end's own marker belongs to what comes next."""
    found = slice_trace(trace("mabmcmd" * 2), Marker("m_kernel", 3, 0, 2))
    assert [s.step for s in found.slices] == [0, 1]
    assert [(s.start_ns, s.end_ns) for s in found.slices] == [(0, 500), (700, 1200)]
    assert ["".join(k.name[0] for k in s.kernels) for s in found.slices] == ["mabmc"] * 2
    assert [s.launches for s in found.slices] == [(3, 2)] * 2
    assert found.uneven_steps == ()


def test_a_slice_may_end_with_the_next_step() -> None:
    """The last step has no step after it and is left out."""
    found = slice_trace(trace("ma" * 6), Marker("m_kernel", 2, 0, 2))
    assert [(s.start_ns, s.end_ns) for s in found.slices] == [(0, 400), (400, 800)]


def test_a_kernel_belongs_where_it_starts() -> None:
    """One that crosses the start is carried in; one at the very nanosecond of the marker is inside."""
    kernels = [
        Kernel("long", 0, 23, 10, 95), Kernel("short", 0, 7, 90, 5), Kernel("m", 0, 7, 100, 5), Kernel("same", 0, 3, 100, 5),
        Kernel("late", 0, 23, 190, 50), Kernel("m", 0, 7, 200, 5),
    ]  # fmt: skip
    part = slice_trace(KernelList.of("t", kernels), Marker("m", 2, 0, 1)).slices[0]
    assert {k.name for k in part.kernels} == {"m", "same", "late"}
    assert [k.name for k in part.carried_in] == ["long"]


def test_another_device_does_not_count() -> None:
    """Markers are counted on one device, the lowest unless named."""
    kernels = [k._replace(device=d, start_ns=k.start_ns + d) for d in (2, 5) for k in trace("mama").kernels]
    both = KernelList.of("t", kernels)
    marker = Marker("m_kernel", 2, 0, 1)
    assert slice_trace(both, marker).device == 2
    assert slice_trace(both, marker, 5).slices[0].start_ns == 5
    with pytest.raises(RefereeError, match="t: device is 0; allowed: 2, 5"):
        slice_trace(both, marker, 0)


def test_a_part_of_the_name_will_do_where_it_is_one_kernels() -> None:
    """The whole name is kept in the result."""
    assert slice_trace(trace("mama"), Marker("m_ker", 2, 0, 1)).marker_name == "m_kernel"
    message = "kernels whose name holds '_kernel' is ['a_kernel', 'm_kernel']; allowed: one name. Give the whole name."
    with pytest.raises(RefereeError, match=re.escape(message)):
        slice_trace(trace("mama"), Marker("_kernel", 2, 0, 1))


def test_a_missing_marker_is_answered_with_near_names() -> None:
    """Or with the most frequent kernels where none is near."""
    with pytest.raises(
        RefereeError, match=r"t.json: marker is 'm_kernal'; allowed: a kernel of this trace, such as m_kernel"
    ):
        slice_trace(trace("mama"), Marker("m_kernal", 2, 0, 1))
    with pytest.raises(RefereeError, match="such as a_kernel, m_kernel"):
        slice_trace(trace("maaa"), Marker("~~~~~~~~", 2, 0, 1))


def test_a_number_of_markers_that_is_no_multiple_is_refused() -> None:
    """A profile that began within a step cannot be cut."""
    message = (
        "launches of 'm_kernel' is 5; allowed: a positive multiple of per_step, 2. The profile must hold whole steps"
    )
    with pytest.raises(RefereeError, match=re.escape(message)):
        slice_trace(trace("ma" * 5), Marker("m_kernel", 2, 0, 1))


def test_one_step_has_no_step_after_it() -> None:
    """So a slice that ends with the next step is refused."""
    with pytest.raises(
        RefereeError, match=r"last is 2; allowed: below 2 for a trace of one step. The last step has no"
    ):
        slice_trace(trace("mama"), Marker("m_kernel", 2, 0, 2))


def test_a_wrong_number_per_step_shows_where_steps_do_not_repeat() -> None:
    """Steps of three markers read as steps of two cut other layers each time."""
    with pytest.raises(
        RefereeError, match=re.escape("step by step is [2, 4, 3, 2, 4, 3]; allowed: one number in more than half")
    ):
        slice_trace(trace("mambbmccc" * 4), Marker("m_kernel", 2, 0, 1))


def test_two_steps_that_differ_are_refused() -> None:
    """Neither is what most steps are."""
    with pytest.raises(RefereeError, match=re.escape("step by step is [2, 3]; allowed: one number in more than half")):
        slice_trace(trace("mama" + "maamaa"), Marker("m_kernel", 2, 0, 1))


def test_an_uneven_step_is_told() -> None:
    """Most steps repeat, one does not."""
    found = slice_trace(trace("mama" + "maamaa" + "mama"), Marker("m_kernel", 2, 0, 1))
    assert found.uneven_steps == (1,)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((" ", 1, 0, 1), "marker is ' '; allowed: a kernel's name."),
        (("m", 0, 0, 1), "per_step is 0; allowed: 1 or more."),
        (("m", 4, 4, 5), "first is 4; allowed: 0 to 3, below per_step. last is 5; allowed: 5 to 4."),
        (("m", 4, -1, 2), "first is -1; allowed: 0 to 3"),
        (("m", 4, 2, 2), "last is 2; allowed: 3 to 4."),
        (("m", 4, 2, 5), "last is 5; allowed: 3 to 4."),
    ],
    ids=["name", "per-step", "both", "negative", "empty", "beyond"],
)
def test_a_marker_out_of_range_is_refused(fields: tuple[str, int, int, int], message: str) -> None:
    """Every wrong number at once, each with its range."""
    with pytest.raises(RefereeError, match=re.escape(message)):
        Marker(*fields)


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_neighbouring_slices_share_all_kernels_between_them(per_step: int, steps: int, data: st.DataObject) -> None:
    """Slices [0, j) and [j, per_step) of one trace hold each kernel of [0, per_step) exactly once."""
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=per_step, max_size=per_step))
    one = "".join("m" + "a" * n for n in lengths)
    found = trace(one * steps + one)
    whole = slice_trace(found, Marker("m_kernel", per_step, 0, per_step))
    cut = data.draw(st.integers(1, per_step))
    first = slice_trace(found, Marker("m_kernel", per_step, 0, cut))
    for index, part in enumerate(whole.slices):
        rest = (
            slice_trace(found, Marker("m_kernel", per_step, cut, per_step)).slices[index].kernels
            if cut < per_step
            else ()
        )
        assert first.slices[index].kernels + rest == part.kernels
