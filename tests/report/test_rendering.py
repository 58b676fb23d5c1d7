"""Templates escape everything; figures are inlined, embedded or linked by size."""

from __future__ import annotations

import jinja2
import pytest

from kda_lab.report import style
from kda_lab.report.rendering import DrawnFigure, inline, linked, render

TITLE = 'a "quoted" <title> & more'


@pytest.fixture
def figure() -> DrawnFigure:
    with style.settings():
        picture = style.new_picture(2, 1, TITLE)
        picture.add_axes((0.1, 0.1, 0.8, 0.8)).plot([1, 2], [3, 4])
    return DrawnFigure.of("speedup_x", picture)


def test_a_small_figure_is_inline_svg_with_a_name(figure: DrawnFigure) -> None:
    """The SVG element carries role and title, ids of its own, and neither prologue nor metadata."""
    text = str(inline(figure))
    assert text.startswith('<svg role="img" aria-label="a &#34;quoted&#34; &lt;title&gt; &amp; more"')
    assert 'id="speedup_x-figure_1"' in text and "url(#speedup_x-" in text
    assert "<metadata" not in text and "<?xml" not in text and "<!DOCTYPE" not in text


def test_a_large_figure_is_an_embedded_png(figure: DrawnFigure) -> None:
    """Above the limit a PNG is embedded, with the title as its alt text."""
    text = str(inline(figure, limit_bytes=10))
    assert text.startswith('<img src="data:image/png;base64,') and 'alt="a &#34;quoted' in text


def test_a_linked_figure_names_its_file(figure: DrawnFigure) -> None:
    """For a page that is too large the figure stands beside it."""
    assert str(linked(figure)).startswith('<img src="speedup_x.svg" alt="a &#34;quoted')


def test_values_are_escaped_and_missing_ones_are_errors() -> None:
    """Markup in a record stays text; a template never prints an empty hole."""
    values = {
        "name": "<b>",
        "link": "x/",
        "op": "",
        "device": "",
        "date": "",
        "word": "",
        "sentence": "",
        "speedups": [],
        "files": [],
    }
    assert "&lt;b&gt;" in render("index.html.j2", title="Runs", runs=[values])
    with pytest.raises(jinja2.UndefinedError, match="'runs' is undefined"):
        render("index.html.j2", title="Runs")
