"""The draft picture shows which columns a naive copy reads and drops, and what a compaction keeps."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.report.qsa_draft_figure import DraftRow, draft_row, draft_title
from kda_lab.report.style import svg_text

ROW = DraftRow((*range(20), *[-1] * 30, 20, 21, 22, -1), 4)


def test_a_row_knows_prefix_valid_and_newer_tokens() -> None:
    """Twenty frozen tokens, a gap, three newer ones."""
    assert ROW.prefix == 20
    assert ROW.valid == list(range(23))
    assert ROW.newer == [20, 21, 22]
    assert DraftRow((0, 1), 1).prefix == 2


def test_the_title_says_what_is_lost() -> None:
    """Columns, tokens, gap, and both faults in numbers."""
    assert draft_title(ROW) == (
        "A draft row of 54 columns holds 23 tokens with a gap of 30 columns between them: "
        "`column < count` reads 3 holes and drops the 3 newest tokens"
    )


def test_stale_and_lost_columns_are_marked() -> None:
    """Three holes are read as stale rows; each newer token stands once in the row, once struck out, once compacted."""
    picture = draft_row(ROW, foot="CPU")
    words = [text.get_text() for text in picture.axes[0].texts]
    assert words.count("stale") == 3
    assert [words.count(token) for token in ("20", "21", "22")] == [4, 4, 4]
    assert len(picture.axes[0].lines) == 3
    assert "column &lt; 23: what a naive copy takes" in svg_text(picture)


def test_only_the_ends_are_drawn() -> None:
    """Columns around the end of the prefix and at the end of the row, with a gap between."""
    words = [text.get_text() for text in draft_row(ROW).axes[0].texts]
    heads = [w for w in words[-18:] if w.isdigit()]
    assert heads == [str(c) for c in (*range(15, 26), *range(48, 54))]
    assert words.count("…") == 3


@pytest.mark.parametrize("tokens", [tuple(range(54)), (*range(50), -1, -1, -1, -1)], ids=["no hole", "no newer token"])
def test_a_row_with_nothing_to_show_is_refused(tokens: tuple[int, ...]) -> None:
    """Without a gap both ways agree."""
    with pytest.raises(ParameterError, match=r"row is \d+ valid columns, then \d newer|row is .* allowed: a hole"):
        draft_row(DraftRow(tokens, 4))
