"""The selection picture: its strips are the selected blocks, and it is the same for the same rows."""

from __future__ import annotations

import pytest
import torch

from kda_lab.captures.qsa_blocks import AttendedBlocks
from kda_lab.notebook.selection_figure import runs, selection_figure
from kda_lab.report.style import svg_text


def row(layer: int, blocks: list[int], position: int = 39) -> AttendedBlocks:
    """A row at position 39 of a text: ten blocks lie before it."""
    return AttendedBlocks(position, layer, 4 * len(blocks), torch.tensor(blocks), 3.25)


def test_neighbouring_blocks_are_one_strip() -> None:
    """Stretches are in tokens: first and count."""
    assert runs(torch.tensor([0, 1, 3, 5, 6, 7])) == [(0, 8), (12, 4), (20, 12)]
    assert runs(torch.tensor([], dtype=torch.int64)) == []


def test_the_title_states_share_and_overlap() -> None:
    """Four of ten blocks; three of the four in both layers."""
    picture = selection_figure([row(5, [0, 1, 2, 9]), row(11, [0, 1, 2, 8])])
    assert picture.title == (
        "Each row attends to 40% of the blocks before it; layers 5 and 11 have 75% of them in common."
    )
    two = selection_figure([row(5, [0]), row(5, [0, 1])])
    assert two.title == "Each row attends to 10% to 20% of the blocks before it."


def test_each_row_is_a_strip_with_its_numbers_and_the_bytes_are_the_same() -> None:
    """One strip a row in its layer's panel; labels give keys and effective keys."""
    rows = [row(5, [0, 1, 3]), row(5, [2], position=38), row(11, [4])]
    picture = selection_figure(rows)
    assert [len(axes.collections) for axes in picture.axes] == [2, 1]
    text = svg_text(picture)
    assert "12 keys, 3.25 effective" in text and "query 38" in text and "layer 11" in text
    assert text == svg_text(selection_figure(rows))


def test_a_picture_of_nothing_is_an_error() -> None:
    """There is no empty picture that could be mistaken for a result."""
    with pytest.raises(ValueError, match="empty"):
        selection_figure([])
