"""The multiset difference that every check takes, and the tests it proposes."""

from __future__ import annotations

from kda_lab.audit.comparison import CONFIRM, Item, lost


def item(key: str, line: int = 1) -> Item:
    """An item of one category."""
    return Item("lost guard", key, f"{key} is gone", line)


def test_lost_counts() -> None:
    """Twice in the source and once in the export: one is lost, the later one."""
    assert lost([item("a", 1), item("a", 2), item("b", 3)], [item("a", 9)]) == [item("a", 2), item("b", 3)]


def test_nothing_is_lost_by_more() -> None:
    """The export may have more, in any order."""
    assert lost([item("a"), item("b")], [item("c"), item("b"), item("a")]) == []


def test_categories_are_apart() -> None:
    """The same key in another category is another thing."""
    other = Item("lost mask", "a", "", 1)
    assert lost([item("a")], [other]) == [item("a")]


def test_every_test_is_a_sentence() -> None:
    """Each proposed test ends in a full stop."""
    assert all(text.endswith(".") for text in CONFIRM.values())
