"""AUD-7: names that a module hands on, and files that are named in text."""

from __future__ import annotations

from collections.abc import Callable

from kda_lab.audit.finding import Audit

Run = Callable[..., Audit]


def told(audit: Audit) -> list[tuple[str, str, str, list[tuple[str, int, str]]]]:
    """File, symbol, words and places of the findings of AUD-7."""
    return [
        (f.file, f.symbol, f.lost, [(e.path, e.line, e.text) for e in f.evidence])
        for f in audit.findings
        if f.rule == "AUD-7"
    ]


def test_an_import_through_another_module(audit: Run) -> None:
    """`tools` only imports `f`, and somebody imports it from there under a condition."""
    source = {
        "p/core.py": "def f(): ...\n",
        "p/tools.py": "from p.core import f\nx = 1\n",
        "p/user.py": "def g(m):\n    if m == 1:\n        from p.tools import f\n        f()\n",
    }
    found = audit(source, {**source, "p/tools.py": "x = 1\n"})
    words = "f can no longer be imported from here, and the served branch does so in 1 place"
    assert told(found) == [("p/tools.py", "f", words, [("p/user.py", 3, "when m == 1")])]


def test_a_lost_re_export_of_a_package(audit: Run) -> None:
    """The package's own finding says what is lost, this one who breaks."""
    source = {
        "p/__init__.py": "from p.core import f\nx = 1\n",
        "p/core.py": "def f(): ...\n",
        "u.py": "from p import f\n",
    }
    found = audit(source, {**source, "p/__init__.py": "x = 1\n"})
    assert [(file, symbol, places) for file, symbol, _, places in told(found)] == [
        ("p/__init__.py", "f", [("u.py", 1, "from p import f")])
    ]
    assert [(f.rule, f.symbol) for f in found.findings if f.rule == "AUD-2"] == [("AUD-2", "f")]


def test_an_import_that_nobody_shares_may_go(audit: Run) -> None:
    """A module's own import of another module."""
    source = {"a.py": "import os\nx = 1\n", "u.py": "from a import x\nimport os\n"}
    assert told(audit(source, {**source, "a.py": "x = 1\n"})) == []


def test_a_name_that_is_now_defined_here_is_not_lost(audit: Run) -> None:
    """Imported before, defined now."""
    source = {"a.py": "from b import f\n", "b.py": "def f(): ...\n", "u.py": "from a import f\n"}
    assert told(audit(source, {**source, "a.py": "def f(): ...\n"})) == []


def test_includes_and_loaders_of_a_missing_cuda_file(audit: Run) -> None:
    """A header by `#include`, a source by a string; a longer name that ends alike is another file."""
    source = {
        "k/ptx.cuh": "int x;\n",
        "k/a.cu": '#include "k/ptx.cuh"\n#include "other_ptx.cuh"\n',
        "load.py": "FILES = ['a.cu']\n",
    }
    words = "the file is gone, and the served branch names it in 1 place"
    assert told(audit(source, {k: v for k, v in source.items() if k != "k/ptx.cuh"})) == [
        ("k/ptx.cuh", "", words, [("k/a.cu", 1, '#include "k/ptx.cuh"')])
    ]
    assert told(audit(source, {k: v for k, v in source.items() if k != "k/a.cu"})) == [
        ("k/a.cu", "", words, [("load.py", 1, "FILES = ['a.cu']")])
    ]
