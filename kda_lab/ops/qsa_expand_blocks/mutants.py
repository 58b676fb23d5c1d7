"""Deliberately wrong expansions, one mistake each: what the gates must reject before they count.

Every mutant works row by row in Python on the host and would be right without its mistake. A mistake that meets nothing
in a call (no hole, no tail, no partial block) does not apply there: `applies` compares the wrong rows with the right ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kda_lab.ops.protocol import Call, FunctionArm, Mutant
from kda_lab.ops.qsa_expand_blocks.oracle import ratio_of, tokens_of
from kda_lab.ops.wrong import all_zero, baked, untouched

FEW_ROWS = 512
"""Rows that a launch served which gave a program a fixed number of elements (a fault of a public kernel)."""


@dataclass(frozen=True)
class Given:
    """One row of a call."""

    blocks: list[int]
    length: int
    position: int
    ratio: int

    @property
    def tail(self) -> int:
        """First token of the incomplete group at the end."""
        return (max(self.position, -1) + 1) // self.ratio * self.ratio

    @property
    def right(self) -> list[int]:
        """What the row must hold, without padding."""
        return tokens_of(self.blocks, self.length, self.position, self.ratio)

    @property
    def width(self) -> int:
        """Columns of the output."""
        return len(self.blocks) * self.ratio + self.ratio - 1


RowFunction = Callable[[Given], list[int]]


def _tail_dropped(row: Given) -> list[int]:
    return tokens_of(row.blocks, row.length, -1, row.ratio)


def _tail_short(row: Given) -> list[int]:
    has_tail = (row.position + 1) % row.ratio and row.position < row.length
    return row.right[:-1] if has_tail else row.right


def _tail_always(row: Given) -> list[int]:
    """A complete group at the end is taken for a tail of `ratio` tokens."""
    if row.position < 0 or (row.position + 1) % row.ratio:
        return row.right
    group = range(row.position + 1 - row.ratio, row.position + 1)
    return [*row.right, *(token for token in group if token < row.length)]


def _tail_of_length(row: Given) -> list[int]:
    return tokens_of(row.blocks, row.length, row.length - 1, row.ratio)


def _tail_at_column(row: Given) -> list[int]:
    """Blocks stay in their columns, and the tail begins at ratio times the number of blocks."""
    inner = [block * row.ratio + j if block >= 0 else -1 for block in row.blocks for j in range(row.ratio)]
    inner = [token if token < row.length else -1 for token in inner]
    tail = [token for token in range(row.tail, row.position + 1) if token < row.length]
    at = sum(block >= 0 for block in row.blocks) * row.ratio
    padded = [*inner, *[-1] * (row.ratio - 1)]
    padded[at : at + len(tail)] = tail
    return padded


def _holes_kept(row: Given) -> list[int]:
    """-1 stays where it stands, and the tail is behind all columns of the blocks."""
    inner = [block * row.ratio + j if block >= 0 else -1 for block in row.blocks for j in range(row.ratio)]
    return [*(t if t < row.length else -1 for t in inner), *tokens_of([], row.length, row.position, row.ratio)]


def _beyond_length(row: Given) -> list[int]:
    return tokens_of(row.blocks, 2**31 - 1, row.position, row.ratio)


def _one_beyond(row: Given) -> list[int]:
    return tokens_of(row.blocks, row.length + 1, row.position, row.ratio)


def _without_tail_columns(row: Given) -> list[int]:
    return row.right[: len(row.blocks) * row.ratio]


def _three_of_four(row: Given) -> list[int]:
    inner = [b * row.ratio + j for b in row.blocks if b >= 0 for j in range(row.ratio - 1)]
    return [*(t for t in inner if t < row.length), *tokens_of([], row.length, row.position, row.ratio)]


def _block_as_token(row: Given) -> list[int]:
    inner = [block + j for block in row.blocks if block >= 0 for j in range(row.ratio)]
    return [*(t for t in inner if t < row.length), *tokens_of([], row.length, row.position, row.ratio)]


def _hole_as_block_0(row: Given) -> list[int]:
    return tokens_of([max(block, 0) for block in row.blocks], row.length, row.position, row.ratio)


def _narrow_products(row: Given) -> list[int]:
    """Tokens in 32 bits, so that a wild id comes back as a small token."""
    wrapped = [(b * row.ratio + 2**31) % 2**32 - 2**31 if b >= 0 else -1 for b in row.blocks]
    inner = [first + j for first in wrapped if first >= 0 for j in range(row.ratio)]
    return [*(t for t in inner if t < row.length), *tokens_of([], row.length, row.position, row.ratio)]


def _right(row: Given) -> list[int]:
    return row.right


@dataclass(frozen=True)
class _Expand:
    """The op with replaceable steps; the defaults are right."""

    row: RowFunction = _right
    padding: int = -1
    served: int = 1 << 30
    """Rows that are written at all."""

    def tokens(self, call: Call) -> list[list[int]]:
        """Rows of W tokens."""
        ratio, names = ratio_of(call), ("blocks", "lengths", "positions")
        columns = (call.inputs[name].tolist() for name in names)
        given = [Given(row, length, position, ratio) for row, length, position in zip(*columns, strict=True)]
        rows = [(self.row(row)[: row.width], row.width) for row in given[: self.served]]
        return [row + [self.padding] * (width - len(row)) for row, width in rows]

    def __call__(self, call: Call) -> None:
        rows = self.tokens(call)
        call.outputs["tokens"][: len(rows)] = torch.tensor(rows, dtype=torch.int32, device=call.device)


def _by_rows(name: str, what: str, expand: _Expand, why_not: str) -> Mutant:
    def applies(call: Call) -> bool:
        return expand.tokens(call) != _Expand().tokens(call)

    return Mutant(name, what, lambda: FunctionArm(name, expand), applies, why_not)


def _is_long(call: Call) -> bool:
    """Whether a changed length moves the valid tokens: any row with tokens to lose."""
    return bool((call.inputs["lengths"] > 1).any())


_NO_TAIL = "no row has an incomplete group at its end"
_NO_HOLE = "no -1 stands before a valid block"

MUTANTS: tuple[Mutant, ...] = (
    Mutant("all_zero", "Writes token 0 everywhere.", lambda: FunctionArm("all_zero", all_zero)),
    Mutant("untouched", "Writes nothing.", lambda: FunctionArm("untouched", untouched)),
    _by_rows("tail_dropped", "The tail is left out.", _Expand(_tail_dropped), _NO_TAIL),
    _by_rows("tail_short", "The tail ends before the current token.", _Expand(_tail_short), _NO_TAIL),
    _by_rows(
        "tail_always",
        "A row whose last group is complete gets that group as its tail too.",
        _Expand(_tail_always),
        "no row ends with a complete group",
    ),
    _by_rows(
        "tail_of_length",
        "The tail is taken at the end of the request, not at the row's position.",
        _Expand(_tail_of_length),
        "every row is the last of its request",
    ),
    _by_rows(
        "tail_at_column", "The tail begins at ratio times the number of blocks.", _Expand(_tail_at_column), _NO_HOLE
    ),
    _by_rows(
        "holes_kept", "-1 stays among the valid tokens.", _Expand(_holes_kept), "no -1 stands before a valid token"
    ),
    _by_rows("hole_as_block_0", "A -1 names block 0.", _Expand(_hole_as_block_0), "no column is empty"),
    _by_rows("beyond_length", "Tokens behind the length stay.", _Expand(_beyond_length), "no token is behind a length"),
    _by_rows("one_beyond", "The bound is <=.", _Expand(_one_beyond), "no named token equals its row's length"),
    _by_rows("tail_columns_cut", "The last ratio - 1 columns are -1.", _Expand(_without_tail_columns), "none is used"),
    _by_rows("last_of_block", "The last token of each block is left out.", _Expand(_three_of_four), "no full block"),
    _by_rows("block_as_token", "The first token of block b is b.", _Expand(_block_as_token), "only block 0 is chosen"),
    _by_rows("narrow_products", "Ids are multiplied in 32 bits.", _Expand(_narrow_products), "no product passes 2^31"),
    _by_rows("sorted", "Tokens come out ascending.", _Expand(lambda row: sorted(row.right)), "every row is ascending"),
    _by_rows("padded_with_zero", "Pads rows with token 0.", _Expand(padding=0), "every row is as full as it can be"),
    _by_rows(
        "few_rows",
        f"Rows behind the first {FEW_ROWS} are not written.",
        _Expand(served=FEW_ROWS),
        f"there are no more than {FEW_ROWS} rows",
    ),
    Mutant(
        "lengths_baked",
        "Lengths and positions are read when the call is bound, not when it is launched.",
        lambda: baked("lengths_baked", ("lengths", "positions"), _Expand()),
        _is_long,
        "no row is longer than one token",
    ),
)
