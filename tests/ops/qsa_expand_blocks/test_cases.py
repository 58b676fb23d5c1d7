"""Rows, synthetic selections and changes of the expansion: what they promise, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_expand_blocks import cases


def test_rows_have_labels_of_their_own_and_say_their_axes() -> None:
    """One label a row; a thousand rows are among them."""
    rows = cases.rows()
    assert len({row.label for row in rows}) == len(rows) == 5 * 4 * 2
    assert cases.make_row(2, "holes", "mixed", 8).label == "B2-holes-mixed-k8"
    assert rows[0].parameters == {"B": 1, "k": 512, "kind": "decode", "lengths": "short"}
    assert max(row.parameters["B"] for row in rows) == 1024


def test_a_draw_is_repeatable() -> None:
    """Same label and seed, same blocks; another seed, other blocks."""
    row = cases.make_row(4, "decode", "saturated", 8)
    one, two, other = (cases.synthesise(row, seed).inputs["blocks"] for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_kinds_are_what_their_names_say() -> None:
    """Holes are among valid blocks, overruns begin behind the length, prefill rows stand before the end."""
    drawn = {kind: cases.synthesise(cases.make_row(13, kind, "mixed", 8), 1).inputs for kind in cases.KINDS}
    inside = (drawn["holes"]["blocks"][:, :-1] < 0) & (drawn["holes"]["blocks"][:, 1:] >= 0)
    assert bool(inside.any())
    assert not bool(((drawn["decode"]["blocks"][:, :-1] < 0) & (drawn["decode"]["blocks"][:, 1:] >= 0)).any())
    assert bool((drawn["overrun"]["blocks"] * 4 >= drawn["overrun"]["lengths"][:, None]).any())
    assert bool((drawn["prefill"]["positions"] < drawn["prefill"]["lengths"] - 1).any())
    for kind in ("decode", "prefill", "holes"):
        last = drawn[kind]["blocks"].max(1).values * 4 + 3
        assert bool((last <= drawn[kind]["positions"].clamp(min=0)).all() or kind == "holes")
    assert torch.equal(drawn["decode"]["positions"], drawn["decode"]["lengths"] - 1)


@pytest.mark.parametrize(("which", "sign"), [("shorter", -1), ("longer", 1)])
def test_changed_contents_have_other_lengths(which: str, sign: int) -> None:
    """Same shapes and dtypes, every longer row moved the right way."""
    call = cases.synthesise(cases.make_row(4, "decode", "short", 8), 1)
    new = cases.changed(call, which, 3)
    assert {n: (t.shape, t.dtype) for n, t in new.items()} == {n: (t.shape, t.dtype) for n, t in call.inputs.items()}
    assert bool((sign * (new["lengths"] - call.inputs["lengths"]) > 0).all())


def test_sets_share_their_lengths_and_differ_in_their_blocks() -> None:
    """Timing sets have the same blocks in another order; there are no guard rows to add."""
    row = cases.make_row(2, "decode", "saturated", 8)
    sets = cases.make_sets(row, 2, 1, "cpu")
    assert not torch.equal(sets[0].inputs["blocks"], sets[1].inputs["blocks"])
    assert torch.equal(sets[0].inputs["blocks"].sort(1).values, sets[1].inputs["blocks"].sort(1).values)
    assert cases.with_guard_rows(sets[0], 64) is sets[0]


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: cases.make_row(1, "odd"), "kind is 'odd'; allowed: 'decode', 'prefill', 'holes', 'overrun'"),
        (lambda: cases.make_row(0), r"B and k is \(0, 512\); allowed: 1 or more"),
        (lambda: cases.make_row(1, live="long"), "lengths is 'long'; allowed: 'short', 'saturated', 'mixed'"),
        (
            lambda: cases.changed(cases.synthesise(cases.make_row(1), 1), "wider", 1),
            "which is 'wider'; allowed: 'shorter', 'longer'",
        ),
    ],
)
def test_refusals_name_the_field(action, words: str) -> None:
    """Unknown names are refused with what is allowed."""
    with pytest.raises(ParameterError, match=words):
        action()
