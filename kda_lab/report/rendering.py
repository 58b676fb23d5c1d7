"""From values to one self-contained HTML page: templates with everything escaped, figures inlined."""

from __future__ import annotations

import base64
import functools
import re
from dataclasses import dataclass
from typing import Any

import jinja2
from markupsafe import Markup, escape

from kda_lab.report.style import Picture, png_bytes, svg_text

PAGE_LIMIT_BYTES = 2_000_000
INLINE_SVG_LIMIT_BYTES = 300_000
ALARMS = frozenset({"FAILED", "SURVIVED", "SURVIVORS", "VOID", "NO MUTANT APPLIES", "slower"})
"""Words that a table cell prints in bold; they say the same without the colour."""


@functools.lru_cache(maxsize=1)
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kda_lab.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["alarms"] = ALARMS
    return environment


def render(template: str, **values: Any) -> str:
    """Fill a template of this room; every value is escaped, and a missing one is an error."""
    return _templates().get_template(template).render(**values)


@dataclass(frozen=True)
class DrawnFigure:
    """A figure as a page needs it: already drawn, with its files' content."""

    name: str
    title: str
    svg: str
    png: bytes
    ours: bool = True
    """False for a figure found in the run's folder: its SVG may hold anything, so a page shows its pixels."""

    @classmethod
    def of(cls, name: str, picture: Picture) -> DrawnFigure:
        return cls(name, picture.title, svg_text(picture), png_bytes(picture))


def inline(figure: DrawnFigure, limit_bytes: int = INLINE_SVG_LIMIT_BYTES) -> Markup:
    """Markup of a figure that needs no other file: SVG, or PNG where the SVG is larger than the limit or not ours."""
    if not figure.ours or len(figure.svg.encode()) > limit_bytes:
        data = base64.b64encode(figure.png).decode("ascii")
        return Markup('<img src="data:image/png;base64,{}" alt="{}">').format(data, figure.title)
    return Markup(_as_element(figure))  # noqa: S704


def linked(figure: DrawnFigure) -> Markup:
    """Markup of a figure that is loaded from the run's folder, for a page that would grow too large."""
    return Markup('<img src="{}.svg" alt="{}">').format(figure.name, figure.title)


def _as_element(figure: DrawnFigure) -> str:
    """The SVG without prologue and metadata, with ids of its own and the title as its name."""
    body = figure.svg[figure.svg.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL)
    # Ids count from one in every figure; several figures share a page.
    prefix = f"{figure.name}-"
    body = re.sub(r'\bid="', f'id="{prefix}', body)
    body = re.sub(r'href="#', f'href="#{prefix}', body)
    body = body.replace("url(#", f"url(#{prefix}")
    # Spelled-out fallbacks repeat with each text; the page states them once on the element.
    title = escape(figure.title)
    return body.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
