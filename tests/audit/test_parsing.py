"""Python files become units; what cannot be parsed becomes one reason with its line."""

from __future__ import annotations

import pytest

from kda_lab.audit.parsing import PythonFile, Unparsable, decode_text, parse_python

TEXT = b'''"""Doc."""
import a.b
from m import x as y, z
CONST = 1
try:
    from fast import run
except ImportError:
    def run(): ...
if True:
    __all__ = ["f"]
__all__ += ["C"]

class C(Base):
    """Doc."""
    limit: int = 3

    def method(self): return 1

def f():
    def inner(): ...
main()
'''


def parsed(content: bytes) -> PythonFile:
    """A file that must parse."""
    found = parse_python(content)
    assert isinstance(found, PythonFile)
    return found


def test_units_of_a_module() -> None:
    """Functions, classes, methods, constants and imports, those under `if` and `try` included; no inner function."""
    kinds = {name: unit.kind for name, unit in parsed(TEXT).units.items()}
    assert kinds == {
        "a": "import", "y": "import", "z": "import", "CONST": "constant", "run": "function", "__all__": "constant",
        "C": "class", "C.method": "method", "f": "function",
    }  # fmt: skip


def test_names_in_all_are_collected() -> None:
    """Assigned and added names; None where the module has no list."""
    assert parsed(TEXT).exported_names == ("f", "C")
    assert parsed(b"x = 1\n").exported_names is None


def test_the_function_around_a_line() -> None:
    """The innermost unit; nothing at module level."""
    file = parsed(TEXT)
    assert [file.enclosing(line) for line in (4, 17, 20)] == ["", "C.method", "f"]


def test_a_class_and_its_methods_have_fingerprints_of_their_own() -> None:
    """A changed method leaves the class's own fingerprint alone; a changed attribute does not."""
    ours, method, attribute = (
        parsed(text) for text in (TEXT, TEXT.replace(b"return 1", b"return 2"), TEXT.replace(b"int = 3", b"int = 4"))
    )
    assert ours.units["C"].fingerprint == method.units["C"].fingerprint
    assert ours.units["C.method"].fingerprint != method.units["C.method"].fingerprint
    assert ours.units["C"].fingerprint != attribute.units["C"].fingerprint


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"x = 1\ndef f(:\n", 2, "syntax error"),
        (b"x = 1\n\0", 2, "NUL"),
        (b"x = 1\n# \xff\n", 2, "byte 8 is not utf-8"),
        (b"# -*- coding: klingon -*-\n", 1, "syntax error"),
        (b"x = " + b"(" * 5000, 1, ""),
    ],
    ids=["syntax", "binary", "encoding", "cookie", "nesting"],
)
def test_what_is_no_python(content: bytes, line: int, words: str) -> None:
    """The reason and the line, never an exception."""
    found = parse_python(content)
    assert isinstance(found, Unparsable)
    assert words in found.reason
    assert found.line == line


def test_encodings_that_python_knows_are_read() -> None:
    """A byte-order mark and a coding line."""
    assert "x" in parsed(b"\xef\xbb\xbfx = 1\n").units
    assert "x" in parsed(b"# coding: latin-1\nx = '\xff'\n").units


def test_invalid_escapes_of_others_do_not_warn() -> None:
    """A string with a bad escape parses in silence, though warnings are errors here."""
    assert "x" in parsed(b"x = '\\d'\n").units


def test_text_of_cuda_files() -> None:
    """UTF-8, with or without mark; binary and other encodings come back as reason and line."""
    assert decode_text(b"\xef\xbb\xbfint x;") == "int x;"
    assert decode_text(b"a\n\xff") == Unparsable("byte 2 is not UTF-8", 2)
    assert isinstance(decode_text(b"a\0"), Unparsable)


def test_nesting_has_a_limit() -> None:
    """A chain of 250 conditions is read, one of 400 is refused by its line."""
    chain = "if x == 0: y = 0\n" + "".join(f"elif x == {i}: y = {i}\n" for i in range(400))
    assert isinstance(parse_python("".join(chain.splitlines(keepends=True)[:250]).encode()), PythonFile)
    found = parse_python(chain.encode())
    assert isinstance(found, Unparsable)
    assert found.reason == "it is nested deeper than 300 levels"
    assert 290 < found.line < 300
