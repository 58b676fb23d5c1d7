"""AUD-8: what must not be overlaid in a composite arm."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.audit.finding import Audit

Run = Callable[..., Audit]


@pytest.mark.parametrize(
    ("name", "source", "export", "more"),
    [
        ("env.py", "A = 1\nB = 1\n", "A = 2\n", "the source's version also holds B"),
        ("env.py", "A = 1\n", "A = 2\n", "both versions hold the same symbols"),
        ("a.cuh", "#define A 1\nint f() { return 1; }\n", "#define A 2\n", "the source's version also holds f"),
    ],
)
def test_a_subset_must_not_be_overlaid(name: str, source: str, export: str, more: str, audit: Run) -> None:
    """The export changed a file outside its scope, and the source holds all of it."""
    trees = [{"k/x.py": "x = 1\n", name: text} for text in (source, export, "A = 0\n")]
    found = audit(trees[0], trees[1], scope=("k",), base=trees[2])
    told = [(f.file, f.lost) for f in found.findings if f.rule == "AUD-8"]
    assert told == [
        (name, f"the file is outside the scope and the export changes it, but {more}; overlaying it would lose that")
    ]


@pytest.mark.parametrize(
    ("source", "export", "base"),
    [("A = 1\n", "B = 1\n", ""), ("A = 1\nB = 1\n", "A = 0\n", "A = 0\n"), ("A = 1\n", "A = 1\n", "A = 0\n")],
    ids=["export-holds-more", "export-unchanged", "identical"],
)
def test_other_files_may_be_overlaid(source: str, export: str, base: str, audit: Run) -> None:
    """The export adds a symbol, or did not touch the file, or has the source's version."""
    trees = [{"k/x.py": "x = 1\n", "env.py": text} for text in (source, export, base)]
    assert [f for f in audit(trees[0], trees[1], scope=("k",), base=trees[2]).findings if f.rule == "AUD-8"] == []


def test_without_a_base_nothing_is_said(audit: Run) -> None:
    """Which side changed the file cannot be told; a note says so."""
    found = audit({"k/x.py": "x = 1\n", "e.py": "A = 1\n"}, {"k/x.py": "x = 1\n", "e.py": "A = 2\n"}, scope=("k",))
    assert found.findings == ()
    assert any("AUD-8" in note for note in found.notes)
