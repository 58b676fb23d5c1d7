"""Tables as a notebook shows them: all lines, the same bytes each time."""

from __future__ import annotations

from kda_lab.notebook import display


def test_all_lines_are_shown_and_the_bytes_repeat() -> None:
    """Two hundred lines, none cut; no random id in the HTML."""
    lines = [(f"row{i}", i) for i in range(200)]
    first, again = (display.shown(("name", "number"), lines, "caption").to_html() for _ in range(2))
    assert first == again
    assert "row199" in first
    assert "caption" in first


def test_nested_facts_are_one_line_each() -> None:
    """A nested value is written out behind its name."""
    html = display.facts({"versions": {"torch": "2", "triton": "3"}}).to_html()
    assert "torch 2, triton 3" in html
