"""CSV and tables say the measures exactly, in one order."""

from __future__ import annotations

import csv
import io

from kda_lab.referee.slices.comparison import SliceComparison, compare
from kda_lab.referee.slices.kernel_list import Kernel, KernelList
from kda_lab.referee.slices.steps import Marker, slice_trace
from kda_lab.referee.slices.tables import (
    CATEGORY_HEADS,
    CSV_COLUMNS,
    PART_HEADS,
    STEP_HEADS,
    category_lines,
    part_lines,
    step_lines,
    steps_csv,
)


def test_the_csv_has_a_line_a_step_to_the_nanosecond(pair: SliceComparison) -> None:
    """The columns asked for come first; one step an arm is the representative one."""
    lines = list(csv.DictReader(io.StringIO(steps_csv(pair))))
    assert tuple(lines[0])[:8] == CSV_COLUMNS[:8]
    assert [(x["variant"], x["step"]) for x in lines] == [
        (v, str(s)) for v in ("baseline", "candidate") for s in range(5)
    ]
    assert [x["representative"] for x in lines].count("1") == 2
    chosen = {x["variant"]: x for x in lines if x["representative"] == "1"}
    assert (chosen["baseline"]["wall_us"], chosen["baseline"]["summed_kernel_us"]) == ("1977.695", "2190.766")
    assert (chosen["candidate"]["wall_us"], chosen["candidate"]["kernels"]) == ("1951.731", "105")
    for line in lines:
        times = {k: round(float(v) * 1000) for k, v in line.items() if k.endswith("_us")}
        assert times["overlap_us"] == times["summed_kernel_us"] - times["union_us"]
        assert times["idle_us"] == times["wall_us"] - times["union_us"]


def test_the_parts_carry_difference_and_change(pair: SliceComparison) -> None:
    """Wall first; the numbers that the thread printed."""
    lines = part_lines(pair)
    assert {len(x) for x in lines} == {len(PART_HEADS)}
    assert lines[0] == ("wall, µs", "1977.695", "1951.731", "-25.964", "-1.31")
    assert lines[3] == ("summed durations, µs", "2190.766", "2363.971", "+173.205", "+7.91")
    assert lines[5] == ("kernels", "114", "105", "-9", "-7.89")


def test_the_categories_add_up_to_the_sum(pair: SliceComparison) -> None:
    """Categories without a kernel in either arm are left out."""
    lines = category_lines(pair)
    assert {len(x) for x in lines} == {len(CATEGORY_HEADS)}
    assert [x[0] for x in lines] == ["residual", "moe", "kda", "mla", "projection", "other"]
    for column, arm in ((1, pair.baseline), (2, pair.candidate)):
        assert round(sum(1000 * float(x[column]) for x in lines)) == arm.shown.summed_ns
    assert [x[5:] for x in lines if x[0] == "projection"] == [("51", "42")]


def test_every_step_is_listed(pair: SliceComparison) -> None:
    """With a mark at the representative one."""
    lines = step_lines(pair)
    assert {len(x) for x in lines} == {len(STEP_HEADS)}
    assert [x[2] for x in lines if x[-1] == "representative"] == ["1977.695", "1951.731"]


def test_a_category_of_one_arm_has_no_change() -> None:
    """A dash, and no division by zero."""
    made = [Kernel("moe_gate", 0, 7, 100 * i, 60) for i in range(2)]
    more = [*made, Kernel("nvjet", 0, 7, 70, 10)]
    base, ours = (slice_trace(KernelList.of("t", k), Marker("moe_gate", 2, 0, 1)) for k in (made, more))
    assert category_lines(compare(base, ours))[1] == ("projection", "0.000", "0.010", "+0.010", "—", "0", "1")
