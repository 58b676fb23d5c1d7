"""What an exported source says: its declaration, its signature against the op, and the door's against its own."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.audit.exported_source import (
    check_declaration,
    check_signature,
    function_of,
    keywords_of,
    signature_faults,
)
from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(name="toy.add", tensors=("a", "b"), scalars=("scale",), outputs=("out",))


def entry(signature: str) -> ast.FunctionDef:
    """The syntax tree of a function with this signature."""
    (node,) = ast.parse(f"def add({signature}): pass").body
    assert isinstance(node, ast.FunctionDef)
    return node


@pytest.mark.parametrize(
    "signature", ["a, b, *, scale, out=None", "a, b, *, out=None, scale=1.0, extra=0", "a, /, b, *, scale, out=None"]
)
def test_a_right_signature_has_no_fault(signature: str) -> None:
    """Order of keywords, defaults of scalars and optional extras are the entry's own business."""
    assert signature_faults(entry(signature), SPEC) == []


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ("b, a, *, scale, out=None", "takes by position ['b', 'a']; toy.add gives ['a', 'b']"),
        ("a, *, b, scale, out=None", "takes by position ['a']"),
        ("a, b, scale, *, out=None", "takes by position ['a', 'b', 'scale']"),
        ("a, b, *, out=None", "lacks the keywords ['scale']"),
        ("a, b, *, scale", "lacks the keywords ['out']"),
        ("a, b, *, scale, out=None, must", "demands the keywords ['must']"),
        ("a, b, *, scale, out=()", "the outputs ['out'] of add have another default than None"),
        ("a, b, *, scale, out", "the outputs ['out'] of add have another default than None"),
        ("a, b, *, scale, out=None, **rest", "takes starred arguments"),
        ("a, b, *rest, scale, out=None", "takes starred arguments"),
    ],
)
def test_a_wrong_signature_is_told(signature: str, words: str) -> None:
    """Each way in which a call of the op would fail or mean something else is one fault."""
    assert any(words in fault for fault in signature_faults(entry(signature), SPEC))


def test_what_is_updated_in_place_is_no_keyword() -> None:
    """A tensor that is input and output is taken by position, once."""
    spec = OpSpec(name="toy.add", tensors=("a", "b"), scalars=("scale",), outputs=("out", "b"))
    assert signature_faults(entry("a, b, *, scale, out=None"), spec) == []
    assert "takes by position" in signature_faults(entry("a, *, scale, out=None, b=None"), spec)[0]


@given(st.permutations(["scale", "out=None", "extra=1"]))
def test_the_order_of_keywords_means_nothing(keywords: list[str]) -> None:
    """Keyword-only parameters in any order are the same signature."""
    node = entry(f"a, b, *, {', '.join(keywords)}")
    assert signature_faults(node, SPEC) == []
    assert keywords_of(node) == {"scale": "", "out": "None", "extra": "1"}


def test_a_file_that_cannot_be_read_has_no_function(tmp_path: Path) -> None:
    """Missing, malformed or absurdly nested text gives None, and no traceback."""
    for name, text in (("broken.py", "def f("), ("nul.py", "\0"), ("deep.py", "(" * 5000 + ")" * 5000)):
        (tmp_path / name).write_text(text)
        assert function_of(tmp_path / name, "f") is None
    assert function_of(tmp_path / "absent.py", "f") is None


def test_a_source_that_is_no_python_fails_the_declaration(toy: Any) -> None:
    """What the export's own reader refuses is a finding, and imports are not called right."""
    toy.source.write_text("def (")
    statuses = {o.check: o.status for o in check_declaration(toy.kernel)}
    assert statuses == {"declaration": "failed", "imports": "not run"}


def test_a_contract_that_is_wider_than_the_source_is_found(toy: Any) -> None:
    """Each declared field that differs is one finding that names it."""
    toy.edit_contract(lambda c: c.update(kernels_per_call=2, author="somebody"))
    (outcome,) = (o for o in check_declaration(toy.kernel) if o.check == "declaration")
    assert [finding.symbol for finding in outcome.findings] == ["author", "kernels_per_call"]


def test_an_entry_that_is_gone_or_an_op_that_is_unknown_fails_the_signature(toy: Any) -> None:
    """Without entry or op there is nothing to compare the door with."""
    toy.edit_contract(lambda c: c.update(entry="absent"))
    assert [o.status for o in check_signature(toy.kernel)] == ["failed", "not run"]
    toy.edit_contract(lambda c: c.update(op="qsa.absent"))
    signature, door = check_signature(toy.kernel)
    assert "op is 'qsa.absent'" in signature.words
    assert door.words == "the op is unknown"


def test_a_door_that_cannot_force_a_kernel_is_found(toy: Any) -> None:
    """The parameter `kernel` is what lets a caller name an exported kernel."""
    door = toy.places.doors / "qsa.py"
    door.write_text(door.read_text().replace("    kernel: str | None = None,\n", ""))
    assert check_signature(toy.kernel)[1].words == "packed_decode cannot force a kernel: it has no parameter kernel"


def test_a_door_may_demand_what_the_entry_leaves_open(toy: Any) -> None:
    """Whoever must name a value never meets the entry's default."""
    door = toy.places.doors / "qsa.py"
    changed = door.read_text().replace("max_seqlen_q: int = 1", "max_seqlen_q: int")
    assert changed != door.read_text()
    door.write_text(changed)
    assert [outcome.status for outcome in check_signature(toy.kernel)] == ["passed", "passed"]


def test_an_op_without_a_door_is_no_fault(toy: Any) -> None:
    """Some ops are called by name only; the check says that it compared nothing."""
    (toy.places.doors / "qsa.py").write_text("")
    assert check_signature(toy.kernel)[1].status == "not run"
