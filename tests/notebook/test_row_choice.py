"""Rows of a sweep: every combination, or the published ones, and what is refused."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.notebook.row_choice import chosen_rows

QSA, GEMM = "qsa.packed_decode", "nvfp4.gemm"


def test_every_combination_in_order() -> None:
    """Groups, batches and classes are positional, whatever an op calls them."""
    assert [r.label for r in chosen_rows(QSA, ["tp2"], [1, 2], ["short"])] == ["tp2-B1-short", "tp2-B2-short"]
    labels = [r.label for r in chosen_rows(GEMM, ["tiny_a"], [1, 9], ["random", "exact"])]
    assert labels == ["tiny_a-M1-random", "tiny_a-M1-exact", "tiny_a-M9-random", "tiny_a-M9-exact"]


def test_published_rows_are_the_sources_own() -> None:
    """All 29 calls of the source thread; batches and classes narrow them, and an empty list narrows nothing."""
    assert len(chosen_rows(GEMM, ["published"], [], [])) == 29
    decode = chosen_rows(GEMM, ["published"], [1, 2, 4, 8, 9], ["random"])
    assert len(decode) == 26
    assert {r.parameters["M"] for r in decode} == {1, 2, 4, 8, 9}


@pytest.mark.parametrize(
    ("op", "groups", "batches", "words"),
    [
        (QSA, ["published"], [], "The cases of qsa.packed_decode name no published rows"),
        (GEMM, ["published", "tiny_a"], [], "allowed: 'published' alone, or others"),
        (GEMM, ["published"], [3], "allowed: at least one row"),
        (GEMM, ["tiny_a"], [], "allowed: at least one row"),
        (GEMM, ["huge"], [1], "shape is 'huge'; allowed: '4b_gate_up'"),
    ],
)
def test_what_is_refused(op: str, groups: list[str], batches: list[int], words: str) -> None:
    """An op without published rows, a mixture, no row, an unknown group: each by name."""
    with pytest.raises(ParameterError, match=words):
        chosen_rows(op, groups, batches, ["random"])
