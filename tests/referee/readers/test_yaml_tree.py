"""YAML with lines: plain trees alone, and each part knows where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from kda_lab.errors import RefereeError
from kda_lab.referee.readers.yaml_tree import read_tree


def put(folder: Path, content: str) -> Path:
    """A YAML file."""
    path = folder / "f.yaml"
    path.write_text(content)
    return path


def test_values_and_lines(tmp_path: Path) -> None:
    """Plain values come out as they are, and every part has its line."""
    tree = read_tree(put(tmp_path, "a: 1\nb:\n  - {c: 2.5, d: yes}\n  - x\n"))
    assert tree.value == {"a": 1, "b": [{"c": 2.5, "d": True}, "x"]}
    assert (tree.line(("b", 0, "d")), tree.line(("b", 1)), tree.line(("b", 9, "z"))) == (3, 4, 3)


def test_commits_dates_and_clock_times_stay_text(tmp_path: Path) -> None:
    """No number in base 60, no date object, no exponent in a commit's hash."""
    tree = read_tree(put(tmp_path, "a: 12:30:45\nb: 2026-11-29\nc: 22e7\nd: 017c367079\n"))
    assert tree.value == {"a": "12:30:45", "b": "2026-11-29", "c": "22e7", "d": "017c367079"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1\na: 2\n", r"f\.yaml:2: key is 'a'; allowed: a text, each once in a mapping"),
        ("a: &x [1]\nb: *x\n", r"f\.yaml:2: alias is '\*x'; allowed: values written out"),
        ("a: [1, 2\n", r"f\.yaml:2: YAML is .*allowed: one well-formed YAML document"),
        ("a: !!python/object:os.system x\n", r"tag is 'tag:yaml.org,2002:python/object:os.system'"),
        ("? [1]\n: 2\n", r"key is ''"),
        ("<<: {a: 1}\n", r"key is '<<'"),
        ("a: 1\n---\nb: 2\n", r"f\.yaml:2: YAML is"),
        ("a: \x07\n", r"YAML is"),
        ("a:\n\t- 1\n", r"f\.yaml:2: YAML is"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, content: str, message: str) -> None:
    """Keys twice, aliases, cut-off lists, tags that would run code, two documents: one error with the line."""
    with pytest.raises(RefereeError, match=message):
        read_tree(put(tmp_path, content))


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    """A tree deeper than the stack is no claim."""
    with pytest.raises(RefereeError, match=r"YAML is .*nest"):
        read_tree(put(tmp_path, "[" * 20_000 + "]" * 20_000))


def test_a_comment_alone_is_null(tmp_path: Path) -> None:
    """The document holds nothing, which is for the caller to refuse."""
    assert read_tree(put(tmp_path, "# nothing\n")).value is None


@pytest.mark.parametrize("text", ["1_000", "010", "0x10", "0b11", "1_0.5"])
def test_a_number_of_another_notation_is_refused(tmp_path: Path, text: str) -> None:
    """YAML would read 8 for 010; in quotes it is a text."""
    path = tmp_path / "n.yaml"
    path.write_text(f"a: 1\nb: {text}\n")
    with pytest.raises(RefereeError, match=r"n\.yaml:2: value is .*; allowed: decimal digits .*Put it in quotes"):
        read_tree(path)
    path.write_text(f"a: 1\nb: '{text}'\n")
    assert read_tree(path).value == {"a": 1, "b": text}


@pytest.mark.parametrize("text", ["0", "-3", "+2", "1.5", "-0.25", "1.5e+3", ".5", "5.", ".inf", "-.inf", ".nan"])
def test_decimal_numbers_are_read(tmp_path: Path, text: str) -> None:
    """Every usual notation of a number stays one."""
    path = tmp_path / "n.yaml"
    path.write_text(f"a: {text}\n")
    assert type(read_tree(path).value["a"]) in (int, float)
