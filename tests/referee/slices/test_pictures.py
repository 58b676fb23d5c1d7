"""The figures of a comparison say what was found, and are the same bytes for the same comparison."""

from __future__ import annotations

import pytest

from kda_lab.referee.slices.comparison import SliceComparison, compare
from kda_lab.referee.slices.generated import BASELINE, CANDIDATE, FIRST, LAST, MARKER, PER_STEP, made_up_kernels
from kda_lab.referee.slices.kernel_list import Kernel, KernelList
from kda_lab.referee.slices.pictures import drawn_files, parts_figure, title
from kda_lab.referee.slices.steps import Marker, slice_trace
from kda_lab.report.style import png_bytes, svg_text

TITLE = "Wall of the slice −1.31 %, summed kernel durations +7.91 %, kernels 114 → 105"


@pytest.fixture(scope="module")
def pair() -> SliceComparison:
    """The made-up pair, compared."""
    cut = Marker(MARKER, PER_STEP, FIRST, LAST)
    traces = (KernelList.of(f"folder/{t.fused}.json", made_up_kernels(t, 1)) for t in (BASELINE, CANDIDATE))
    return compare(*(slice_trace(trace, cut) for trace in traces))


def test_the_files_say_what_was_found(pair: SliceComparison) -> None:
    """Title, categories, streams, file names without their folder, and steps."""
    files = drawn_files(pair)
    assert sorted(files) == ["slice_lanes.png", "slice_lanes.svg", "slice_parts.png", "slice_parts.svg"]
    lanes = str(files["slice_lanes.svg"])
    for words in (TITLE, "projection", "baseline, stream 23", "launches 4 to 8 of 12", "candidate step 0 of 0 to 0"):
        assert words in lanes
    assert "folder" not in lanes
    assert "communication" not in lanes
    assert "= 1951.731" in str(files["slice_parts.svg"])


def test_the_same_comparison_is_drawn_the_same(pair: SliceComparison) -> None:
    """Byte for byte, in both formats."""
    first, second = parts_figure(pair), parts_figure(pair)
    assert svg_text(first) == svg_text(second)
    assert png_bytes(first) == png_bytes(second)


def test_a_sum_of_nothing_has_no_change() -> None:
    """The title says so instead of dividing by zero."""
    made = [Kernel("moe_gate", 0, 7, 0, 0), Kernel("moe_gate", 0, 7, 100, 9)]
    busy = [Kernel("moe_x", 0, 7, -50, 150), *made]
    part = slice_trace(KernelList.of("t", busy), Marker("moe_gate", 2, 0, 1))
    words = "Wall of the slice +0.00 %, summed kernel durations without a change that can be given, kernels 1 → 1"
    assert title(compare(part, part)) == words
