"""AUD-1: each class of file, with and without the merge-base."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.audit.finding import Audit

Run = Callable[..., Audit]


@pytest.mark.parametrize(
    ("source", "export", "base", "state", "severity", "words"),
    [
        ("x = 1\n", "x = 1\n", "x = 0\n", "identical", None, ""),
        ("x = 1\n", "x = 2\n", "x = 0\n", "differs", "silent-wrong", "the file differs"),
        ("x = 1\n", "x = 0\n", "x = 0\n", "equals-merge-base", "silent-wrong", "was not exported at all"),
        ("x = 1\n", None, None, "missing", "crash", "the file is not in the export"),
        ("x = 1\n", None, "x = 1\n", "missing", "crash", "the file is not in the export"),
        (None, "x = 1\n", None, "extra", "cosmetic", "the file is not in the source branch"),
        (None, "x = 1\n", "x = 1\n", "extra", "cosmetic", "the source branch deleted the file"),
        ("x = 1 # a\n", "x = 1 # b\n", "x = 0\n", "differs", "cosmetic", "the bytes differ; the code does not"),
    ],
)
def test_each_class(
    source: str | None, export: str | None, base: str | None, state: str, severity: str | None, words: str, audit: Run
) -> None:
    """State, severity and words of one file beside one that nobody touched."""
    texts = [{"same.py": "y = 1\n", **({} if t is None else {"a.py": t})} for t in (source, export, base)]
    found = audit(texts[0], texts[1], base=texts[2])
    assert [(f.path, f.state) for f in found.files] == [("a.py", state)]
    told = [(f.category, f.severity) for f in found.findings if f.rule == "AUD-1"]
    assert told == ([] if severity is None else [(state, severity)])
    assert all(words in f.lost for f in found.findings if f.rule == "AUD-1")


def test_without_a_base_every_file_is_classed(audit: Run) -> None:
    """Also the untouched ones."""
    found = audit({"a.py": "x = 1\n"}, {"a.py": "x = 1\n"})
    assert [(f.path, f.state) for f in found.files] == [("a.py", "identical")]


@pytest.mark.parametrize(
    ("name", "severity"), [("a.md", "cosmetic"), ("a.json", "silent-wrong"), ("a.cu", "silent-wrong")]
)
def test_other_files_count_by_kind(name: str, severity: str, audit: Run) -> None:
    """Prose is cosmetic, data is not."""
    found = audit({name: "1\n"}, {name: "2\n"})
    assert [f.severity for f in found.findings] == [severity]


def test_the_changed_symbols_are_named(audit: Run) -> None:
    """Changed, lost and new blocks in one line."""
    found = audit({"a.py": "def f(): return 1\ndef g(): ...\n"}, {"a.py": "def f(): return 2\ndef h(): ...\n"})
    assert [f.lost for f in found.findings if f.rule == "AUD-1"] == ["the file differs: changed f; lost g; new h"]


def test_hashes_of_every_tree(audit: Run) -> None:
    """The proof of identity is in the record."""
    found = audit({"a.py": "x = 1\n"}, {"a.py": "x = 2\n"}, base={"a.py": "x = 0\n"})
    assert len({*found.files[0].sha256.values()}) == 3
    assert list(found.files[0].sha256) == ["source", "export", "base"]
