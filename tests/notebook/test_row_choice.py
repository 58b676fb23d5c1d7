"""Rows of a sweep: every combination, or the published ones, and what is refused."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.notebook import row_choice
from kda_lab.notebook.row_choice import chosen_rows
from kda_lab.ops.registry import load_op

QSA, GEMM = "qsa.packed_decode", "nvfp4.gemm"


def test_every_combination_in_order() -> None:
    """Groups, batches and classes are positional, whatever an op calls them."""
    assert [r.label for r in chosen_rows(QSA, ["tp2"], [1, 2], ["short"])] == ["tp2-B1-short", "tp2-B2-short"]
    labels = [r.label for r in chosen_rows(GEMM, ["tiny_a"], [1, 9], ["random", "exact"])]
    assert labels == ["tiny_a-M1-random", "tiny_a-M1-exact", "tiny_a-M9-random", "tiny_a-M9-exact"]


def test_published_rows_are_the_sources_own() -> None:
    """All 29 calls of the GEMM's source thread, all 106 rows of QSA's; batches and classes narrow them, and an empty list narrows nothing."""
    assert len(chosen_rows(GEMM, ["published"], [], [])) == 29
    decode = chosen_rows(GEMM, ["published"], [1, 2, 4, 8, 9], ["random"])
    assert len(decode) == 26
    assert len(chosen_rows(QSA, ["published"], [], [])) == 106
    assert len(chosen_rows(QSA, ["published"], [128], ["medium"])) == 2
    assert {r.parameters["M"] for r in decode} == {1, 2, 4, 8, 9}


@pytest.mark.parametrize(
    ("op", "groups", "batches", "words"),
    [
        (GEMM, ["published", "tiny_a"], [], "allowed: 'published' alone, or others"),
        (GEMM, ["published"], [1, 3], r"batches is \[3\]; allowed: 1, 2, 4, 8, 9, 4369. Name batches and kinds of"),
        (GEMM, ["published"], [True], r"batches is \[True\]; allowed: 1, 2"),
        (GEMM, ["tiny_a", "tiny_a"], [1], "groups is .*; allowed: each value once. Given twice: 'tiny_a'"),
        (GEMM, ["tiny_a"], [1, 9, 1], "batches is .*; allowed: each value once. Given twice: 1"),
        (GEMM, ["tiny_a"], [], "allowed: at least one row"),
        (GEMM, ["huge"], [1], "shape is 'huge'; allowed: '4b_gate_up'"),
    ],
)
def test_what_is_refused(op: str, groups: list[str], batches: list[int], words: str) -> None:
    """A mixture, no row, an unknown or doubled value: each by name."""
    with pytest.raises(ParameterError, match=words):
        chosen_rows(op, groups, batches, ["random"])


def test_an_op_without_published_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cases offer none, and the words say so."""
    monkeypatch.delattr(load_op(QSA).cases, "published")
    with pytest.raises(ParameterError, match=r"The cases of qsa\.packed_decode name no published rows"):
        chosen_rows(QSA, ["published"], [], [])


@pytest.mark.parametrize("kind", ["randm", "exact"])
def test_a_kind_that_takes_no_published_row_is_refused(kind: str) -> None:
    """A misspelt kind, and one that the op knows but its source did not publish, narrow nothing in silence."""
    with pytest.raises(ParameterError, match=rf"kinds is \['{kind}'\]; allowed: 'random'"):
        chosen_rows(GEMM, ["published"], [], ["random", kind])


def test_values_that_exclude_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each list names rows there are, but a batch is lost by the other list."""
    offered = [row_choice.Row(GEMM, f"r{m}", {"M": m, "kind": kind}) for m, kind in ((1, "random"), (2, "exact"))]
    monkeypatch.setattr(load_op(GEMM).cases, "published", lambda: offered)
    assert [r.label for r in chosen_rows(GEMM, ["published"], [2], ["exact"])] == ["r2"]
    with pytest.raises(ParameterError, match=r"batches is \[1\]; allowed: 2. .* none together with the other list"):
        chosen_rows(GEMM, ["published"], [1, 2], ["exact"])


def test_rows_are_matched_by_their_axes() -> None:
    """Every row with one of the values on each given axis, in the op's order; nothing given binds nothing."""
    found = row_choice.matching_rows(QSA, {"HQ": [12], "B": [1, 4], "lengths": ["short"]})
    assert [r.label for r in found] == ["tp2-B1-short", "tp2-B4-short"]
    assert row_choice.matching_rows(QSA, {}) == list(load_op(QSA).cases.rows())


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"B": [3]}, r"axes\['B'\] is 3; allowed: 1, 2, 4"),
        ({"B": [True]}, r"axes\['B'\] is True; allowed: 1"),
        ({"width": [1]}, r"axes\['width'\] is 1; allowed: no axis of this name"),
        ({"B": []}, r"axes is \{'B': \[\]\}; allowed: values that one of the \d+ rows has together"),
        ({"HQ": [24], "HKV": [1]}, "allowed: values that one of the"),
        ({"B": [1, 1]}, "allowed: each value once"),
    ],
)
def test_axes_that_take_no_row_are_refused(axes: dict[str, list[int]], words: str) -> None:
    """An unknown axis or value by its name, and values that no row has together."""
    with pytest.raises(ParameterError, match=words):
        row_choice.matching_rows(QSA, axes)
