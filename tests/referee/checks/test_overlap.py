"""Sum, union and wall of kernels on more than one stream."""

from __future__ import annotations

from kda_lab.referee.checks import overlap
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.finding import Finding

BASE = {"wall_us": 1977.695, "summed_kernel_us": 2190.766}
CAND = {"wall_us": 1951.731, "summed_kernel_us": 2363.971}


def checked(metric: str, base: dict[str, float], cand: dict[str, float]) -> tuple[Finding, ...]:
    """Slices of both arms."""
    runs = (Run(arm="baseline", metrics=base), Run(arm="candidate", metrics=cand))
    return overlap.check(Claim(name="x", metric=metric, runs=runs))


def test_a_sum_of_overlapping_kernels_is_no_verdict() -> None:
    """The fusion thread's sum grows by 7.9 % because work overlaps."""
    (found,) = checked("summed_kernel_us", BASE, CAND)
    assert (found.severity, found.short) == ("invalid", "sum of overlapping kernels")
    assert "candidate: overlap at least 2363.97 - 1951.73 = 412.24 us" in found.arithmetic


def test_the_wall_counts_where_they_disagree() -> None:
    """The wall falls by 1.31 % while the sum rises: a note."""
    (found,) = checked("wall_us", BASE, CAND)
    assert (found.severity, found.arithmetic[-1]) == ("note", "sum +7.91 %, wall -1.31 %")


def test_one_stream_may_be_summed() -> None:
    """Without overlap the sum is the busy time."""
    base, cand = ({"wall_us": 100.0, "union_us": u, "summed_kernel_us": u} for u in (90.0, 80.0))
    (found,) = checked("summed_kernel_us", base, {**cand, "wall_us": 92.0})
    assert found.severity == "passed"


def test_a_union_above_its_wall_is_impossible() -> None:
    """Numbers that contradict each other are invalid."""
    (found,) = checked("wall_us", {**BASE, "union_us": 2100.0}, CAND)
    assert (found.severity, found.short) == ("invalid", "union exceeds wall or sum")
