"""Rows, synthetic calls, guard entries, changed contents and edge calls of block scores."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from kda_lab.captures.store import CaptureSet
from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_block_scores import cases, oracle
from kda_lab.verify.guarded import same_bits

RAGGED = cases.rows((64,), (5,), ("ragged",))[0]


def test_timed_rows_cover_lengths_and_batches() -> None:
    """2048, 16384 and 262144 tokens, each with 1, 4, 16 and 64 rows, in that order."""
    labels = [row.label for row in cases.rows()]
    assert len(labels) == 12
    assert (labels[0], labels[-1]) == ("B1-N512-uniform", "B64-N65536-uniform")


def test_ragged_lengths_hold_the_edges() -> None:
    """A full row, an empty one, and rows that end within a page."""
    live = cases.lengths("ragged", 8, 256)
    assert {0, 256} < set(live)
    assert any(n % 16 for n in live)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("round", 1, 16), r"kind is 'round'; allowed: 'uniform', 'ragged'"),
        (("uniform", 0, 16), r"batch is 0; allowed: 1 or more"),
        (("uniform", 1, 24), r"capacity is 24; allowed: a positive multiple of 16"),
    ],
)
def test_rows_that_cannot_be_are_refused(arguments: tuple[str, int, int], message: str) -> None:
    """Kind, batch and capacity are named with what they may be."""
    with pytest.raises(ParameterError, match=message):
        cases.lengths(*arguments)


def test_a_row_has_one_content() -> None:
    """The same label and seed give the same bits, another seed others; dead pages are -1."""
    first, again, other = (cases.synthesise(RAGGED, seed) for seed in (1, 1, 2))
    assert all(same_bits(first.inputs[n], again.inputs[n]) for n in first.inputs)
    assert not torch.equal(first.inputs["keys"], other.inputs["keys"])
    assert first.inputs["pages"][1].tolist() == [-1] * 4


def test_sets_are_distinct() -> None:
    """Cold timing gets other keys and pages in each set, and one geometry."""
    one, two = cases.make_sets(RAGGED, 2, 0, "cpu")
    assert not torch.equal(one.inputs["keys"], two.inputs["keys"])
    assert [t.shape for t in one.inputs.values()] == [t.shape for t in two.inputs.values()]


def test_guards_poison_what_no_row_has() -> None:
    """The pool grows by whole pages of NaN, dead entries become NaN, and no score changes."""
    call = cases.synthesise(RAGGED, 3)
    guarded = cases.with_guard_rows(call, 20)
    live = sum(cases.lengths("ragged", 5, 64))
    assert guarded.inputs["keys"].shape[0] == call.inputs["keys"].shape[0] + 32
    assert int((~guarded.inputs["keys"].isnan().any(1)).sum()) == live
    assert torch.equal(oracle.oracle_fp64(guarded)["scores"], oracle.oracle_fp64(call)["scores"])


@pytest.mark.parametrize("real", [False, True], ids=["drawn", "reordered"])
@pytest.mark.parametrize("which", ["shorter", "longer"])
def test_changed_contents_have_other_lengths(which: str, real: bool) -> None:
    """Same shapes, other lengths, finite scores where and only where there are blocks."""
    call = cases.synthesise(RAGGED, 3)
    roomy = cases.with_guard_rows(call, 64)
    new = roomy.with_inputs(**cases.changed(roomy, which, 5, roomy if real else None))
    old, live = call.inputs["lengths"], new.inputs["lengths"]
    assert [t.shape for t in new.inputs.values()] == [t.shape for t in roomy.inputs.values()]
    assert bool((live < old).any()) if which == "shorter" else bool((live > old).any())
    scores = oracle.oracle_fp64(new)["scores"]
    assert torch.equal(scores == -math.inf, torch.arange(64) >= live[:, None])
    assert not scores.isnan().any()


def test_changed_contents_take_given_lengths() -> None:
    """A list of lengths is what the row gets."""
    call = cases.synthesise(RAGGED, 3)
    assert cases.changed(call, [1, 2, 3, 4, 64], 0)["lengths"].tolist() == [1, 2, 3, 4, 64]


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("wider", r"lengths is 'wider'; allowed: 'shorter', 'longer' or one length a row"),
        ([1, 2], r"lengths is \(1, 2\); allowed: 5 lengths of 0 to 64"),
        ([1, 2, 3, 4, 65], r"allowed: 5 lengths of 0 to 64"),
    ],
)
def test_changes_that_do_not_fit_are_refused(which: object, message: str) -> None:
    """Unknown words and lengths beyond the row's pages."""
    with pytest.raises(ParameterError, match=message):
        cases.changed(cases.synthesise(RAGGED, 3), which, 0)


def test_full_rows_cannot_grow() -> None:
    """Where every row has all its blocks, `longer` is refused and the referee goes back to the first contents."""
    call = cases.synthesise(cases.rows((32,), (2,))[0], 0)
    with pytest.raises(ParameterError, match=r"'longer'; allowed: 'shorter', since every row has all of its 32 blocks"):
        cases.changed(call, "longer", 0)


def test_shuffled_pages_give_the_same_scores_of_turned_heads() -> None:
    """Moving pages together with their ids changes no product; another order of heads changes no sum."""
    call = cases.synthesise(RAGGED, 3)
    moved = call.with_inputs(**cases.shuffled(call, 9))
    assert not torch.equal(moved.inputs["keys"], call.inputs["keys"])
    assert torch.allclose(oracle.oracle_fp64(moved)["scores"], oracle.oracle_fp64(call)["scores"], atol=1e-12)


def test_edge_calls_are_what_they_say() -> None:
    """Equal keys give equal scores, negative products give zeros, shared pages are shared."""
    edges = cases.edge_calls(1)
    equal = oracle.oracle_fp64(edges["equal_keys"])["scores"][0, :33]
    assert bool((equal == equal[0]).all())
    assert bool((oracle.oracle_fp64(edges["all_negative"])["scores"][1] == 0).all())
    pages = edges["shared_pages"].inputs["pages"]
    assert torch.equal(pages[0], pages[2])


def test_committed_captures_are_drawn_from_their_seed() -> None:
    """Every committed capture is the row of its name, drawn from seed 0, bit for bit."""
    captures = CaptureSet.open(Path(__file__).parents[3] / "data" / "captures" / "qsa.block_scores")
    rows = {row.label: row for row in cases.capture_rows()}
    assert set(captures.names()) == set(rows)
    for name in captures.names():
        call = captures.load(name).call
        drawn = cases.synthesise(rows[name], 0)
        assert all(same_bits(call.inputs[n], drawn.inputs[n]) for n in drawn.inputs), name
