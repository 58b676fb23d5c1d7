"""AUD-2 and AUD-3: names, lists of names, re-exports, constants, signatures, class attributes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.audit.finding import Audit

Run = Callable[..., Audit]


def rules(audit: Audit, *wanted: str) -> list[tuple[str, str, str, str]]:
    """Rule, class, symbol and severity of the findings of some rules."""
    return [(f.rule, f.category, f.symbol, f.severity) for f in audit.findings if f.rule in wanted]


@pytest.mark.parametrize(
    ("source", "export", "expected"),
    [
        ("def f(): ...\nx = 1\n", "x = 1\n", ("AUD-2", "missing symbol", "f", "crash")),
        ("class C: ...\nx = 1\n", "x = 1\n", ("AUD-2", "missing symbol", "C", "crash")),
        ("X = 1\ny = 1\n", "y = 1\n", ("AUD-2", "missing symbol", "X", "crash")),
        ("X = 1\n", "X = 2\n", ("AUD-2", "changed constant", "X", "silent-wrong")),
        ("from m import x as x\ny = 1\n", "y = 1\n", ("AUD-2", "missing re-export", "x", "crash")),
        ("__all__ = ['a', 'b']\n", "__all__ = ['a']\n", ("AUD-2", "missing from __all__", "b", "crash")),
        ("def f(): ...\n", "f = None\n", ("AUD-2", "changed kind of symbol", "f", "crash")),
        ("def f(a, b): ...\n", "def f(a): ...\n", ("AUD-3", "lost parameter", "f", "crash")),
        ("class C:\n    x = 1\n    y = 1\n", "class C:\n    y = 1\n", ("AUD-3", "lost class attribute", "C", "crash")),
        ("class C:\n    x = 1\n", "class C:\n    x = 2\n", ("AUD-3", "changed class", "C", "silent-wrong")),
        ("class C(A, B): ...\n", "class C(A): ...\n", ("AUD-3", "changed class", "C", "crash")),
        (
            "class C:\n    def m(self): ...\n    def n(self): ...\n",
            "class C:\n    def n(self): ...\n",
            ("AUD-2", "missing symbol", "C.m", "crash"),
        ),
        (
            "class C:\n    def m(self, a, b): ...\n",
            "class C:\n    def m(self, a): ...\n",
            ("AUD-3", "lost parameter", "C.m", "crash"),
        ),
    ],
)
def test_one_loss_one_finding(source: str, export: str, expected: tuple[str, str, str, str], audit: Run) -> None:
    """Each kind of loss is found once, by its rule."""
    assert rules(audit({"a.py": source}, {"a.py": export}), "AUD-2", "AUD-3", "AUD-4", "AUD-6") == [expected]


def test_a_missing_class_does_not_repeat_its_methods(audit: Run) -> None:
    """One finding for the class."""
    found = audit({"a.py": "class C:\n    def m(self): ...\nx = 1\n"}, {"a.py": "x = 1\n"})
    assert rules(found, "AUD-2") == [("AUD-2", "missing symbol", "C", "crash")]


def test_private_imports_may_go(audit: Run) -> None:
    """A module's own imports are no re-exports; those of a package are."""
    assert rules(audit({"a.py": "import os\nx = 1\n"}, {"a.py": "x = 1\n"}), "AUD-2") == []
    found = audit({"p/__init__.py": "from m import f\nx = 1\n"}, {"p/__init__.py": "x = 1\n"})
    assert rules(found, "AUD-2") == [("AUD-2", "missing re-export", "f", "crash")]


def test_additions_are_no_losses(audit: Run) -> None:
    """New names and new parameters with a default leave nothing but the file's own finding and the changed body."""
    found = audit({"a.py": "def f(a): ...\n"}, {"a.py": "def f(a, b=1): ...\ndef g(): ...\n"})
    assert rules(found, "AUD-2", "AUD-3") == []


def test_evidence_shows_both_sides(audit: Run) -> None:
    """The line in the source and the line in the export, with their texts."""
    found = audit({"a.py": "\n\ndef f(a, b): ...\n"}, {"a.py": "def f(a): ...\n"})
    (finding,) = [f for f in found.findings if f.rule == "AUD-3"]
    assert [(e.tree, e.line, e.text) for e in finding.evidence] == [
        ("source", 3, "def f(a, b): ..."),
        ("export", 1, "def f(a): ..."),
    ]
    assert finding.lost == "the parameter b (positional) is gone"
