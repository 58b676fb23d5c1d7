"""Deliberately wrong compactions, one mistake each: what the gates must reject before they count.

Every mutant works row by row on the host and would be right without its mistake. Where a mistake meets nothing in a
call (no hole, one request, no tail) it does not apply: `applies` compares what it writes with what is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kda_lab.ops.protocol import Call, FunctionArm, Mutant
from kda_lab.ops.qsa.geometry import DRAFT_STEPS as STEPS
from kda_lab.ops.wrong import all_zero, baked, untouched

STALE = -1
"""A place that is counted but not written."""

Named = Callable[[list[int], int], list[int]]
"""Columns of one row and its length to the tokens that are packed, in order; STALE leaves the place as it was."""


def _valid(row: list[int], length: int) -> list[int]:
    return [token for token in row if 0 <= token < length]


def _leading_columns(row: list[int], length: int) -> list[int]:
    """As many columns from the left as there are valid ones, whatever they hold."""
    count = len(_valid(row, length))
    return [token if 0 <= token < length else STALE for token in row[:count]]


def _right_ends(counts: list[int]) -> list[int]:
    return list(itertools.accumulate(counts, initial=0))


@dataclass(frozen=True)
class _Compact:
    """The op with replaceable steps; the defaults are right."""

    named: Named = _valid
    request: Callable[[list[int], int], int] = lambda requests, b: requests[b]
    by_table: bool = True
    """Tokens go through the slot table."""
    slot: Callable[[int, int], int] = lambda slot, slots: slot
    """(slot, slots up to the highest one in the table) to the slot that is read."""
    starts: Callable[[list[int], int], list[int]] = lambda counts, width: _right_ends(counts)[:-1]
    ends: Callable[[list[int]], list[int]] = _right_ends
    swapped: bool = False
    heads: int | None = None
    """KV heads that are copied; None: all."""
    width: int | None = None
    """Elements of each head that are copied; None: all."""
    zero_tail: bool = True

    def write(self, call: Call, outputs: dict[str, torch.Tensor]) -> None:
        """Fill the output tensors of a call."""
        places, slots, counts = self._plan(call)
        pools = ("v_pool", "k_pool") if self.swapped else ("k_pool", "v_pool")
        for name, pool in zip(("packed_k", "packed_v"), pools, strict=True):
            packed = outputs[name]
            if self.zero_tail:
                packed[sum(counts) :] = 0
            rows = call.inputs[pool][torch.tensor(slots, dtype=torch.long, device=call.device)]
            at = torch.tensor(places, dtype=torch.long, device=call.device)
            packed[at, : self.heads, : self.width] = rows[:, : self.heads, : self.width]
        ends = torch.tensor(self.ends(counts), dtype=torch.int32, device=call.device)
        outputs["cu_seqlens_k"].copy_(ends)

    def _plan(self, call: Call) -> tuple[list[int], list[int], list[int]]:
        """Packed rows that are written, the slots they are copied from, and the count of each row."""
        tokens, lengths, requests = (call.inputs[name].tolist() for name in ("tokens", "lengths", "requests"))
        pool, table = call.inputs["k_pool"].shape[0], call.inputs["req_to_slot"].tolist()
        wanted = [self.named(row, length) for row, length in zip(tokens, lengths, strict=True)]
        counts = [len(row) for row in wanted]
        top = max(map(max, table)) + 1
        places, slots = [], []
        for b, start in enumerate(self.starts(counts, call.inputs["tokens"].shape[1])):
            row = table[self.request(requests, b)]
            live = [(start + i, token) for i, token in enumerate(wanted[b]) if 0 <= token < len(row)]
            places += [place for place, _ in live]
            slots += [self.slot(row[token] if self.by_table else token, top) % pool for _, token in live]
        room = call.outputs["packed_k"].shape[0]
        kept = [(place, slot) for place, slot in zip(places, slots, strict=True) if place < room]
        return [place for place, _ in kept], [slot for _, slot in kept], counts

    def __call__(self, call: Call) -> None:
        self.write(call, call.outputs)

    def differs(self, call: Call) -> bool:
        """Whether it writes anything but what is right, or leaves an element unwritten."""
        mine, right = ({n: _fresh(t) for n, t in call.outputs.items()} for _ in range(2))
        self.write(call, mine)
        _Compact().write(call, right)
        # What was not written is NaN, which is unequal to everything; so is a NaN read from an unnamed slot.
        return not all(torch.equal(mine[name], right[name]) for name in right)


def _fresh(like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, float("nan") if like.is_floating_point() else -7)


def _mutant(name: str, what: str, compact: _Compact, why_not: str) -> Mutant:
    return Mutant(name, what, lambda: FunctionArm(name, compact), compact.differs, why_not)


def _has_tokens(call: Call) -> bool:
    return bool(((call.inputs["tokens"] >= 0) & (call.inputs["tokens"] < call.inputs["lengths"][:, None])).any())


_EMPTY = "no row has a valid token"

MUTANTS: tuple[Mutant, ...] = (
    Mutant("all_zero", "Writes zeros.", lambda: FunctionArm("all_zero", all_zero), _has_tokens, _EMPTY),
    Mutant("untouched", "Writes nothing.", lambda: FunctionArm("untouched", untouched)),
    _mutant(
        "column_count",
        "Copies column c where c is below the number of valid columns, so a hole leaves a stale row in the segment.",
        _Compact(named=_leading_columns),
        "the valid columns of every row come first",
    ),
    _mutant(
        "hole_as_token_0",
        "A -1 is taken for token 0.",
        _Compact(named=lambda row, length: _valid([max(token, 0) for token in row], length)),
        "no column of a request with tokens is -1",
    ),
    _mutant(
        "length_ignored",
        "Every id that is not negative is valid.",
        _Compact(named=lambda row, length: [token for token in row if token >= 0]),
        "no id lies at or behind its row's length",
    ),
    _mutant(
        "length_less_one",
        "The bound of the length is one too low.",
        _Compact(named=lambda row, length: _valid(row, length - 1)),
        "no row names the last token of its request",
    ),
    _mutant(
        "tail_columns_cut",
        f"The last {STEPS} columns, which a draft row adds to a target row, are not looked at.",
        _Compact(named=lambda row, length: _valid(row[:-STEPS], length)),
        "the last columns hold no valid token",
    ),
    _mutant("last_row_dropped", "The last valid column is left out.", _Compact(lambda r, n: _valid(r, n)[:-1]), _EMPTY),
    _mutant(
        "reversed",
        "The rows of a segment stand in the reverse order.",
        _Compact(named=lambda row, length: _valid(row, length)[::-1]),
        "no row has two valid tokens",
    ),
    _mutant(
        "sorted",
        "The rows of a segment stand in the order of their tokens.",
        _Compact(named=lambda row, length: sorted(_valid(row, length))),
        "the tokens of every row ascend",
    ),
    _mutant(
        "request_ignored",
        "Every row goes through the slot table of request 0.",
        _Compact(request=lambda requests, b: 0),
        "every row is of request 0, or there is no token",
    ),
    _mutant(
        "row_as_request",
        "Row b goes through the slot table of request b.",
        _Compact(request=lambda requests, b: min(b, max(requests))),
        "row b is of request b, or there is no token",
    ),
    _mutant(
        "token_as_slot", "Tokens are taken for slots.", _Compact(by_table=False), "every token lies in its own slot"
    ),
    _mutant(
        "narrow_offsets",
        "Offsets wrap where a slot's offset no longer fits (32 bits past 2^31 elements), here at half of the slots in use.",
        _Compact(slot=lambda slot, slots: slot % (slots // 2) if slots > 1 else slot),
        "no named slot lies in the upper half of those in use",
    ),
    _mutant(
        "offsets_inclusive",
        "cu_seqlens_k holds the ends without the leading zero.",
        _Compact(ends=lambda counts: [*_right_ends(counts)[1:], sum(counts)]),
        _EMPTY,
    ),
    _mutant(
        "offsets_of_width",
        "Row b is packed from row b·W on instead of cu_seqlens_k[b].",
        _Compact(starts=lambda counts, width: [b * width for b in range(len(counts))]),
        "every row before the last one with tokens is full",
    ),
    _mutant("keys_as_values", "K and V are exchanged.", _Compact(swapped=True), _EMPTY),
    _mutant("first_head", "Only head 0 is copied.", _Compact(heads=1), "there is one head, or no token"),
    _mutant("half_width", "Only half of each head is copied.", _Compact(width=128), _EMPTY),
    _mutant(
        "tail_unwritten",
        "Rows behind the live end keep what they held.",
        _Compact(zero_tail=False),
        "every packed row is live",
    ),
    Mutant(
        "lengths_baked",
        "Lengths are read when the call is bound, not when it is launched.",
        lambda: baked("lengths_baked", ("lengths",), _Compact()),
        _has_tokens,
        _EMPTY,
    ),
    Mutant(
        "table_baked",
        "The slot table is read when the call is bound, not when it is launched.",
        lambda: baked("table_baked", ("req_to_slot",), _Compact()),
        lambda call: bool((call.inputs["lengths"] > 2).any()),
        "after the change no row has a token",
    ),
)
