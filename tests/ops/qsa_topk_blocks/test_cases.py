"""Rows, synthetic scores, guards and changes of top-k: what they promise, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_topk_blocks import cases
from kda_lab.verify.guarded import same_bits


def test_rows_have_labels_of_their_own_and_say_their_axes() -> None:
    """One label a row; the axes that reports read are there."""
    rows = cases.rows()
    assert len({row.label for row in rows}) == len(rows) == 3 * 4 * 3 * 2
    assert rows[0].label == "n512-B1-scores"
    assert cases.make_row(2, 40, "equal", "mixed", 8).label == "n40-B2-equal-mixed-k8"
    assert rows[0].parameters == {"B": 1, "N": 512, "k": 512, "kind": "scores", "lengths": "full"}


@pytest.mark.parametrize("kind", cases.KINDS)
def test_a_draw_is_repeatable_and_dead_columns_are_minus_infinity(kind: str) -> None:
    """Same label and seed, same bits; another seed, other bits where the kind is drawn at all."""
    row = cases.make_row(3, 64, kind, "mixed", 8)
    one, two = cases.synthesise(row, 5), cases.synthesise(row, 5)
    assert same_bits(one.inputs["scores"], two.inputs["scores"])
    dead = torch.arange(64) >= one.inputs["lengths"][:, None]
    assert bool((one.inputs["scores"][dead] == -float("inf")).all())
    assert one.facts["lengths"] == one.inputs["lengths"].tolist()


def test_kinds_are_what_their_names_say() -> None:
    """Ties, two values, few finite scores, NaN and both zeros are there."""
    drawn = {kind: cases.synthesise(cases.make_row(1, 4096, kind), 1).inputs["scores"][0] for kind in cases.KINDS}
    assert drawn["equal"].unique().numel() == 1
    assert drawn["two"].unique().numel() == 2
    assert int((drawn["two"] > 1).sum()) < 512
    assert 2 < drawn["flat"].unique().numel() <= 64
    assert int(drawn["infinite"].isfinite().sum()) < 512
    assert bool(drawn["nan"].isnan().any())
    assert bool((drawn["zeros"].signbit() & (drawn["zeros"] == 0)).any())
    assert bool((drawn["scores"] >= 0).all())
    assert bool((drawn["signed"] < 0).any())


def test_guards_are_nan_behind_every_length() -> None:
    """Columns behind the lengths hold NaN, old ones and new ones; live scores stay."""
    call = cases.synthesise(cases.make_row(8, 40, "scores", "mixed", 8), 1)
    guarded = cases.with_guard_rows(call, 5)
    live = torch.arange(45) < guarded.inputs["lengths"][:, None]
    assert guarded.inputs["scores"].shape == (8, 45)
    assert bool(guarded.inputs["scores"][~live].isnan().all())
    assert torch.equal(guarded.inputs["scores"][:, :40][live[:, :40]], call.inputs["scores"][live[:, :40]])


@pytest.mark.parametrize("which", ["shorter", "longer"])
@pytest.mark.parametrize("from_source", [False, True])
def test_changed_contents_fit_and_differ(which: str, from_source: bool) -> None:
    """Same shapes, other lengths, NaN behind them; a source's scores are reused."""
    call = cases.with_guard_rows(cases.synthesise(cases.make_row(3, 40, "scores", "full", 8), 1), 10)
    new = cases.changed(call, which, 2, call if from_source else None)
    assert new["scores"].shape == call.inputs["scores"].shape
    sign = 1 if which == "longer" else -1
    assert bool((sign * (new["lengths"] - call.inputs["lengths"]) > 0).all())
    live = torch.arange(50) < new["lengths"][:, None]
    assert bool(new["scores"][~live].isnan().all()) and not bool(new["scores"][live].isnan().any())
    if from_source:
        assert set(new["scores"][live].tolist()) <= set(call.inputs["scores"][:, :40].flatten().tolist())


def test_a_source_without_live_scores_gives_zeros() -> None:
    """An empty call has nothing to reuse."""
    empty = cases.make_call(torch.ones(1, 4), (0,), 2)
    assert cases.changed(cases.with_guard_rows(empty, 4), "longer", 1, empty)["scores"][0, 0] == 0


def test_sets_and_shuffles_keep_the_geometry() -> None:
    """Timing sets differ in their scores only; a shuffle has the same live scores in all."""
    row = cases.make_row(2, 40, "scores", "mixed", 8)
    sets = cases.make_sets(row, 2, 1, "cpu")
    assert not torch.equal(sets[0].inputs["scores"], sets[1].inputs["scores"])
    assert torch.equal(sets[0].inputs["lengths"], sets[1].inputs["lengths"])
    moved = cases.shuffled(sets[0], 3)["scores"]
    assert not torch.equal(moved, sets[0].inputs["scores"])
    assert sorted(moved.flatten().tolist()) == sorted(sets[0].inputs["scores"].flatten().tolist())


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: cases.make_row(1, 8, "odd"), "kind is 'odd'; allowed: 'scores', 'signed'"),
        (lambda: cases.make_row(0, 8), r"B, N and k is \(0, 8, 512\); allowed: 1 or more"),
        (lambda: cases.make_row(1, 8, live="long"), "lengths is 'long'; allowed: 'full', 'mixed'"),
        (
            lambda: cases.changed(cases.synthesise(cases.make_row(1, 8), 1), "longer", 1),
            "which is 'longer'; allowed: 'shorter', since every row is as long as the 8 columns",
        ),
        (
            lambda: cases.changed(cases.synthesise(cases.make_row(1, 8), 1), "wider", 1),
            "which is 'wider'; allowed: 'shorter', 'longer'",
        ),
    ],
)
def test_refusals_name_the_field(action, words: str) -> None:
    """Unknown names and impossible changes are refused with what is allowed."""
    with pytest.raises(ParameterError, match=words):
        action()
