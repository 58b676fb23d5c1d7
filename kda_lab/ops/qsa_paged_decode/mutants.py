"""Deliberately wrong paged decodes, one mistake each: what the gates must reject before they count.

Every mutant computes in FP32 on any device and would be right without its mistake, so that a check
which rejects it sees the mistake and nothing else. `applies` reads the selection on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kda_lab.ops.protocol import Call, Launcher, Mutant
from kda_lab.ops.qsa.wrong_decode import (
    MMA_ROWS,
    TILE,
    Decode,
    Part,
    heads_modulo,
    merge_first_only,
    merge_without_rescale,
    right_merge,
)
from kda_lab.ops.qsa_paged_decode import selections as s
from kda_lab.ops.qsa_paged_decode.cases import new_counts
from kda_lab.ops.qsa_paged_decode.layouts import TARGET_WIDTH
from kda_lab.ops.qsa_paged_decode.oracle import Geometry, geometry
from kda_lab.ops.wrong import all_zero, plain, stateful, untouched


@dataclass(frozen=True)
class _Decode(Decode):
    """The op with replaceable steps; the defaults are right."""

    pools = ("k_pool", "v_pool")
    slots: Callable[[Call], Sequence[torch.Tensor]] = s.right
    """For each row the slots it reads, int64."""

    def selected(self, call: Call) -> tuple[Geometry, Iterator[torch.Tensor | None]]:
        return geometry(call), (found if len(found) else None for found in self.slots(call))


def _merge_all_but_last(parts: list[Part]) -> torch.Tensor:
    return right_merge(parts[:-1] or parts)


def _slots_baked(call: Call) -> Launcher:
    baked = s.right(call)
    return lambda: _Decode(slots=lambda now: baked)(call)


def _tiles_baked(call: Call) -> Launcher:
    most = [-(-count // TILE) * TILE for count in geometry(call).counts]
    return lambda: _Decode(slots=lambda now: [f[:n] for f, n in zip(s.right(now), most, strict=True)])(call)


def _some(test: Callable[[int], bool]) -> Callable[[Call], bool]:
    return lambda call: any(test(count) for count in geometry(call).counts)


def _differs(slots: Callable[[Call], Sequence[torch.Tensor]]) -> Callable[[Call], bool]:
    """Whether a wrong selection is another one at all on a call."""
    return lambda call: any(not torch.equal(a, b) for a, b in zip(slots(call), s.right(call), strict=True))


def _many_kv_heads(call: Call) -> bool:
    return geometry(call).HKV > 1


def _partial_tile(call: Call) -> bool:
    return geometry(call).group < MMA_ROWS


def _gains_tiles(call: Call) -> bool:
    old = geometry(call).counts
    return any(-(-new // TILE) > -(-was // TILE) for new, was in zip(new_counts(call, "longer"), old, strict=True))


def _selected(name: str, what: str, slots: Callable[[Call], Sequence[torch.Tensor]], why_not: str) -> Mutant:
    return plain(name, what, _Decode(slots=slots), _differs(slots), why_not)


_SOFTMAX = (_some(lambda n: n > 1), "no row has two valid tokens, so every weight is 1 whatever the scores are")
_SPLIT = (_some(lambda n: n > TILE), f"no row has more than one tile of {TILE} valid tokens, so nothing is split")
_LIVE = (_some(lambda n: n > 0), "all rows are empty, so the right output is zero")
_EMPTY = "all rows are empty, so no slot is read"

MUTANTS: tuple[Mutant, ...] = (
    plain("all_zero", "Writes zeros.", all_zero, *_LIVE),
    plain("untouched", "Writes nothing.", untouched),
    _selected("request_ignored", "Row b reads row b of the slot table.", s.request_ignored, _EMPTY),
    _selected("token_as_slot", "A token's number is taken for its slot.", s.token_as_slot, _EMPTY),
    _selected(
        "pages_adjacent",
        "A request's pages are taken to follow its first one.",
        s.pages_adjacent,
        "every valid token lies in its request's first page, or the pages happen to be adjacent",
    ),
    _selected(
        "offset_wraps",
        "A slot's offset loses its highest bit, as one of 32 bits does from 2^31 elements on.",
        s.offset_wraps,
        "every valid token lies in slot 0, or all rows are empty",
    ),
    _selected(
        "hole_as_token_zero",
        "A hole counts as token 0 of its request.",
        s.hole_as_token_zero,
        "no row has a hole",
    ),
    _selected(
        "valid_first",
        "As many leading columns are read as there are valid ones, holes left out.",
        s.valid_first,
        "in every row the valid columns come first",
    ),
    _selected(
        "length_ignored",
        "A token behind its row's end counts too.",
        s.length_ignored,
        "no row names a token behind its end",
    ),
    _selected(
        "draft_width_cut",
        f"Columns behind the first {TARGET_WIDTH} are not read.",
        s.target_width_only,
        f"no valid column lies behind the first {TARGET_WIDTH}",
    ),
    _selected("last_column_dropped", "The last valid column of each row is left out.", s.last_dropped, _EMPTY),
    _selected(
        "padding_as_empty",
        "A graph-padding row of one valid token is taken for an empty one.",
        s.padding_as_empty,
        "no row has one valid token",
    ),
    plain(
        "head_map",
        "Query head h reads key head h % HKV instead of h // (HQ // HKV).",
        _Decode(heads=heads_modulo),
        lambda call: _many_kv_heads(call) and _LIVE[0](call),
        "there is one key head, so both maps agree, or all rows are empty",
    ),
    plain(
        "sixteen_heads",
        "All 16 rows of the tile are stored, four of them behind the group's own.",
        _Decode().sixteen_heads,
        _partial_tile,
        "the group fills the tile, so there is no padding row to store",
    ),
    plain("scale_omitted", "Scores are not scaled.", _Decode(factor=lambda scale: 1.0), *_SOFTMAX),
    plain("scale_twice", "Scores are scaled twice.", _Decode(factor=lambda scale: scale * scale), *_SOFTMAX),
    plain("base_two", "exp2 without log2(e).", _Decode(factor=lambda scale: scale * math.log(2)), *_SOFTMAX),
    plain("merge_unscaled", "Splits are added without their maxima.", _Decode(merge=merge_without_rescale), *_SPLIT),
    plain("merge_first", "Only the first split reaches the output.", _Decode(merge=merge_first_only), *_SPLIT),
    plain("last_split_dropped", "The last split is not merged.", _Decode(merge=_merge_all_but_last), *_SPLIT),
    stateful(
        "counter_kept",
        "The arrival counter is never reset, so only the first launch merges.",
        _Decode().counter_kept,
        *_LIVE,
    ),
    stateful(
        "slots_baked", "Slots are looked up when the call is bound, not when it is launched.", _slots_baked, *_LIVE
    ),
    stateful(
        "tiles_baked",
        "The number of tiles is read when the call is bound, so longer rows are cut.",
        _tiles_baked,
        _gains_tiles,
        "no row can gain a tile within its columns and the pool",
    ),
    plain(
        "empty_row_nan",
        "A row without valid tokens divides by its sum of zero.",
        _Decode(empty=math.nan),
        _some(lambda n: n == 0),
        "no row is empty",
    ),
    plain("half_width_scores", "Scores use the first half of D only.", _Decode(width=slice(0, 128)), *_SOFTMAX),
    plain("half_width_output", "The second half of D is not written.", _Decode().half_output),
    plain("keys_as_values", "K and V are exchanged.", _Decode(swapped=True), *_LIVE),
)
