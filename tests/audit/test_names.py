"""Names followed to their definitions: imports of every form, aliases, stars, cycles."""

from __future__ import annotations

import ast

import pytest

from kda_lab.audit.names import Cache, Code, Definition, chain_of
from kda_lab.audit.reading import Tree

FILES = {
    "python/pkg/__init__.py": b"from .core import run as start\nfrom pkg.star import *\n",
    "python/pkg/core.py": b"def run(): ...\nclass C:\n    def m(self): ...\nalias = run\nVALUE = 3\n",
    "python/pkg/star.py": b"def shining(): ...\n",
    "python/pkg/sub/deep.py": b"from ..core import C\nfrom .. import core as c\n",
    "python/pkg/user.py": b"import pkg.core\nimport pkg.core as pc\nfrom pkg import start, sub\nfrom pkg.sub import deep\n",
    "python/pkg/either.py": b"try:\n    from pkg.core import run\nexcept ImportError:\n    from pkg.star import shining as run\n",
    "python/pkg/ring_a.py": b"from pkg.ring_b import x\n",
    "python/pkg/ring_b.py": b"from pkg.ring_a import x\n",
    "python/pkg/bad.py": b"def (:\n",
    "other/pkg/core.py": b"def run(): ...\n",
}
CODE = Code(Tree("t", "source", FILES), Cache())
CORE = "python/pkg/core.py"


@pytest.mark.parametrize(
    ("path", "name", "found"),
    [
        ("python/pkg/core.py", "run", [(CORE, "run")]),
        ("python/pkg/core.py", "C.m", [(CORE, "C.m")]),
        ("python/pkg/core.py", "alias", [(CORE, "run")]),
        ("python/pkg/core.py", "VALUE", [(CORE, "VALUE")]),
        ("python/pkg/__init__.py", "start", [(CORE, "run")]),
        ("python/pkg/__init__.py", "shining", [("python/pkg/star.py", "shining")]),
        ("python/pkg/user.py", "pkg.core.run", [(CORE, "run")]),
        ("python/pkg/user.py", "pc.C", [(CORE, "C")]),
        ("python/pkg/user.py", "start", [(CORE, "run")]),
        ("python/pkg/user.py", "deep.C.m", [(CORE, "C.m")]),
        ("python/pkg/user.py", "deep.c.run", [(CORE, "run")]),
        ("python/pkg/either.py", "run", [(CORE, "run"), ("python/pkg/star.py", "shining")]),
        ("python/pkg/ring_a.py", "x", []),
        ("python/pkg/user.py", "torch.empty", []),
        ("python/pkg/core.py", "nothing", []),
        ("python/pkg/bad.py", "x", []),
        ("nowhere.py", "x", []),
    ],
)
def test_expand(path: str, name: str, found: list[tuple[str, str]]) -> None:
    """What a dotted name of a module means; nothing where it leaves the tree or goes in a ring."""
    assert list(CODE.expand(path, name.split("."))) == [Definition(*f) for f in found]


def test_the_nearest_root_wins() -> None:
    """Two roots hold `pkg.core`: the importing file's own root, then the shortest; never the order of the files."""
    files = {p: FILES[p] for p in ("other/pkg/core.py", CORE)}
    for order in (files, dict(reversed(files.items()))):
        code = Code(Tree("t", "source", order), Cache())
        assert code.module("pkg.core") == "other/pkg/core.py"
        assert code.module("pkg.core", "python/pkg/user.py") == CORE


def test_identical_contents_are_parsed_once() -> None:
    """The cache is by content, whatever the path."""
    cache = Cache()
    assert cache.parse(b"x = 1\n") is cache.parse(b"x = 1\n")


@pytest.mark.parametrize(
    ("text", "chain"),
    [("a.b.c", ["a", "b", "c"]), ("k[grid]", ["k"]), ("m.k[g]", ["m", "k"]), ("f().x", None), ("1", None)],
)
def test_chains(text: str, chain: list[str] | None) -> None:
    """Dotted names, a subscript at their end; None for anything else."""
    assert chain_of(ast.parse(text, mode="eval").body) == chain
