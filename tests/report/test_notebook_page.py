"""The executed notebook as a page: readable, harmless, within 2 MB."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kda_lab import runtime
from kda_lab.report import notebook_page
from kda_lab.run_folder import RunFolder

Fill = Callable[..., RunFolder]


@pytest.fixture
def run(tmp_path: Path, fill_run: Fill) -> RunFolder:
    return fill_run(tmp_path, [], [])


def add_output(run: RunFolder, data: dict[str, Any], times: int = 1) -> None:
    notebook = json.loads(run.executed_notebook.read_text())
    outputs = [{"output_type": "display_data", "metadata": {}, "data": data}] * times
    notebook["cells"][1]["outputs"] += outputs
    run.executed_notebook.write_text(json.dumps(notebook))


def test_headings_code_and_outputs_are_shown_and_scripts_are_not(run: RunFolder) -> None:
    """Markdown, highlighted code, text and tables are there; the script of an output is gone."""
    assert notebook_page.write_notebook_page(run) == ("notebook.html", "")
    page = (run.path / "notebook.html").read_text()
    assert (
        "<h1" in page
        and 'class="highlight' in page
        and "&lt;b&gt;1&lt;/b&gt; &amp; 2" in page
        and "<td>cell</td>" in page
    )
    assert "<script" not in page and "cdn.example" not in page


@pytest.mark.parametrize(
    "evil",
    [
        "<img src='https://x.example/a.png'>", "<img src=//x.example/a.png>", "<iframe src='https://x.example'></iframe>",
        "<link rel=stylesheet href='https://x.example/a.css'>", "<p onclick='steal()'>x.example</p>"[:21] + "</p>",
        "<style>@import url(https://x.example/a.css)</style>", "<svg><image href='https://x.example/a.png'/></svg>",
        "<a href='javascript:x.example'>a</a>", "<div style='background:url(https://x.example)'></div>",
    ],
)  # fmt: skip
def test_nothing_is_fetched_or_run(run: RunFolder, evil: str) -> None:
    """Remote images, frames, styles, drawings, handlers and script links are removed."""
    add_output(run, {"text/html": evil})
    page = notebook_page.notebook_html(run)
    assert "x.example" not in page and "onclick" not in page and "javascript:" not in page


def test_links_stay_links(run: RunFolder) -> None:
    """A link that one must click on is harmless and kept."""
    add_output(run, {"text/html": "<a href='https://docs.example/page'>docs</a>"})
    assert 'href="https://docs.example/page"' in notebook_page.notebook_html(run)


def test_embedded_images_stay(run: RunFolder) -> None:
    """A PNG output is embedded in the page."""
    add_output(run, {"image/png": "iVBORw0KGgo="})
    assert "data:image/png;base64,iVBORw0KGgo=" in notebook_page.notebook_html(run)


def test_a_large_page_loses_its_images_first(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit images are replaced by a sentence; the text outputs stay."""
    monkeypatch.setattr(notebook_page, "PAGE_LIMIT_BYTES", 20_000)
    add_output(run, {"image/png": "iVBORw0KGgo" + "A" * 30_000})
    page = notebook_page.notebook_html(run)
    assert "image left out" in page and "<td>cell</td>" in page and len(page) < 20_000


def test_a_page_of_too_much_text_loses_its_outputs(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where text alone is too much, only the code is left."""
    monkeypatch.setattr(notebook_page, "PAGE_LIMIT_BYTES", 20_000)
    add_output(run, {"text/plain": "word " * 6000})
    page = notebook_page.notebook_html(run)
    assert 'class="highlight' in page and "<td>cell</td>" not in page and len(page) < 20_000


def test_the_page_is_the_same_bytes_twice(run: RunFolder) -> None:
    """The same notebook gives the same page."""
    assert notebook_page.notebook_html(run) == notebook_page.notebook_html(run)


def test_a_run_without_a_notebook_has_no_page_and_no_fault(tmp_path: Path) -> None:
    """There is nothing to explain where there is no notebook."""
    assert notebook_page.write_notebook_page(RunFolder.at(tmp_path)) == ("", "")


@pytest.mark.parametrize("text", ["", "{", '{"cells": 3}', "[]"])
def test_a_broken_notebook_is_named(run: RunFolder, text: str) -> None:
    """A notebook that a crash cut short gives a sentence with the error's class."""
    run.executed_notebook.write_text(text)
    name, reason = notebook_page.write_notebook_page(run)
    assert name == "" and reason.startswith("notebook.html: executed.ipynb cannot be shown: ")


def test_without_nbconvert_the_reason_is_given(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without nbconvert the report goes on and says why there is no page."""
    absent = runtime.OptionalModule(
        "nbconvert", None, "unavailable, because importing nbconvert raised ImportError: no"
    )
    monkeypatch.setattr(runtime, "import_optional", lambda name: absent)
    assert notebook_page.write_notebook_page(run) == ("", f"notebook.html: {absent.reason}")
