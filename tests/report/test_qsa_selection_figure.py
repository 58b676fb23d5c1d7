"""The selection picture says what was chosen, marks the tail, and refuses to draw nothing."""

from __future__ import annotations

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.report.qsa_selection_figure import SelectedRow, selection, selection_title, stretches
from kda_lab.report.style import VERMILLION, svg_text


def row(length: int, blocks: list[int]) -> SelectedRow:
    """A row that chose `blocks` and its tail; block n scores n."""
    tokens = [4 * b + i for b in blocks for i in range(4)] + list(range(length // 4 * 4, length))
    scores = torch.arange(length // 4, dtype=torch.float32)
    return SelectedRow(f"{length} tokens", length, scores, torch.tensor(tokens, dtype=torch.int64))


def test_blocks_and_tail_are_told_apart() -> None:
    """Complete blocks come from the tokens, ascending and once; the incomplete one is the tail."""
    found = row(22, [4, 0, 2])
    assert found.blocks.tolist() == [0, 2, 4]
    assert found.tail == [20, 21]
    assert row(8, [1]).tail == []


def test_neighbouring_blocks_are_one_stretch() -> None:
    """Stretches are in tokens: first and count."""
    assert stretches(torch.tensor([0, 1, 3, 5, 6]), 4) == [(0, 8), (12, 4), (20, 8)]
    assert stretches(torch.tensor([], dtype=torch.int64), 4) == []


def test_the_title_states_counts_and_shares() -> None:
    """Of one row and of several."""
    assert selection_title([row(22, [0, 1])]) == (
        "Each row attends to 10 tokens, 45% of its context; the incomplete last block always among them"
    )
    assert selection_title([row(22, [0, 1]), row(8, [0, 1])]).startswith(
        "Each row attends to 8 to 10 tokens, 45% to 100% of its context"
    )


def test_each_row_shows_scores_choice_and_end() -> None:
    """One heat strip a row; the words count blocks and tail; the tail's cells have the tail's colour."""
    rows = [row(22, [0, 2]), row(8, [1])]
    picture = selection(rows, torch.tensor([3] * 10 + [7] * 12), foot="CPU · synthetic")
    whole, last, _ = picture.axes
    assert [tuple(image.get_array().shape) for image in whole.images] == [(1, 5), (1, 2)]
    text = svg_text(picture)
    for words in ("2 of 5 blocks, tail of 2", "1 of 2 blocks, tail of 0", "topic of the text", "CPU · synthetic"):
        assert words in text
    colours = [strip.get_facecolor()[0].tolist() for strip in last.collections]
    tail = [0xD5 / 255, 0x5E / 255, 0.0, 1.0]
    assert VERMILLION == "#D55E00"
    assert sum(colour == pytest.approx(tail) for colour in colours) == 2


def test_a_row_without_a_complete_block_is_drawn_beside_others() -> None:
    """Three tokens are a tail alone."""
    picture = selection([row(22, [0, 1, 2, 3, 4]), row(3, [])])
    assert "0 of 0 blocks, tail of 3" in svg_text(picture)
    assert len(picture.axes[0].images) == 1


def test_the_same_rows_draw_the_same_bytes() -> None:
    """SVG text of two drawings is equal."""
    assert svg_text(selection([row(22, [0])])) == svg_text(selection([row(22, [0])]))


def test_nothing_to_draw_is_refused() -> None:
    """The words say what is missing."""
    with pytest.raises(ParameterError, match="rows is 1 rows without a complete block; allowed: at least one"):
        selection([row(3, [])])
