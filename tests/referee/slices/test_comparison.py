"""The pair is compared by the wall; what two traces do not allow to be said is refused or told."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kda_lab.errors import RefereeError
from kda_lab.referee.judge import judge
from kda_lab.referee.slices.categories import Categories, Category
from kda_lab.referee.slices.comparison import SliceComparison, change_percent, claim_of, compare, disagreements
from kda_lab.referee.slices.kernel_list import Kernel, KernelList
from kda_lab.referee.slices.steps import Marker, Slicing, slice_trace

PRINTED = {"wall_us": (1977.695, 1951.731), "summed_kernel_us": (2190.766, 2363.971), "kernels": (114, 105)}


def sliced(*kernels: Kernel, source: str = "t.json", steps: int = 3, marker: Marker | None = None) -> Slicing:
    """Steps of 1000 ns that repeat the kernels given; two markers a step, of 10 ns, at 0 and 500."""
    marks = (Kernel("moe_gate", 0, 7, 0, 10), Kernel("moe_gate", 0, 7, 500, 10))
    made = [k._replace(start_ns=k.start_ns + 1000 * s) for s in range(steps) for k in (*marks, *kernels)]
    return slice_trace(KernelList.of(source, made), marker or Marker("moe_gate", 2, 0, 1))


BUSY = (Kernel("nvjet_a", 0, 7, 20, 400), Kernel("nvjet_b", 0, 7, 520, 400))


def test_the_sum_grows_while_the_wall_shrinks(pair: SliceComparison) -> None:
    """The numbers of the thread on projection fusion, from the kernels up."""
    assert disagreements(pair, PRINTED) == []
    assert pair.overlapped
    assert pair.findings() == (
        "kernels overlap: the sum of durations (+7.91 %) counts that time twice and goes the other way than the wall (-1.31 %)",
        "the walls of the steps do not overlap: 1972.736 to 1984.775 µs against 1946.837 to 1958.718 µs",
    )


def test_a_measure_that_is_not_as_expected_is_told(pair: SliceComparison) -> None:
    """To the nanosecond, with the arm named."""
    wrong = {**PRINTED, "wall_us": (1977.695, 1951.732)}
    assert disagreements(pair, wrong) == ["wall_us of the candidate is 1951.731, expected 1951.732"]
    for expected in ({"idle": (1, 2)}, {"wall_us": (1.0,)}):
        with pytest.raises(RefereeError, match=r"expected .* is .*; allowed: two values of one of wall_us, union_us"):
            disagreements(pair, expected)


def test_one_pair_of_traces_is_one_run_an_arm_and_decides_nothing(pair: SliceComparison) -> None:
    """However many steps a trace holds; the referee notes that sum and wall disagree."""
    claim = claim_of([pair], "fusion")
    assert [(r.arm, r.round) for r in claim.runs] == [("baseline", None), ("candidate", None)]
    assert claim.runs[1].metrics == pytest.approx(
        {"wall_us": 1951.731, "summed_kernel_us": 2363.971, "kernels": 105, "streams": 2,
         "union_us": pair.candidate.shown.union_ns / 1000}
    )  # fmt: skip
    found = judge(claim)
    assert found.verdict == "inconclusive"
    assert [f.short for f in found.of("overlap")] == ["sum and wall disagree"]


def test_the_sum_of_overlapping_kernels_is_no_metric_of_a_verdict(pair: SliceComparison) -> None:
    """The referee refuses the claim that is made with it."""
    found = judge(claim_of([pair], "fusion").model_copy(update={"metric": "summed_kernel_us"}))
    assert (found.verdict, found.detail) == ("invalid", "sum of overlapping kernels")


def test_several_pairs_are_rounds(pair: SliceComparison) -> None:
    """Each in its own, in order."""
    assert [r.round for r in claim_of([pair, pair], "twice").runs] == [0, 0, 1, 1]


def test_the_union_of_a_claim_never_exceeds_the_wall() -> None:
    """A kernel that runs past the slice's end counts within the slice only."""
    tail = sliced(*BUSY, Kernel("kda", 0, 23, 450, 400))
    found = compare(tail, tail)
    metrics = claim_of([found], "x").runs[0].metrics
    assert found.baseline.shown.union_ns > 460
    assert metrics["union_us"] <= metrics["wall_us"]
    assert any("cross the slice's ends (0 µs carried in, 0.35 µs running past)" in w for w in found.findings())


