"""Panels: end labels keep their distance and their order."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from kda_lab.report import style
from kda_lab.report.panels import EndLabel, Grid, label_ends, padded, panel_grid, spread, ticks


@given(st.lists(st.floats(min_value=0, max_value=3), min_size=1, max_size=12))
def test_spread_labels_keep_order_and_distance(wanted: list[float]) -> None:
    """Placed labels ascend with at least one step between them, and stay inside where they fit."""
    placed = spread(sorted(wanted), 0.125, 0, 3)
    assert all(b - a >= 0.125 - 1e-9 for a, b in itertools.pairwise(placed))
    assert min(placed) >= -1e-9 and max(placed) <= 3 + 1e-9


def test_labels_with_room_are_not_moved() -> None:
    """A label that touches nothing stands where its line ends."""
    assert spread([0.5, 1.5], 0.125, 0, 3) == [0.5, 1.5]


def test_padded_limits_enclose_the_values() -> None:
    """Limits lie outside the values, also for one single value."""
    assert padded([2.0])[0] < 2 < padded([2.0])[1]


def test_words_above_a_narrow_grid_stay_inside() -> None:
    """A long note is broken into lines, which the panels leave room for."""
    grid = Grid("title", ["a"], 2, "x", "y", "foot", 0.3, notes=("what the marks of this figure mean, " * 4,))
    with style.settings():
        picture, panels = panel_grid(grid, (1, 100), (1, 1000))
        picture.draw_without_rendering()
        boxes = [Text.get_window_extent(t) for t in picture.texts]
        panel = panels[0].get_tightbbox()
    assert panel is not None
    assert max(b.x1 for b in boxes) <= picture.bbox.x1
    assert not any(b.overlaps(panel) for b in boxes)


def test_a_grid_has_one_panel_a_title_and_end_labels_apart() -> None:
    """Each title gets its axes, and names of lines that end together do not overlap."""
    grid = Grid("title", ["a", "b", "c"], 2, "x", "y", "foot", 1.0)
    with style.settings():
        picture, panels = panel_grid(grid, (1, 100), (1, 1000))
        ticks(panels[0], [1, 10, 100], [1, 10, 100, 1000], "×")
        label_ends(panels[0], [EndLabel(n, "#000000", 100, 50 + i) for i, n in enumerate("abcd")])
        picture.draw_without_rendering()
        boxes = sorted((Text.get_window_extent(t) for t in panels[0].texts), key=lambda b: b.y0)
        label_ends(panels[1], [])
    assert [p.get_title(loc="left") for p in panels] == ["a", "b", "c"]
    assert [t.get_text() for t in panels[0].get_yticklabels()] == ["1×", "10×", "100×", "1000×"]
    assert all(a.y0 <= b.y0 - 8 for a, b in itertools.pairwise(boxes))
    assert len(panels[1].texts) == 0
