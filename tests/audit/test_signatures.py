"""Signatures: read, compared, and bound to calls as Python and Triton's launcher bind them."""

from __future__ import annotations

import ast
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.audit.normal import Function
from kda_lab.audit.signatures import (
    Arguments,
    Signature,
    arguments_of,
    bind,
    dataclass_signature,
    differences,
    in_words,
    signature_of,
)


def function(text: str) -> Function:
    """The function of a text."""
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def signature(parameters: str, decorator: str = "") -> Signature:
    """Signature of a function with these parameters."""
    return signature_of(function(f"{decorator}\ndef f({parameters}): ..."))


def arguments(call: str) -> Arguments:
    """What a call passes."""
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    return arguments_of(node)


@pytest.mark.parametrize(
    ("parameters", "call", "why"),
    [
        ("a, b", "f(1, 2)", ""),
        ("a, b", "f(1)", "the parameter b gets no argument"),
        ("a, b", "f(1, 2, 3)", "it passes 3 positional arguments, 2 are taken"),
        ("a, b", "f(1, c=2)", "no parameter takes the keyword c"),
        ("a, b", "f(1, a=2, b=3)", "a is passed by position and by keyword"),
        ("a, *, b=1", "f(1, 2)", "it passes 2 positional arguments, 1 are taken"),
        ("a, /, b", "f(b=1, a=2)", "no parameter takes the keyword a"),
        ("*a, **k", "f(1, 2, z=3)", ""),
        ("a, b", "f(*x)", ""),
        ("a, b", "f(**x)", ""),
        ("a, b", "f(1, c=2, **x)", "no parameter takes the keyword c"),
        ("a, *args", "f()", "the parameter a gets no argument"),
    ],
)
def test_binding_in_words(parameters: str, call: str, why: str) -> None:
    """Why a call fails, in words; unknown `*` and `**` arguments are never held against it."""
    assert bind(signature(parameters), arguments(call)) == why


NAMES = ("a", "b", "c")


@given(st.data())
def test_binding_agrees_with_python(data: st.DataObject) -> None:
    """Over random signatures and calls, the verdict is that of `inspect.Signature.bind`."""
    count = data.draw(st.integers(0, 3))
    star = data.draw(st.integers(0, count))
    defaults = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    defaults[:star] = sorted(defaults[:star])
    listed = [f"{n}=0" if d else n for n, d in zip(NAMES, defaults, strict=False)]
    listed = [*listed[:star], *(["*"] if star < count else []), *listed[star:]]
    extra = data.draw(st.sampled_from([[], ["**more"]]))
    text = ", ".join([*listed, *extra])
    positional = data.draw(st.integers(0, 4))
    keywords = data.draw(st.lists(st.sampled_from([*NAMES, "z"]), unique=True, max_size=3))
    space: dict[str, object] = {}
    exec(f"def f({text}): ...", space)
    try:
        inspect.signature(space["f"]).bind(*range(positional), **dict.fromkeys(keywords, 0))  # type: ignore[arg-type]
        binds = True
    except TypeError:
        binds = False
    given_call = "f(" + ", ".join([*map(str, range(positional)), *(f"{k}=0" for k in keywords)]) + ")"
    assert (bind(signature(text), arguments(given_call)) == "") is binds


def test_launch_options_are_free_for_a_kernel_only() -> None:
    """`num_warps` goes to Triton's launcher; a plain function does not know it."""
    call = arguments("k[g](x, num_warps=4, launch_pdl=True)")
    assert call.launch
    assert bind(signature("x", "@triton.jit"), call) == ""
    assert bind(signature("x"), call) == "no parameter takes the keyword num_warps, launch_pdl"
    assert (
        bind(signature("x", "@triton.jit"), arguments("k[g](x, num_wraps=4)"))
        == "no parameter takes the keyword num_wraps"
    )


def test_an_autotuner_may_fill_what_a_launch_leaves_out() -> None:
    """A missing block size is no error under `autotune` or `heuristics`."""
    assert bind(signature("x, BLOCK", "@triton.autotune(c, key=[])\n@triton.jit"), arguments("k[g](x)")) == ""
    assert bind(signature("x, BLOCK", "@triton.jit"), arguments("k[g](x)")) == "the parameter BLOCK gets no argument"


@pytest.mark.parametrize(
    ("ours", "theirs", "category", "severity"),
    [
        ("a, b", "a", "lost parameter", "crash"),
        ("a, **k", "a", "lost parameter", "crash"),
        ("a", "a, b", "new required parameter", "crash"),
        ("a, b=1", "a, b=2", "changed default", "silent-wrong"),
        ("a, b=1", "a, b", "lost default", "crash"),
        ("a, b", "a, *, b", "changed kind", "crash"),
        ("a, *, b", "a, b", "changed kind", "silent-wrong"),
        ("a, b", "b, a", "changed order", "silent-wrong"),
        ("a, B: tl.constexpr", "a, B", "changed constexpr", "crash"),
        ("a, b=1", "a, c=2, b=1", "changed order", "silent-wrong"),
    ],
)
def test_differences(ours: str, theirs: str, category: str, severity: str) -> None:
    """Each way in which a signature can take less, or take it otherwise."""
    found = differences(signature(ours), signature(theirs))
    assert [(c.category, c.severity) for c in found] == [(category, severity)]
    assert in_words(found)


@pytest.mark.parametrize(("ours", "theirs"), [("a, b=1", "a, b = 1"), ("a: int", "a"), ("a", "a, b=1"), ("a", "a, *x")])
def test_no_loss(ours: str, theirs: str) -> None:
    """Formatting, annotations, and parameters that were added behind with a default."""
    assert differences(signature(ours), signature(theirs)) == []


def test_dataclass_constructors() -> None:
    """Fields in order; class variables left out; bases, or options the audit does not model, are unknown."""

    def of(text: str) -> Signature | None:
        node = ast.parse(text).body[0]
        assert isinstance(node, ast.ClassDef)
        return dataclass_signature(node)

    found = of(
        "@dataclass(frozen=True)\nclass C:\n    a: int\n    b: int = field(default=1)\n    K: ClassVar[int] = 2\n"
    )
    assert found is not None
    assert [(p.name, p.default is None) for p in found.parameters] == [("a", True), ("b", False)]
    assert of("@dataclass\nclass C(Base):\n    a: int\n") is None
    assert of("class C:\n    a: int\n") is None
    assert of("@dataclass\nclass C:\n    a: int = field(init=False)\n") is None
