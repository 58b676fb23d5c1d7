"""Layouts: selections, scattered pages, holes and stale tokens, within the extents of the buffers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_paged_decode import layouts
from kda_lab.ops.qsa_paged_decode.layouts import BLOCK, DRAFT_WIDTH, NEWER, PAGE, TARGET_WIDTH, Layout


def drawn(counts: list[int], width: int = TARGET_WIDTH, owners: list[int] | None = None, seed: int = 0) -> Layout:
    owners = list(range(len(counts))) if owners is None else owners
    room = layouts.room_for(counts, owners, width)
    return layouts.draw(counts, owners, room, torch.Generator().manual_seed(seed))


@settings(max_examples=20)
@given(
    counts=st.lists(st.integers(0, 2055), min_size=1, max_size=4),
    draft=st.booleans(),
    seed=st.integers(0, 9),
)
def test_a_layout_keeps_its_promises(counts: list[int], draft: bool, seed: int) -> None:
    """Counts are met, tokens of a row are distinct and below its end, slots of different rows are distinct pages."""
    width = DRAFT_WIDTH if draft else TARGET_WIDTH
    counts = [min(n, width) for n in counts]
    layout = drawn(counts, width, seed=seed)
    valid = (layout.tokens >= 0) & (layout.tokens < layout.lengths[:, None])
    assert valid.sum(1).tolist() == counts == [len(c) for c in layout.columns]
    for b, columns in enumerate(layout.columns):
        tokens = layout.tokens[b, columns].long()
        assert len(tokens.unique()) == len(tokens)
        assert torch.equal(layout.req_to_slot[layout.requests[b].long(), tokens].long(), layout.slots[b])
    pages = [set((slots // PAGE).tolist()) for slots in layout.slots]
    assert len(set().union(*pages)) == sum(map(len, pages))
    assert len(layout.used) == sum(counts)


def test_target_rows_are_blocks_in_no_order_then_the_tail() -> None:
    """A target row names whole blocks of four tokens, not sorted, then the incomplete last block, all columns first."""
    layout = drawn([203])
    columns, tokens = layout.columns[0], layout.tokens[0, :200].view(-1, BLOCK)
    assert columns.tolist() == list(range(203))
    assert (tokens % BLOCK).tolist() == [[0, 1, 2, 3]] * 50
    assert tokens[:, 0].tolist() != tokens[:, 0].sort().values.tolist()
    end = int(layout.lengths[0])
    assert layout.tokens[0, 200:203].tolist() == [end - 3, end - 2, end - 1]


def test_draft_rows_have_holes_before_their_newer_tokens() -> None:
    """The newest tokens of a draft row stand in the last four columns, behind a run of columns that are not valid."""
    layout = drawn([6, 72, 9], DRAFT_WIDTH)
    assert layout.columns[1].tolist() == [*range(70), 2051, 2052]
    assert layout.tokens[1, 2051:].tolist()[:2] == [int(layout.lengths[1]) - 2, int(layout.lengths[1]) - 1]
    assert [int((c >= TARGET_WIDTH).sum()) for c in layout.columns] == [1, 2, 3]


def test_full_draft_rows_use_every_column() -> None:
    """2055 valid tokens fill all columns, four of them newer."""
    assert drawn([DRAFT_WIDTH], DRAFT_WIDTH).columns[0].tolist() == list(range(DRAFT_WIDTH))
    assert layouts.newer_tokens(DRAFT_WIDTH, 0) == NEWER
    assert layouts.newer_tokens(2, 3) == 2


def test_stale_tokens_lie_behind_the_end() -> None:
    """Two filling columns name tokens from the row's end on; the table sends them to a page that nobody owns."""
    layout = drawn([5])
    stale = layout.tokens[0][layout.tokens[0] >= layout.lengths[0]].long()
    assert sorted(stale.tolist()) == [int(layout.lengths[0]), int(layout.lengths[0]) + 1]
    slots = layout.req_to_slot[layout.requests[0].long(), stale].long()
    assert not set((slots // PAGE).tolist()) & set((layout.slots[0] // PAGE).tolist())


def test_no_row_has_the_request_of_its_own_number() -> None:
    """A kernel that takes the row for the request is wrong on every row."""
    for seed in range(8):
        layout = drawn([3, 4, 5], seed=seed)
        assert (layout.requests != torch.arange(3)).all()
        assert len(set(layout.requests.tolist())) == 3


def test_rows_of_one_request_share_its_pages() -> None:
    """Verify rows of one request select their whole prefix, each one token longer than the row before."""
    layout = drawn([64, 65, 66], owners=[0, 0, 0])
    assert layout.lengths.tolist() == [64, 65, 66]
    assert len(set(layout.requests.tolist())) == 1
    assert torch.isin(layout.slots[0], layout.slots[2]).all()
    assert len(layout.used) == 66


def test_pages_are_scattered() -> None:
    """A request's pages do not follow one another in the pool."""
    layout = drawn([1200])
    starts = layout.req_to_slot[layout.requests[0].long(), : 18 * PAGE : PAGE]
    assert (starts % PAGE == 0).all()
    assert (starts.diff() != PAGE).any()


def test_contexts_shrink_to_what_is_selected_where_pages_are_few() -> None:
    """A pool without room to spare holds the selected tokens alone."""
    counts, owners = [100, 60], [0, 1]
    assert layouts.pages_needed(counts, owners) == 3
    room = layouts.Room(TARGET_WIDTH, (4, 200), 4 * PAGE)
    layout = layouts.draw(counts, owners, room, torch.Generator().manual_seed(1))
    assert layout.lengths.tolist() == counts


def test_rows_that_do_not_fit_are_refused() -> None:
    """Too few pages for the contexts: refused with both numbers and the way out."""
    room = layouts.Room(TARGET_WIDTH, (4, 200), 3 * PAGE)
    with pytest.raises(
        ParameterError,
        match=r"qsa\.paged_decode: lengths is 3 pages, 100 tokens, 100 columns; allowed: at most 2 pages.*with_guard_rows",
    ):
        layouts.draw([100, 60], [0, 1], room, torch.Generator())


def test_holes_move_columns_and_nothing_else() -> None:
    """The draft form of a layout has the same tokens in the same order, the last of each row in the last columns."""
    layout = drawn([10, 0, 3])
    holes = layouts.with_holes(layout)
    assert holes.tokens.shape == (3, DRAFT_WIDTH)
    assert [len(c) for c in holes.columns] == [10, 0, 3]
    for b in range(3):
        assert torch.equal(holes.tokens[b, holes.columns[b]], layout.tokens[b, layout.columns[b]])
    assert holes.columns[0].tolist() == [*range(9), 2051]
