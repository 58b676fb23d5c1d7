"""The description of a recorded row: its blocks, its keys and how many of them count."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kda_lab.captures.qsa_blocks import attended_blocks
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import CaptureError

COMMITTED = Path(__file__).parents[2] / "data" / "captures" / "qsa.packed_decode"


@pytest.fixture(scope="module")
def committed() -> CaptureSet:
    """The set in data/captures."""
    return CaptureSet.open(COMMITTED)


def test_saturated_rows_attend_to_512_blocks_and_the_incomplete_one(committed: CaptureSet) -> None:
    """Rows first, then layers; the incomplete block holds the query's own position."""
    found = attended_blocks(committed, "tp1-q4-saturated")
    assert [(r.keys, r.layer) for r in found] == [(2048 + i, layer) for i in range(4) for layer in (5, 11)]
    for row in found:
        tail = row.keys - 2048
        assert len(row.blocks) == 512 + (tail > 0)
        assert tail == 0 or row.blocks[-1] == row.position // 4
        assert 1 < row.effective_keys < row.keys


def test_a_rank_sees_its_own_layer_as_tp1_does(committed: CaptureSet) -> None:
    """The same blocks, whichever topology is asked."""
    whole = [row for row in attended_blocks(committed, "tp1-q4-saturated") if row.layer == 11]
    half = attended_blocks(committed, "tp2r1-q4-saturated")
    assert all(torch.equal(a.blocks, b.blocks) for a, b in zip(whole, half, strict=True))


def test_short_rows_attend_to_every_block_before_them(committed: CaptureSet) -> None:
    """A row of length n has blocks 0 to (n-1)//4."""
    for row in attended_blocks(committed, "tp2r0-q3"):
        assert row.blocks.tolist() == list(range((row.keys - 1) // 4 + 1)) and row.position == row.keys - 1


def test_a_capture_that_is_not_gathered_is_refused(small_set: Path) -> None:
    """Only sets of the QSA recorder can be described."""
    captures = CaptureSet.open(small_set)
    with pytest.raises(CaptureError, match="one: tensor is 'k'; allowed: x, alias, rows"):
        attended_blocks(captures, "one")


def test_a_capture_of_other_layers_is_refused(committed: CaptureSet) -> None:
    """The pool's layout is known for layers 5 and 11 only."""
    entry = committed.entry("tp2r0-q1")
    other = entry.model_copy(update={"source": entry.source.model_copy(update={"layers": (17,)})})
    changed = CaptureSet(committed.path, committed.manifest.model_copy(update={"captures": (other,)}))
    with pytest.raises(CaptureError, match=r"tp2r0-q1: layers is \(17,\); allowed: some of \(5, 11\), gathered"):
        attended_blocks(changed, "tp2r0-q1")
