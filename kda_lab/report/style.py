"""Colours, fonts and the deterministic way to save a figure; nothing global is changed at import."""

from __future__ import annotations

import functools
import io
import textwrap
from pathlib import Path
from typing import Any, cast

import matplotlib.style
import PIL.Image
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from kda_lab.run_folder import write_atomic

INK, GREY, RULE, HAIR, BAND = "#222222", "#6b6b6b", "#dddddd", "#ebebeb", "#d4d4d4"
BLUE, VERMILLION, NEUTRAL = "#0072B2", "#D55E00", "#767676"

VERDICT_STYLE: dict[str, dict[str, Any]] = {
    "faster": {"color": BLUE, "marker": "o", "markerfacecolor": BLUE},
    "slower": {"color": VERMILLION, "marker": "s", "markerfacecolor": VERMILLION},
    "same": {"color": NEUTRAL, "marker": "D", "markerfacecolor": NEUTRAL},
    "ambiguous": {"color": NEUTRAL, "marker": "D", "markerfacecolor": "white"},
}
"""Colour and shape of a verdict: both, so that neither is needed alone."""

ARM_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B07C00", "#56B4E9")
"""Okabe-Ito, with its orange darkened for text on white, its yellow left out and its black kept for the baseline."""
ARM_MARKERS = ("o", "^", "D", "v", "P", "X")
BASELINE_LOOK = ("#3D3D3D", "s")


def line_look(number: int) -> tuple[str, str]:
    """Colour and marker of the n-th line of a figure, the same in every panel."""
    return ARM_COLOURS[number % len(ARM_COLOURS)], ARM_MARKERS[number % len(ARM_MARKERS)]


TITLE_PT, TEXT_PT, SMALL_PT = 9.5, 8.0, 7.2
DPI = 160
PALETTE = 255

_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kda_lab",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": TEXT_PT,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.unicode_minus": True,
    "path.simplify": False,
}


def settings() -> Any:
    """Context in which figures are drawn and saved: library defaults plus our own, then put back."""
    return matplotlib.style.context(["default", _SETTINGS])


class Picture(Figure):
    """A matplotlib figure that knows its title and shows itself in a notebook without pyplot."""

    title = ""
    """What the figure says, in one sentence; also its alt text."""

    def _repr_png_(self) -> bytes:
        return png_bytes(self)


def new_picture(width_in: float, height_in: float, title: str) -> Picture:
    """An empty white figure of the given size in inches."""
    picture = Picture(figsize=(width_in, height_in), facecolor="white")
    picture.title = title
    return picture


@functools.lru_cache(maxsize=4096)
def text_width_in(text: str, size_pt: float, weight: str = "normal") -> float:
    """Width of one line of text, in inches, as the bundled font sets it."""
    if not text.strip():
        return 0.0
    font = FontProperties(family=["DejaVu Sans"], weight=weight)
    return float(TextPath((0, 0), text.replace("$", "S"), size=size_pt, prop=font).get_extents().width) / 72


def wrapped(text: str, size_pt: float, width_in: float, weight: str = "normal") -> list[str]:
    """`text` broken into lines that fit `width_in` inches."""
    total = text_width_in(text, size_pt, weight)
    if total <= width_in or not text:
        return [text]
    # Lines of about equal length; capitals and digits run wider than the mean letter, so a little is held back.
    most = max(8, int(0.94 * len(text) * width_in / total))
    count = len(textwrap.wrap(text, most))
    even = next(w for w in range(max(8, len(text) // count), most + 1) if len(textwrap.wrap(text, w)) <= count)
    return textwrap.wrap(text, even)


def clipped(text: str, size_pt: float, width_in: float) -> str:
    """`text`, cut with an ellipsis where it is wider than `width_in` inches."""
    if text_width_in(text, size_pt) <= width_in:
        return text
    while text and text_width_in(f"{text}…", size_pt) > width_in:
        text = text[:-1]
    return f"{text.rstrip(' ,;.')}…"


def size_in(axes: Axes) -> tuple[float, float]:
    """Width and height, in inches, of the figure that holds `axes`."""
    width, height = cast(Figure, axes.figure).get_size_inches()
    return float(width), float(height)


def plain(artist: Artist) -> None:
    """Print dollars and backslashes of a text as they are, never as mathematics."""
    if hasattr(artist, "set_parse_math"):
        artist.set_parse_math(False)


def svg_text(picture: Figure) -> str:
    """The figure as SVG: text stays text, no date, the same bytes for the same figure."""
    stream = io.StringIO()
    with settings():
        picture.savefig(stream, format="svg", metadata={"Date": None, "Title": getattr(picture, "title", "")})
    return stream.getvalue()


def png_bytes(picture: Figure) -> bytes:
    """The figure as PNG at 160 dots per inch, without a date or a version in it, in 255 colours of its own.

    A report holds each picture three times: a palette takes a third of the bytes and cannot be told from true colour.
    """
    drawn, stream = io.BytesIO(), io.BytesIO()
    with settings():
        picture.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
    with PIL.Image.open(drawn) as image:
        palette = image.convert("RGB").quantize(PALETTE, dither=PIL.Image.Dither.NONE)
    palette.save(stream, format="PNG", optimize=True, dpi=(DPI, DPI))
    return stream.getvalue()


def save(picture: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Write `name.svg` and `name.png` into `folder`, each whole or not at all; return both paths."""
    svg, png = folder / f"{name}.svg", folder / f"{name}.png"
    write_atomic(svg, svg_text(picture))
    write_atomic(png, png_bytes(picture))
    return svg, png
