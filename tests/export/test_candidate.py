"""Reading a candidate: imports first, then its declaration, and never a run in this process."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from kda_lab.errors import ExportError
from kda_lab.export.candidate import read_candidate

TOY = Path(__file__).with_name("toy_candidate.py")


def edited(tmp_path: Path, old: str, new: str) -> Path:
    text = TOY.read_text()
    assert old in text
    path = tmp_path / "edited.py"
    path.write_text(text.replace(old, new, 1))
    return path


def test_literal_declaration_is_read_without_running(tmp_path: Path) -> None:
    """A file that would fail when run still yields its declaration and the hash of its bytes."""
    path = edited(tmp_path, "@triton.jit", "1 / 0\n\n\n@triton.jit")
    found = read_candidate(path)
    assert found.declaration.kernel == "toy_decode"
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_computed_declaration_is_evaluated_elsewhere(tmp_path: Path) -> None:
    """A CONTRACT that is computed is evaluated in another process; nothing of the file stays in this one."""
    path = edited(tmp_path, '"GROUP": 12', '"GROUP": 3 * 4')
    before = set(sys.modules)
    assert read_candidate(path).declaration.compile_units[0].constants["GROUP"] == 12
    assert not [n for n in set(sys.modules) - before if "edited" in n or "exported" in n]


def test_computed_declaration_that_raises(tmp_path: Path) -> None:
    """A CONTRACT whose evaluation fails is refused with the child's traceback."""
    with pytest.raises(ExportError, match=r"(?s)export\.declaration: fresh process failed .*ZeroDivisionError"):
        read_candidate(edited(tmp_path, '"GROUP": 12', '"GROUP": 12 // 0'))


@pytest.mark.parametrize(
    "line",
    [
        "import kda_lab",
        "from kda_lab.runtime import capability",
        "import numpy as np",
        "from . import other",
        "import sys",
        "import gc",
    ],
)
def test_foreign_imports_are_refused(tmp_path: Path, line: str) -> None:
    """Anything but torch, triton and a short list of modules is refused with its line, nested imports too."""
    with pytest.raises(
        ExportError,
        match=r"export\.imports: edited\.py: import is '.*'; allowed: torch, triton, __future__, collections, .*\. Line \d+",
    ):
        read_candidate(edited(tmp_path, "    heads = q.shape[1]", f"    {line}\n    heads = q.shape[1]"))


def test_imports_are_checked_before_anything_runs(tmp_path: Path) -> None:
    """A computed declaration in a file with a foreign import is not evaluated."""
    path = edited(tmp_path, '"GROUP": 12', '"GROUP": 12 // 0')
    path.write_text("import numpy\n" + path.read_text().replace("from __future__ import annotations\n", ""))
    with pytest.raises(ExportError, match=r"export\.imports"):
        read_candidate(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("CONTRACT = {", "OTHER = {", r"CONTRACT is absent; allowed: one dict"),
        ('"kernel": "toy_decode"', '"kernel": "Toy Decode"', r"CONTRACT\.kernel is 'Toy Decode'"),
        ('"kernels_per_call": 1,', "", r"CONTRACT\.kernels_per_call is"),
        (
            '"entry": "packed_decode"',
            '"entry": "decode"',
            r"CONTRACT\.entry is 'decode'; allowed: one of \['_toy_kernel', 'packed_decode'\]",
        ),
        ('"function": "_toy_kernel"', '"function": "_other"', r"CONTRACT\.compile_units\.0 is '_other'"),
        ('"language": "triton"', '"language": "cuda"', r"CONTRACT\.language is 'cuda'; allowed: 'triton'"),
        ("@triton.jit", "@triton.jit(", "is not valid Python"),
    ],
)
def test_wrong_declaration_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    """Each fault of a declaration names its field, what is there and what is allowed."""
    with pytest.raises(ExportError, match=rf"export\.declaration: .*{words}"):
        read_candidate(edited(tmp_path, old, new))


def test_missing_file(tmp_path: Path) -> None:
    """A path without a file is refused."""
    with pytest.raises(ExportError, match=r"candidate is '.*absent\.py'; allowed: a Python file that exists"):
        read_candidate(tmp_path / "absent.py")
