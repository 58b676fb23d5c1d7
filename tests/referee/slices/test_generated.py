"""The made-up pair has exactly the totals that the thread printed, for any seed and any number of steps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.referee.slices.comparison import compare
from kda_lab.referee.slices.generated import BASELINE, CANDIDATE, MAIN, MARKER, SIDE, Targets, made_up_kernels
from kda_lab.referee.slices.kernel_list import KernelList
from kda_lab.referee.slices.steps import Marker, slice_trace


@settings(max_examples=12)
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 5]))
def test_the_totals_hold_for_any_seed(seed: int, steps: int) -> None:
    """Wall, sum and count of the representative slice, exact to the nanosecond."""
    cut = Marker(MARKER, 12, 4, 8)
    base, ours = (slice_trace(KernelList.of("t", made_up_kernels(t, steps, seed)), cut) for t in (BASELINE, CANDIDATE))
    found = compare(base, ours)
    for arm, targets, count in ((found.baseline, BASELINE, 114), (found.candidate, CANDIDATE, 105)):
        assert (arm.shown.wall_ns, arm.shown.summed_ns, arm.shown.kernels) == (
            targets.wall_ns,
            targets.summed_ns,
            count,
        )
        assert len(arm.measures) == steps
        assert (arm.shown.carried_in_ns, arm.shown.running_past_ns) == (0, 0)


@pytest.mark.parametrize("targets", [BASELINE, CANDIDATE], ids=["unfused", "fused"])
def test_no_stream_runs_two_kernels_at_once(targets: Targets) -> None:
    """Overlap comes from the side stream alone."""
    kernels = made_up_kernels(targets)
    for stream in (MAIN, SIDE):
        own = [k for k in kernels if k.stream == stream]
        assert all(a.end_ns < b.start_ns for a, b in pairwise(own))
    assert {k.stream for k in kernels} == {MAIN, SIDE}


def test_the_prologues_are_the_printed_ones() -> None:
    """Fused: one kernel a layer on the main stream, three of them; its side work ends within it."""
    fused = slice_trace(KernelList.of("t", made_up_kernels(CANDIDATE, 1)), Marker(MARKER, 12, 4, 8)).slices[0]
    merged = [k for k in fused.kernels if k.name.startswith("nvjet_tst_192x64")]
    assert len(merged) == 3
    assert sum(k.duration_ns for k in merged) == CANDIDATE.prologues_ns
    bfa = [
        k
        for k in fused.kernels
        if k.stream == SIDE and not k.name.startswith(("nvjet_tst_64x40", "moe", "nvjet_tst_64x56"))
    ]
    assert len(bfa) == 9
    assert all(any(m.start_ns < k.start_ns and k.end_ns < m.end_ns for m in merged) for k in bfa)


def test_the_unfused_prologues_are_the_printed_ones() -> None:
    """Seven kernels a layer, from the first start to the last end."""
    part = slice_trace(KernelList.of("t", made_up_kernels(BASELINE, 1)), Marker(MARKER, 12, 4, 8)).slices[0]
    main = [k for k in part.kernels if k.stream == MAIN]
    ends = [i for i, k in enumerate(main) if k.name.startswith("causal_conv1d")]
    assert len(ends) == 3
    assert sum(main[i - 1].end_ns - main[i - 7].start_ns for i in ends) == BASELINE.prologues_ns
