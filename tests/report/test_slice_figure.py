"""Slices are drawn to scale: a lane a stream, a colour and hatch a category, parts that add up."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report.slice_figure import Bar, DrawnArm, category_looks, slice_lanes, slice_parts
from kda_lab.report.style import svg_text

BASE = DrawnArm("baseline", {"stream 7": [Bar(0, 40, "moe"), Bar(50, 30, "other")]}, 100, 60, 0, 30)
OURS = DrawnArm("candidate", {"stream 7": [Bar(0, 60, "moe")], "stream 23": [Bar(10, 95, "kda")]}, 90, 90, 65, 0)


def test_every_stream_has_a_lane_and_every_kernel_its_place() -> None:
    """Baseline on top; the axis reaches the last end, also one past the slice."""
    picture = slice_lanes([BASE, OURS], ["moe", "mla", "kda", "other"], "other", title="T", foot="F")
    axes = picture.axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == [
        "baseline, stream 7",
        "candidate, stream 7",
        "candidate, stream 23",
    ]
    spans = sorted((p.get_extents().x0, p.get_extents().x1) for c in axes.collections for p in c.get_paths())
    assert spans == [(0, 40), (0, 60), (10, 105), (50, 80)]
    assert axes.get_xlim() == pytest.approx((0, 1.01 * 105))
    assert [line.get_xdata()[0] for line in axes.lines] == [100, 90, 90]
    assert [t.get_text() for t in picture.legends[0].get_texts()] == ["moe", "kda", "other"]
    assert all(words in svg_text(picture) for words in ("T", "F"))


def test_the_parts_add_up_to_wall_and_sum() -> None:
    """Busy and idle make the wall, union and overlap the sum; the baseline's 10 µs carried in are busy time, too."""
    axes = slice_parts([BASE, OURS], title="T").axes[0]
    assert [t.get_text() for t in axes.texts] == [
        "70.000 + 30.000 = 100.000", "60.000 + 0.000 = 60.000", "90.000 + 0.000 = 90.000", "90.000 + 65.000 = 155.000",
    ]  # fmt: skip
    assert [t.get_text() for t in axes.get_yticklabels()][:2] == ["baseline, wall", "baseline, summed"]
    assert [p.get_width() for p in axes.patches][:2] == [70, 30]


def test_more_categories_than_colours_are_told_apart_by_hatches() -> None:
    """No two looks are the same; `other` is grey wherever it stands."""
    looks = category_looks([*map(str, range(20)), "other"], "other")
    assert len(set(looks.values())) == 21
    assert looks["other"] == ("#767676", "")
    assert "other" not in category_looks(["a"], "other")


def test_arms_without_kernels_are_not_drawn() -> None:
    """The words say what is missing."""
    with pytest.raises(ParameterError, match="an arm has no kernel; allowed: at least one kernel an arm"):
        slice_lanes([BASE, DrawnArm("candidate", {}, 1, 0, 0, 1)], ["moe"], "other", title="T")
    with pytest.raises(ParameterError, match="arms is empty; allowed: at least one arm"):
        slice_parts([], title="T")
