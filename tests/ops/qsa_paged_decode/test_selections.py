"""Wrong selections: each is the mistake it names, stays inside its tables, and is right where it does not apply."""

from __future__ import annotations

import pytest
import torch

from kda_lab.ops.qsa_paged_decode import cases, oracle, selections

HOLES = cases.drawn("wrong", (12, 1), (72, 6), "draft", 0)
PLAIN = cases.drawn("plain", (12, 1), (20, 9), "short", 0)


def counts(found: selections.Slots) -> list[int]:
    return [len(slots) for slots in found]


def test_right_is_the_oracle_s() -> None:
    """The right selection is that of the geometry."""
    assert all(map(torch.equal, selections.right(HOLES), oracle.geometry(HOLES).slots))


def test_a_hole_becomes_token_zero() -> None:
    """All columns count but the two stale ones; the holes name token 0's slot."""
    found = selections.hole_as_token_zero(HOLES)
    assert counts(found) == [2053, 2053]
    zero = HOLES.inputs["req_to_slot"][HOLES.inputs["requests"][0].long(), 0]
    assert int((found[0] == zero).sum()) >= 2053 - 72


def test_leading_columns_lack_the_newer_tokens() -> None:
    """72 leading columns hold 71 frozen tokens, 6 hold 4; a row without holes loses nothing."""
    assert counts(selections.valid_first(HOLES)) == [71, 4]
    assert counts(selections.valid_first(PLAIN)) == [20, 9]


def test_the_draft_columns_are_cut() -> None:
    """The last four columns are not read: one newer token of the first row, two of the second."""
    assert [a - b for a, b in zip((72, 6), counts(selections.target_width_only(HOLES)), strict=True)] == [1, 2]


def test_stale_tokens_count() -> None:
    """Two tokens behind the end of each row count when the length is ignored."""
    assert counts(selections.length_ignored(PLAIN)) == [22, 11]


def test_other_wrong_slots_keep_the_counts() -> None:
    """A wrong request, page or offset changes where a row reads, not how much."""
    for wrong in (
        selections.request_ignored,
        selections.token_as_slot,
        selections.pages_adjacent,
        selections.offset_wraps,
    ):
        found = wrong(HOLES)
        assert counts(found) == [72, 6]
        assert max(int(s.max()) for s in found) < HOLES.inputs["k_pool"].shape[0]
        assert any(not torch.equal(a, b) for a, b in zip(found, selections.right(HOLES), strict=True))


def test_offsets_lose_the_highest_bit_in_use() -> None:
    """The largest slot wraps below the largest power of two that any slot reaches; small slots stay."""
    right, found = (torch.cat(f(HOLES)) for f in (selections.right, selections.offset_wraps))
    edge = 1 << (int(right.max()).bit_length() - 1)
    assert torch.equal(found, right % edge)


@pytest.mark.parametrize(("counts_given", "left"), [((1, 5), [0, 5]), ((4, 0), [4, 0])])
def test_padding_rows_become_empty(counts_given: tuple[int, ...], left: list[int]) -> None:
    """Exactly the rows of one valid token lose it."""
    assert counts(selections.padding_as_empty(cases.drawn("pad", (12, 1), counts_given, "short", 0))) == left


def test_the_last_column_is_dropped() -> None:
    """Each row lacks the slot of its last valid column; an empty row stays empty."""
    call = cases.drawn("last", (12, 1), (5, 0), "short", 0)
    found = selections.last_dropped(call)
    assert torch.equal(found[0], selections.right(call)[0][:-1])
    assert len(found[1]) == 0
