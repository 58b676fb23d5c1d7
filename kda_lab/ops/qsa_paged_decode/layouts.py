"""Where the tokens of a call lie: selections, paged slot tables and the order of columns, drawn on the host.

A request's context is cut in pages of 64 tokens that lie scattered over the pool. A row of the target model (2051
columns) selects blocks of 4 tokens in no order and its incomplete tail, and -1 fills up. A draft row (2055 columns)
keeps a frozen selection and has up to 4 newer tokens in its last 4 columns, so that holes lie between valid columns.
Two of the filling columns name a token behind the row's own end, which is not valid either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.qsa.geometry import DRAFT_STEPS as NEWER
from kda_lab.ops.qsa.geometry import DRAFT_WIDTH, TARGET_WIDTH
from kda_lab.ops.qsa.geometry import PAGE_TOKENS as PAGE
from kda_lab.ops.qsa.geometry import RATIO as BLOCK

ROOM = "qsa.paged_decode"
MAX_CONTEXT = 2688
"""Columns of the slot table: the longest context of a synthetic request, 42 pages."""
STALE = 2
"""Columns of a row that name tokens behind its end, where there is room for them."""


@dataclass(frozen=True)
class Layout:
    """Index tensors of one call, int32 on the CPU, and where its valid columns are."""

    tokens: torch.Tensor
    """[B, W]"""
    lengths: torch.Tensor
    """[B] tokens of each row's sequence."""
    requests: torch.Tensor
    """[B] row of the slot table."""
    req_to_slot: torch.Tensor
    """[R, L]; columns behind a request's context name slots of a page that belongs to nobody."""
    columns: tuple[torch.Tensor, ...]
    """For each row its valid columns, int64, ascending."""
    slots: tuple[torch.Tensor, ...]
    """For each row the slots of those columns, int64."""

    @property
    def used(self) -> torch.Tensor:
        """The distinct slots that any row names, int64, ascending."""
        return torch.cat(self.slots).unique()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The inputs by name."""
        return {n: getattr(self, n) for n in ("tokens", "lengths", "requests", "req_to_slot")}


@dataclass(frozen=True)
class Room:
    """The extents that a layout must keep: those of the buffers it is put into."""

    width: int
    """Columns of `tokens`."""
    table: tuple[int, int]
    """Shape of `req_to_slot`."""
    slots: int
    """Rows of the pool."""


def room_for(counts: Sequence[int], owners: Sequence[int], width: int, spread: bool = True) -> Room:
    """The buffers that a fresh call of these rows gets: its pages, two requests and two pages to spare."""
    contexts = _contexts(counts, owners, spread)
    return Room(width, (max(owners) + 3, MAX_CONTEXT), (_needed(contexts, owners) + 2) * PAGE)


def pages_needed(counts: Sequence[int], owners: Sequence[int]) -> int:
    """The least pages that rows with these counts of valid columns can live on, one page that is nobody's apart."""
    return _needed(_contexts(counts, owners, spread=False), owners)


def draw(
    counts: Sequence[int], owners: Sequence[int], room: Room, generator: torch.Generator, spread: bool = True
) -> Layout:
    """A layout with `counts[b]` valid columns in row b.

    Args:
        counts: valid columns of each row, 0 to the room's width.
        owners: for each row the number of its request; rows of one request share its pages.
        room: what it must fit in.
        generator: on the CPU.
        spread: where there is room, requests have a quarter more tokens than their rows select; else none.

    Raises:
        ParameterError: the contexts need more pages than the pool has beside one that stays free.
    """
    available = room.slots // PAGE - 1
    contexts = _contexts(counts, owners, spread)
    if _needed(contexts, owners) > available or max(contexts) > room.table[1]:
        contexts = _contexts(counts, owners, spread=False)
    longest, needed = _longest(contexts, owners), _needed(contexts, owners)
    if needed > available or max(longest) > room.table[1] or max(counts) > room.width:
        given = f"{needed} pages, {max(longest)} tokens, {max(counts)} columns"
        allowed = f"at most {available} pages, {room.table[1]} tokens, {room.width} columns"
        raise ParameterError(ROOM, [Reason("lengths", given, allowed, "Use with_guard_rows() to make room.")])
    table, ids = _table(longest, room, generator)
    rows = [_row(n, context, room, b, generator) for b, (n, context) in enumerate(zip(counts, contexts, strict=True))]
    columns = tuple(((row >= 0) & (row < context)).nonzero()[:, 0] for row, context in zip(rows, contexts, strict=True))
    requests = ids[torch.tensor(owners)]
    slots = tuple(table[requests[b], rows[b][c]] for b, c in enumerate(columns))
    ends = torch.tensor(contexts)
    whole = (torch.stack(rows), ends, requests, table)
    tokens, lengths, requests, table = (t.to(torch.int32) for t in whole)
    return Layout(tokens, lengths, requests, table, columns, slots)


