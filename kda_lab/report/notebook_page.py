"""The executed notebook as one page: outputs sanitised, no script, nothing loaded from a network."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

from kda_lab import runtime
from kda_lab.report.records import first_line
from kda_lab.report.rendering import PAGE_LIMIT_BYTES, render
from kda_lab.run_folder import RunFolder, write_atomic

PAGE = "notebook.html"
_PROGRAM = re.compile(r"<(script|style)\b.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_DRAWING = re.compile(r"<svg\b.*?</svg\s*>", re.DOTALL | re.IGNORECASE)
_FETCHED = re.compile(r"<img\b(?![^>]*\bsrc\s*=\s*[\"']?data:image/)[^>]*>", re.IGNORECASE)
"""Images that are not embedded: a browser would fetch them as soon as the page is opened."""
_TAGS = frozenset(
    [
        "a",
        "abbr",
        "b",
        "blockquote",
        "br",
        "caption",
        "code",
        "dd",
        "del",
        "details",
        "div",
        "dl",
        "dt",
        "em",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "i",
        "img",
        "kbd",
        "li",
        "ol",
        "p",
        "pre",
        "s",
        "samp",
        "span",
        "strong",
        "sub",
        "summary",
        "sup",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "tr",
        "tt",
        "u",
        "ul",
    ]
)
_ATTRIBUTES = {
    "*": ["class", "id", "title"],
    "a": ["href"],
    "img": ["src", "alt", "width", "height"],
    "td": ["colspan", "rowspan"],
    "th": ["colspan", "rowspan", "scope"],
}


def write_notebook_page(run: RunFolder) -> tuple[str, str]:
    """Write notebook.html beside the executed notebook.

    Returns:
        The page's file name, empty when there is none, and the reason, empty when there is nothing to explain:
        a run without an executed notebook is not a fault.
    """
    if not run.executed_notebook.is_file():
        return "", ""
    for name in ("nbconvert", "nbformat"):
        found = runtime.import_optional(name)
        if found.module is None:
            return "", f"{PAGE}: {found.reason}"
    try:
        page = notebook_html(run)
    # Expected: a notebook cut short by a crash (invalid JSON, missing keys), or one that cannot be decoded.
    except Exception as error:  # noqa: BLE001
        return (
            "",
            f"{PAGE}: {run.executed_notebook.name} cannot be shown: {type(error).__name__}: {first_line(error)}",
        )
    write_atomic(run.path / PAGE, page)
    return PAGE, ""


def notebook_html(run: RunFolder) -> str:
    """The page's text, under 2 MB: images, then all outputs, are left out where it would be larger."""
    import nbformat  # lazy: nbformat

    notebook = nbformat.read(run.executed_notebook, as_version=4)
    text = ""
    for thin in (lambda n: n, _without_images, _without_outputs):
        thin(notebook)
        # Sanitised by nbconvert, and cleared of anything remote below.
        body, code_style = Markup(_body(notebook)), Markup(_code_style())  # noqa: S704
        text = render("notebook.html.j2", title=run.name, body=body, code_style=code_style)
        if len(text.encode()) < PAGE_LIMIT_BYTES:
            break
    return text


def _body(notebook: Any) -> str:
    from nbconvert import HTMLExporter  # lazy: nbconvert

    exporter = HTMLExporter(template_name="basic", exclude_anchor_links=True)
    body, _ = exporter.from_notebook_node(notebook)
    return sanitised(str(body))


def sanitised(body: str) -> str:
    """HTML without scripts, styles, event handlers, or anything fetched when the page is opened; links stay."""
    import bleach  # lazy: bleach

    # The sanitiser keeps the text inside what it removes, so program text and drawings go first, whole.
    body = _PROGRAM.sub("", body)
    body = _DRAWING.sub("<em>(drawing left out; see executed.ipynb)</em>", body)
    body = _FETCHED.sub("<em>(remote content left out)</em>", body)
    return str(
        bleach.clean(
            body, tags=_TAGS, attributes=_ATTRIBUTES, protocols={"http", "https", "mailto", "data"}, strip=True
        )
    )


def _code_style() -> str:
    from pygments.formatters import HtmlFormatter  # lazy: pygments

    return str(HtmlFormatter(style="default").get_style_defs(".highlight"))


def _without_images(notebook: Any) -> None:
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data")
            if data and any(kind.startswith("image/") for kind in data):
                output["data"] = {"text/plain": "(image left out: the page would pass 2 MB; see executed.ipynb)"}


def _without_outputs(notebook: Any) -> None:
    for cell in notebook.cells:
        if cell.get("outputs"):
            cell["outputs"] = []
