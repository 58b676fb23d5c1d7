"""Words around a figure stand where they fit: title and note from the top, foot at the bottom, no ornaments."""

from __future__ import annotations

from kda_lab.report import style
from kda_lab.report.frame import undress, write_around


def test_words_stand_from_top_and_bottom() -> None:
    """Lines of the title above the note, the foot lowest; dollars are no mathematics."""
    picture = style.new_picture(6, 3, "a title")
    write_around(picture, ["a title", "of two lines"], ["a foot of $5"], "what marks mean")
    at = {text.get_text(): text.get_position()[1] for text in picture.texts}
    assert at["a title"] > at["of two lines"] > at["what marks mean"] > 0.5 > at["a foot of $5"]
    assert not any(text.get_parse_math() for text in picture.texts)


def test_no_note_writes_nothing() -> None:
    """Without a note two texts stand."""
    picture = style.new_picture(6, 3, "a title")
    write_around(picture, ["a title"], ["a foot"])
    assert [text.get_text() for text in picture.texts] == ["a title", "a foot"]


def test_axes_lose_their_ornaments() -> None:
    """Spines above and on the right go, the others stay."""
    axes = style.new_picture(6, 3, "").add_axes((0.1, 0.1, 0.8, 0.8))
    undress(axes)
    assert [side for side in axes.spines if axes.spines[side].get_visible()] == ["left", "bottom"]