def with_holes(layout: Layout) -> Layout:
    """The same valid tokens in the draft form, 2055 columns: the last 1 to 4 of each row stand in the last columns."""
    tokens = torch.full((layout.tokens.shape[0], DRAFT_WIDTH), -1, dtype=torch.int32)
    columns = []
    for b, old in enumerate(layout.columns):
        newer = newer_tokens(len(old), b)
        frozen = torch.arange(len(old) - newer)
        columns.append(torch.cat([frozen, DRAFT_WIDTH - NEWER + torch.arange(newer)]))
        tokens[b, columns[-1]] = layout.tokens[b, old]
    return replace(layout, tokens=tokens, columns=tuple(columns))


def newer_tokens(count: int, row: int) -> int:
    """How many of a draft row's valid columns are newer tokens, in its last columns: at most 4."""
    return max(min(1 + row % NEWER, count), count - TARGET_WIDTH)


def _contexts(counts: Sequence[int], owners: Sequence[int], spread: bool) -> list[int]:
    """Tokens of each row's sequence: its count alone, or a quarter more, so that some of them are not selected.

    Rows that share a request are target-verify rows of it: each selects all of its own prefix.
    """
    shared = {owner for owner in owners if list(owners).count(owner) > 1}
    more = [0 if not spread or n == 0 or o in shared else n // 16 + 1 for n, o in zip(counts, owners, strict=True)]
    return [n + BLOCK * extra for n, extra in zip(counts, more, strict=True)]


def _longest(contexts: Sequence[int], owners: Sequence[int]) -> list[int]:
    """Tokens of each request: the longest of its rows."""
    return [max(n for n, o in zip(contexts, owners, strict=True) if o == owner) for owner in range(max(owners) + 1)]


def _needed(contexts: Sequence[int], owners: Sequence[int]) -> int:
    return sum(map(_pages, _longest(contexts, owners)))


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE)


def _table(longest: Sequence[int], room: Room, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """The slot table [R, L], and for each request its row in it, which is never its own number."""
    requests, width = room.table
    shift = 1 + int(torch.randint(requests - 1, (), generator=generator))
    ids = (torch.arange(len(longest)) + shift) % requests
    pages = torch.randperm(room.slots // PAGE, generator=generator)
    nobody, pages = pages[0], pages[1:]
    at = torch.arange(width)
    table = (nobody * PAGE + at % PAGE).repeat(requests, 1)
    for number, tokens in enumerate(longest):
        own, pages = pages[: _pages(tokens)], pages[_pages(tokens) :]
        table[ids[number], :tokens] = own[at[:tokens] // PAGE] * PAGE + at[:tokens] % PAGE
    return table, ids


def _row(count: int, context: int, room: Room, b: int, generator: torch.Generator) -> torch.Tensor:
    """[W] tokens of one row, int64, -1 and tokens behind the end among them."""
    row = torch.full((room.width,), -1)
    newer = newer_tokens(count, b) if room.width == DRAFT_WIDTH and count else 0
    frozen, captured = count - newer, context - newer
    # Whole blocks in no order, then the captured tail: as a selection is expanded.
    blocks = torch.randperm(captured // BLOCK, generator=generator)[: frozen // BLOCK]
    tail = frozen - len(blocks) * BLOCK
    chosen = (blocks[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
    row[: len(chosen)] = chosen
    row[len(chosen) : frozen] = torch.arange(captured - tail, captured)
    if newer:
        row[room.width - NEWER : room.width - NEWER + newer] = torch.arange(captured, context)
    empty = (row < 0).nonzero()[:, 0]
    stale = empty[torch.randperm(len(empty), generator=generator)[:STALE]]
    row[stale] = context + torch.arange(len(stale))
    return row
