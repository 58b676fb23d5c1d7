"""Both trees file by file: same code or not, in words, by block."""

from __future__ import annotations

import pytest

from kda_lab.audit.parsing import Unparsable
from kda_lab.audit.reading import Tree
from kda_lab.audit.sides import Sides


def sides(source: dict[str, bytes], export: dict[str, bytes]) -> Sides:
    """Two trees in memory."""
    return Sides(Tree("s", "source", source), Tree("e", "export", export))


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "cosmetic"),
    [
        ("a.py", b"x = 1 # a\n", b"x = 1\n", True),
        ("a.py", b"x = 1\n", b"x = 2\n", False),
        ("a.cu", b"int x; // a\n", b"int  x;\n", True),
        ("a.cu", b"int x;\n", b"int y;\n", False),
        ("a.py", b"x = (\n", b"x = 1\n", False),
        ("a.json", b"1\n", b"1 \n", False),
    ],
)
def test_cosmetic(name: str, ours: bytes, theirs: bytes, cosmetic: bool) -> None:
    """Known for code that can be read; a file of another kind is never cosmetic."""
    assert sides({name: ours}, {name: theirs}).is_cosmetic(name) is cosmetic


def test_many_changed_symbols_are_cut() -> None:
    """Eight names, then an ellipsis."""
    texts = [b"".join(b"def f%d(): return %d\n" % (i, i + step) for i in range(10)) for step in (0, 1)]
    words = sides({"a.py": texts[0]}, {"a.py": texts[1]}).changed_symbols("a.py")
    assert words == "changed f0, f1, f2, f3, f4, f5, f6, f7 …"


def test_an_unreadable_side_has_no_blocks_and_a_reason() -> None:
    """A broken file is not told as one that lost its functions."""
    both = sides({"a.py": b"def f(): ...\n", "b.cu": b"\0"}, {"a.py": b"def (\n"})
    assert both.blocks(both.export, "a.py") == {}
    assert both.changed_symbols("a.py") == ""
    assert isinstance(both.why_not(both.export, "a.py"), Unparsable)
    assert isinstance(both.why_not(both.source, "b.cu"), Unparsable)
    assert both.why_not(both.export, "b.cu") is None
