"""Saving of figures: the same bytes twice, text as text, nothing global changed."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib
import PIL.Image
import pytest

from kda_lab.report import style


def picture(title: str = "one & only") -> style.Picture:
    with style.settings():
        made = style.new_picture(2, 1, title)
        axes = made.add_axes((0.2, 0.3, 0.7, 0.6))
        axes.plot([1, 2], [1, 2])
        style.plain(axes.set_title("costs $5 and $6"))
    return made


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """SVG and PNG are byte-identical on two drawings, and hold no date."""
    first = [p.read_bytes() for p in style.save(picture(), tmp_path / "a", "x")]
    second = [p.read_bytes() for p in style.save(picture(), tmp_path / "b", "x")]
    assert first == second
    assert b"<dc:date>" not in first[0]


def test_svg_keeps_text_as_text_and_dollars_as_dollars() -> None:
    """A reader can search the SVG, and a dollar is never read as mathematics."""
    assert "costs $5 and $6" in style.svg_text(picture())


def test_drawing_leaves_global_settings_alone() -> None:
    """No setting of matplotlib differs after a figure was drawn and saved."""
    before = dict(matplotlib.rcParams)
    style.png_bytes(picture())
    assert dict(matplotlib.rcParams) == before


def test_a_notebook_shows_the_picture() -> None:
    """The figure offers a PNG of itself, so a notebook needs no pyplot."""
    assert picture()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("width_in", [1.5, 3.0, 6.0])
def test_wrapped_lines_fit(width_in: float) -> None:
    """No line is wider than asked for, and no word is lost."""
    text = (
        "demo.attention: grouped against per_head: 48 of 48 rows faster beyond noise; geomean 15.8×, min 5.48×, n = 48"
    )
    lines = style.wrapped(text, style.TITLE_PT, width_in, "bold")
    assert " ".join(lines) == text
    assert max(style.text_width_in(line, style.TITLE_PT, "bold") for line in lines) <= width_in


def test_clipped_text_fits_and_says_so() -> None:
    """Text that is too wide ends in an ellipsis; text that fits is left alone."""
    short = style.clipped("unavailable, because the planner is too small", 7.2, 1.0)
    assert short.endswith("…") and style.text_width_in(short, 7.2) <= 1.0
    assert style.clipped("no", 7.2, 1.0) == "no"


def test_fonts_are_large_enough() -> None:
    """No text of a figure is smaller than 7 points."""
    assert min(style.TITLE_PT, style.TEXT_PT, style.SMALL_PT) >= 7


def test_line_looks_differ_in_colour_and_shape() -> None:
    """Neighbouring lines differ in colour and in marker, and none looks like the baseline."""
    looks = [*[style.line_look(n) for n in range(len(style.ARM_COLOURS))], style.BASELINE_LOOK]
    assert len({c for c, _ in looks}) == len({m for _, m in looks}) == len(looks)


def test_a_png_has_a_palette_and_its_size(tmp_path: Path) -> None:
    """Figures are saved in at most 255 colours, at 160 dots per inch, in the size of the picture."""
    with PIL.Image.open(io.BytesIO(style.png_bytes(picture()))) as image:
        assert image.mode == "P"
        assert image.size == tuple(round(160 * side) for side in picture().get_size_inches())
        assert image.info["dpi"] == pytest.approx((160, 160), abs=0.1)
