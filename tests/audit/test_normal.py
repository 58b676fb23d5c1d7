"""Normal forms: equal for cosmetic edits, different for any other."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.audit.normal import (
    Expressions,
    Function,
    fingerprint,
    guard_words,
    guards_inside,
    locals_of,
    negated,
    normal_form,
    one_line,
)

BASE = """
import b, a
from c import d

def f(x, n=1):
    '''Doc.'''
    total = 0
    for i in range(n):
        total += x[i]
    squares = [v * v for v in x]
    def inner(w):
        return w + total
    return inner(squares)
"""


def function(text: str) -> Function:
    """The first function of a text."""
    return next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("total", "amount"),
        ("v * v for v in", "u*u for u in"),
        ("w", "omega"),
        ("'''Doc.'''", "'''Other.'''\n    # remark"),
        ("'''Doc.'''", ""),
        ("import b, a\nfrom c import d", "from c import d\nimport a\nimport b"),
        ("total += x[i]", "total += (x[ i ])"),
    ],
)
def test_cosmetic_edits_are_equal(old: str, new: str) -> None:
    """Names of locals, docstrings, comments, brackets, the order of imports."""
    assert fingerprint(ast.parse(BASE)) == fingerprint(ast.parse(BASE.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n=1", "n=2"),
        ("x[i]", "x[n]"),
        ("(x, n=1)", "(y, n=1)"),
        ("v * v", "v + v"),
        ("range(n)", "reversed(n)"),
        ("from c import d", "from c import e"),
        ("w + total", "total + w"),
        ("total = 0", "total = 0.0"),
    ],
)
def test_other_edits_differ(old: str, new: str) -> None:
    """Defaults, parameters, operators, globals, imports, operand order, types of constants."""
    assert BASE.replace(old, new) != BASE
    assert fingerprint(ast.parse(BASE)) != fingerprint(ast.parse(BASE.replace(old, new)))


def test_swapped_locals_differ() -> None:
    """Renaming is consistent: two locals that change places are another program."""
    one = function("def f():\n    a = 1\n    b = 2\n    return a - b\n")
    other = function("def f():\n    a = 1\n    b = 2\n    return b - a\n")
    assert normal_form(one) != normal_form(other)


@given(st.permutations(["alpha", "beta", "gamma", "delta"]))
def test_any_renaming_of_locals_is_equal(names: list[str]) -> None:
    """Whatever the four locals are called, the normal form is the same."""
    text = "def f(x):\n    {0} = x\n    {1} = {0} + 1\n    {2} = lambda {3}: {3} + {1}\n    return {2}({0})\n"
    standard = function(text.format("p", "q", "r", "s"))
    assert normal_form(function(text.format(*names))) == normal_form(standard)


def test_locals_leave_parameters_and_globals_out() -> None:
    """What is assigned in the function, unless `global` says otherwise."""
    text = "def f(x):\n    global g\n    g = x\n    y = g\n    import m.n as o\n    x = 2\n"
    assert locals_of(function(text)) == {"y", "o"}


def test_expressions_open_their_locals() -> None:
    """The same condition behind two names, and another one."""
    texts = [
        "limit = n - 1\n    if x < limit: pass",
        "edge = n - 1\n    if x < edge: pass",
        "edge = n\n    if x < edge: pass",
    ]
    keys = []
    for text in texts:
        f = function(f"def f(x, n):\n    {text}\n")
        test = next(n.test for n in ast.walk(f) if isinstance(n, ast.If))
        keys.append(Expressions(f).key(test))
    assert keys[0] == keys[1] != keys[2]


def test_a_local_that_names_itself_ends() -> None:
    """`x = x + 1` in a loop opens a few levels, not for ever."""
    f = function("def f():\n    y = 1\n    y = y + y\n    return y\n")
    assert len(Expressions(f).key(ast.Name(id="y", ctx=ast.Load()))) < 2000


def test_conjuncts_are_split_behind_names() -> None:
    """`a & b`, `a and b`, and a local that names one."""
    f = function("def f(a, b, c):\n    both = a & b\n    return both & c\n")
    value = next(n.value for n in ast.walk(f) if isinstance(n, ast.Return))
    assert value is not None
    assert [one_line(part) for part in Expressions(f).conjuncts(value)] == ["a", "b", "c"]


def test_guards_of_a_node() -> None:
    """Nested conditions, the negated one of an `else`, an exception handler, a conditional expression."""
    text = """
if a:
    if not b: one()
    else: two()
else:
    try: three()
    except ImportError: four()
five() if c else six()
"""
    found = {
        node.func.id: guard_words(guards)
        for node, guards in guards_inside(ast.parse(text).body)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert found == {
        "one": "a and not b", "two": "a and b", "three": "not a", "four": "not a and on ImportError", "five": "c",
        "six": "not c",
    }  # fmt: skip


def test_negation_twice_is_none() -> None:
    """`not not a` is `a`."""
    test = ast.parse("a", mode="eval").body
    assert one_line(negated(negated(test))) == "a"


def test_one_line_is_short() -> None:
    """Line breaks go, and so does the tail."""
    assert one_line(ast.parse("f(\n  1,\n  2)").body[0]) == "f(1, 2)"
    assert len(one_line(ast.parse("f(" + "1," * 200 + ")").body[0])) == 160


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("from a import f\n", "from b import f\n"),
        ("import a as f\n", "from b import f\n"),
        ("from a import *\n", "from b import f\n"),
    ],
)
def test_the_order_of_imports_that_shadow_each_other_counts(first: str, second: str) -> None:
    """The last import of a name is what it is bound to."""
    assert fingerprint(ast.parse(first + second)) != fingerprint(ast.parse(second + first))


def test_the_order_of_other_imports_does_not_count() -> None:
    """Two names, or the same package twice."""
    for first, second in (("import a.b\n", "import a.c\n"), ("from a import f\n", "from a import g\n")):
        assert fingerprint(ast.parse(first + second)) == fingerprint(ast.parse(second + first))


def test_the_order_of_plain_keywords_does_not_count() -> None:
    """Names and constants have no effect; calls have, and `**` may overwrite."""
    assert fingerprint(ast.parse("f(a=1, b=x)")) == fingerprint(ast.parse("f(b=x, a=1)"))
    assert fingerprint(ast.parse("f(a=1, b=x)")) != fingerprint(ast.parse("f(b=1, a=x)"))
    assert fingerprint(ast.parse("f(a=g(), b=h())")) != fingerprint(ast.parse("f(b=h(), a=g())"))