def test_serial_kernels_have_nothing_to_be_told() -> None:
    """One stream, no overlap: sum and union are one."""
    found = compare(sliced(*BUSY), sliced(*BUSY))
    assert not found.overlapped
    assert found.findings() == ("the walls of the steps overlap: 0.500 to 0.500 µs against 0.500 to 0.500 µs",)


def test_slices_that_are_not_cut_alike_are_refused() -> None:
    """Each number that differs is named with both values."""
    other = sliced(*BUSY, marker=Marker("moe_gate", 2, 1, 2), source="c.json")
    message = "c.json: first is 1; allowed: 0, as in the baseline. c.json: last is 2; allowed: 1, as in the baseline."
    with pytest.raises(RefereeError, match=re.escape(message)):
        compare(sliced(*BUSY), other)
    with pytest.raises(RefereeError, match="per_step is 1; allowed: 2, as in the baseline"):
        compare(sliced(*BUSY), sliced(*BUSY, marker=Marker("moe_gate", 1, 0, 1)))


def test_a_drifted_pattern_table_is_refused() -> None:
    """The largest kernels without a category are named; a category for them mends it."""
    drifted = sliced(*(k._replace(name=f"cutedsl_{k.name[-1]}") for k in BUSY), source="c.json")
    message = "c.json: share of category other in percent is 97.6; allowed: at most 10. The pattern table has drifted; give these a category: cutedsl_a."
    with pytest.raises(RefereeError, match=re.escape(message)):
        compare(sliced(*BUSY), drifted)
    assert compare(sliced(*BUSY), drifted, Categories.extended([Category("dsl", ("cutedsl",))]))
    assert compare(sliced(*BUSY), drifted, other_limit_percent=100)


def test_a_slice_without_work_is_refused() -> None:
    """Durations in microseconds beside starts in nanoseconds look like an idle device."""
    thin = sliced(source="c.json")
    kernels = tuple(k._replace(duration_ns=1) for k in thin.slices[0].kernels)
    idle = replace(thin, slices=tuple(replace(s, kernels=kernels) for s in thin.slices))
    message = "c.json: idle share of the slice in percent is 99.80; allowed: at most 99. Starts"
    with pytest.raises(RefereeError, match=re.escape(message)):
        compare(sliced(*BUSY), idle)


def test_walls_a_thousand_apart_are_refused() -> None:
    """One trace in microseconds, one in nanoseconds."""
    base = sliced(*BUSY)
    longer = [Kernel("moe_gate", 0, 7, 500_000 * i, 400_000) for i in range(6)]
    large = slice_trace(KernelList.of("c.json", longer), Marker("moe_gate", 2, 0, 1))
    message = "walls of baseline and candidate in µs is 0.5, 500; allowed: within 50x of each other. One trace may be in another"
    with pytest.raises(RefereeError, match=re.escape(message)):
        compare(base, large)


def test_single_steps_and_uneven_steps_are_told() -> None:
    """A reader knows how many steps stand behind the median, and which of them differ."""
    extra = Kernel("nvjet_x", 0, 23, 1050, 10)
    made = [
        k
        for s in range(3)
        for k in (Kernel("moe_gate", 0, 7, 1000 * s, 10), Kernel("moe_gate", 0, 7, 1000 * s + 500, 10))
    ]
    made += [k._replace(start_ns=k.start_ns + 1000 * s) for s in range(3) for k in BUSY]
    uneven = slice_trace(KernelList.of("c", [*made, extra]), Marker("moe_gate", 2, 0, 1))
    words = compare(sliced(*BUSY, steps=1), uneven).findings()
    assert "baseline: one step, so its spread from step to step is unknown" in words
    assert "candidate: kernel counts of steps 1 are not those of most of its 3" in words


def test_markers_of_two_names_are_told() -> None:
    """A part of a name may find another kernel in each trace."""
    renamed = replace(sliced(*BUSY), marker_name="moe_gate_v2")
    assert (
        "the marker is 'moe_gate' in the baseline and 'moe_gate_v2' in the candidate"
        in compare(sliced(*BUSY), renamed).findings()
    )


def test_a_change_against_nothing_is_none() -> None:
    """No division by zero."""
    assert change_percent(0, 5) is None
    assert change_percent(100, 98.5) == pytest.approx(-1.5)
