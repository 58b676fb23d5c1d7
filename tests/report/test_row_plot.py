"""The frame of a row figure: nothing overlaps, ticks keep their distance."""

from __future__ import annotations

import itertools

from kda_lab.report import style
from kda_lab.report.row_plot import Column, Layout, row_plot, set_ticks

LAYOUT = Layout(
    title="a title that is long enough to need a second line, since it says all that there is to say about this",
    labels=[None, "a-very-long-label-of-a-row", "short"],
    headings=["a heading that is wider than any label of it", "", ""],
    columns=[Column("ratio", ["", "1.00 [0.99, 1.01]", "2"]), Column("verdict", ["", "faster", "same"], align="left")],
    axis_label="x",
    foot="a foot",
    notes=("a note",),
)


def test_words_stay_left_of_the_axis_and_inside_the_figure() -> None:
    """Labels and headings end before the axis begins, and no text leaves the figure."""
    with style.settings():
        plot = row_plot(LAYOUT, (0.5, 2))
        set_ticks(plot.axes, [0.5, 1, 2], ["0.5×", "1×", "2×"], anchor=1)
        for index in (1, 2):
            for number, column in enumerate(LAYOUT.columns):
                plot.write(number, index, column.cells[index], align=column.align)
        plot.picture.draw_without_rendering()
        boxes = {t.get_text(): t.get_window_extent() for t in [*plot.axes.texts, *plot.picture.texts]}
    axis_left = plot.axes.get_window_extent().x0
    for name in ("a-very-long-label-of-a-row", LAYOUT.headings[0]):
        assert boxes[name].x1 < axis_left
    width, height = plot.picture.bbox.width, plot.picture.bbox.height
    assert all(b.x0 >= 0 and b.x1 <= width and b.y0 >= 0 and b.y1 <= height for b in boxes.values())


def test_ticks_do_not_touch_and_keep_the_anchor() -> None:
    """Of crowded ticks only those with room are labelled; the anchor always is."""
    values = [1 + k / 50 for k in range(50)]
    with style.settings():
        plot = row_plot(LAYOUT, (0.9, 2.1))
        set_ticks(plot.axes, values, [f"{v:g}×" for v in values], anchor=1)
        plot.picture.draw_without_rendering()
        shown = [t.get_window_extent() for t in plot.axes.get_xticklabels() if t.get_text()]
        texts = [t.get_text() for t in plot.axes.get_xticklabels()]
    assert "1×" in texts and 2 < len(texts) < 20
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(shown))
