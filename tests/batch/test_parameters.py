"""Parameters of a notebook: found without running it, typed by their defaults, refused with names and types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.batch.parameters import read_parameters, typed_value
from kda_lab.errors import ParameterError

Make = Callable[..., Path]


def test_defaults_are_read_in_order_with_their_types(make_notebook: Make) -> None:
    """Literals of the tagged cell become the defaults; annotated assignments count too."""
    found = read_parameters(
        make_notebook(defaults='count: int = 2\nrate = -1e-3\nrun_dir = ""\n# a comment\nitems = ("a",)')
    )
    assert list(found.defaults.items()) == [("count", 2), ("rate", -1e-3), ("run_dir", ""), ("items", ("a",))]


def test_unknown_parameter_lists_the_known_and_guesses(make_notebook: Make) -> None:
    """A misspelt name is refused with every allowed name and the nearest one."""
    declared = read_parameters(make_notebook())
    with pytest.raises(
        ParameterError, match=r"is 'row'; allowed: rows, scale, verbose, name, batches\. Did you mean 'rows'\?"
    ):
        declared.typed({"row": "3"})


def test_run_dir_belongs_to_the_runner(make_notebook: Make) -> None:
    """`run_dir` cannot be given: --out sets it."""
    with pytest.raises(ParameterError, match=r"parameter is 'run_dir'; .*set by --out"):
        read_parameters(make_notebook()).typed({"run_dir": "/tmp"})


def test_all_wrong_parameters_are_named_at_once(make_notebook: Make) -> None:
    """Two mistakes give one error with two reasons."""
    with pytest.raises(ParameterError) as caught:
        read_parameters(make_notebook()).typed({"rows": "many", "colour": "red"})
    assert [r.field for r in caught.value.reasons] == ["rows", "parameter of 10_question.ipynb"]


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [
        ("true", False, True),
        ("False", True, False),
        ("12", 3, 12),
        ("-4", 3, -4),
        ("1e-3", 0.5, 1e-3),
        ("2", 0.5, 2.0),
        ("12", "a", "12"),
        ("true", "a", "true"),
        ("[1, 2]", [4], [1, 2]),
        ('["a"]', ["b"], ["a"]),
        ("['a']", ["b"], ["a"]),
        ("[]", [4], []),
        ("[1]", (4,), (1,)),
        ('{"a": 1}', {}, {"a": 1}),
        ("none", None, None),
        ("3", None, 3),
        ("word", None, "word"),
        (7, 3, 7),
        (7, 0.5, 7.0),
    ],
)
def test_text_takes_the_type_of_the_default(text: Any, default: Any, value: Any) -> None:
    """A value given as text is parsed to exactly the default's type."""
    found = typed_value("p", text, default)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "default", "words"),
    [
        ("yes", False, r"p is 'yes' \(str\); allowed: bool, as its default False"),
        ("1", False, r"allowed: bool"),
        ("1.5", 3, r"p is '1\.5' \(float\); allowed: int, as its default 3"),
        ("1e3", 3, r"\(float\); allowed: int"),
        ("true", 3, r"\(bool\); allowed: int"),
        (True, 3, r"\(bool\); allowed: int"),
        ("nan", 0.5, r"allowed: float"),
        ("inf", 0.5, r"allowed: float"),
        ("fast", 0.5, r"p is 'fast' \(str\); allowed: float"),
        (3, "a", r"p is 3 \(int\); allowed: str"),
        ("3", [4], r"\(int\); allowed: list of int"),
        ('["a"]', [4], r"\(list of str\); allowed: list of int"),
        ("[1, 2.5]", [4], r"\(list of float/int\); allowed: list of int"),
    ],
)
def test_wrong_type_names_both_types(text: Any, default: Any, words: str) -> None:
    """A value that is not of the default's type is refused, never converted by guess."""
    with pytest.raises(ParameterError, match=words):
        typed_value("p", text, default)


@given(
    st.one_of(
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
        st.lists(st.integers(), min_size=1),
    )
)
def test_repr_of_any_value_parses_back(value: Any) -> None:
    """What Python prints for a value is read back as that value when the default has its type."""
    text = value if isinstance(value, str) else repr(value)
    assert typed_value("p", text, value) == value


@pytest.mark.parametrize("tags", [0, 2])
def test_exactly_one_tagged_cell(make_notebook: Make, tags: int) -> None:
    """A notebook without a parameters cell, or with two, is refused."""
    with pytest.raises(
        ParameterError, match=rf"cells tagged 'parameters' in 10_question\.ipynb is {tags}; allowed: exactly 1"
    ):
        read_parameters(make_notebook(tags=tags))


@pytest.mark.parametrize("line", ["rows = 1 + x", "import os", "a = b = 1", "rows: int"])
def test_parameters_cell_holds_literals_only(make_notebook: Make, line: str) -> None:
    """A line that is not `name = literal` is refused with its text."""
    with pytest.raises(
        ParameterError,
        match=rf"line 2 of the parameters cell .* is {line!r}; allowed: name = literal".replace("+", r"\+"),
    ):
        read_parameters(make_notebook(defaults=f'run_dir = ""\n{line}'))


def test_broken_parameters_cell(make_notebook: Make) -> None:
    """A parameters cell that is not Python is refused."""
    with pytest.raises(ParameterError, match="is not Python"):
        read_parameters(make_notebook(defaults="rows = ="))


def test_notebook_must_have_run_dir(make_notebook: Make) -> None:
    """Without `run_dir` a notebook could not write its verdict, so it is refused."""
    with pytest.raises(ParameterError, match=r"is \['rows'\]; allowed: one called 'run_dir'"):
        read_parameters(make_notebook(defaults="rows = 1"))


@pytest.mark.parametrize("content", [None, "not json", "[]", "{}"])
def test_file_that_is_not_a_notebook(tmp_path: Path, content: str | None) -> None:
    """A missing or foreign file is refused by its path."""
    path = tmp_path / "x.ipynb"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ParameterError, match=r"notebook is .*x\.ipynb"):
        read_parameters(path)


@pytest.mark.parametrize("text", ["b'x'", "{1, 2}", "1j", "1e999", "[1e999]", "...", "{[]: 1}"])
def test_values_that_no_record_can_hold_are_refused(make_notebook: Make, text: str) -> None:
    """Bytes, sets, complex and infinite numbers are Python literals, but parameters.json cannot hold them."""
    with pytest.raises(ParameterError, match=r"line 2 of the parameters cell .*allowed: name = literal that JSON can"):
        read_parameters(make_notebook(defaults=f'run_dir = ""\nrows = {text}'))


@pytest.mark.parametrize("text", ["b'x'", "{1, 2}", "1j", "[1e999]", "Infinity"])
def test_given_values_that_no_record_can_hold_are_refused(text: str) -> None:
    """The same for a value that is given where the default allows any type."""
    with pytest.raises(ParameterError, match=r"p is .*; allowed: "):
        typed_value("p", text, None)
