"""Deliberately wrong packed decodes, one mistake each: what the gates must reject before they count.

Every mutant computes in FP32 on any device and would be right without its mistake, so that a check
which rejects it sees the mistake and nothing else. `applies` reads the live lengths on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kda_lab.ops.protocol import Call, Launcher, Mutant
from kda_lab.ops.qsa.wrong_decode import MMA_ROWS, TILE, Decode, heads_modulo, merge_first_only, merge_without_rescale
from kda_lab.ops.qsa_packed_decode.cases import DRAFT_WIDTH, TARGET_WIDTH, longer_lengths
from kda_lab.ops.qsa_packed_decode.oracle import Geometry, geometry
from kda_lab.ops.wrong import all_zero, plain, stateful, untouched

STALE_ROWS = 4


def _right_rows(shape: Geometry, b: int, capacity: int) -> Sequence[int] | range:
    return range(shape.starts[b], shape.starts[b + 1])


@dataclass(frozen=True)
class _Decode(Decode):
    """The op with replaceable steps; the defaults are right."""

    pools = ("k", "v")
    rows: Callable[[Geometry, int, int], Sequence[int] | range] = _right_rows
    """Packed rows that row b reads: (geometry, b, rows of the buffer)."""

    def selected(self, call: Call) -> tuple[Geometry, Iterator[slice | torch.Tensor | None]]:
        shape, k = geometry(call), call.inputs["k"]
        chosen = (self.rows(shape, b, k.shape[0]) for b in range(shape.B))
        return shape, (_index(rows, k.device) for rows in chosen)


def _index(rows: Sequence[int] | range, device: torch.device) -> slice | torch.Tensor | None:
    if len(rows) == 0:
        return None
    return slice(rows.start, rows.stop) if isinstance(rows, range) else torch.as_tensor(rows, device=device)


def _one_row_more(shape: Geometry, b: int, capacity: int) -> range:
    return range(shape.starts[b], min(shape.starts[b + 1] + 1, capacity))


def _one_row_less(shape: Geometry, b: int, capacity: int) -> range:
    return range(shape.starts[b], max(shape.starts[b], shape.starts[b + 1] - 1))


def _batch_index_as_offset(shape: Geometry, b: int, capacity: int) -> range:
    return range(b, min(b + shape.lengths[b], capacity))


def _padding_as_empty(shape: Geometry, b: int, capacity: int) -> range:
    return range(0) if shape.lengths[b] == 1 else range(shape.starts[b], shape.starts[b + 1])


def _target_width_only(shape: Geometry, b: int, capacity: int) -> range:
    return range(shape.starts[b], min(shape.starts[b + 1], shape.starts[b] + TARGET_WIDTH))


def _stale_tail(shape: Geometry, b: int, capacity: int) -> list[int]:
    rows = list(range(shape.starts[b], shape.starts[b + 1]))
    return rows[:-STALE_ROWS] + list(range(STALE_ROWS)) if len(rows) >= 2 * STALE_ROWS else rows


def _lengths_baked(call: Call) -> Launcher:
    baked = geometry(call)
    return lambda: _Decode(rows=lambda shape, b, capacity: _right_rows(baked, b, capacity))(call)


def _tiles_baked(call: Call) -> Launcher:
    most = [-(-length // TILE) * TILE for length in geometry(call).lengths]
    return lambda: _Decode(rows=lambda s, b, capacity: range(s.starts[b], min(s.starts[b + 1], s.starts[b] + most[b])))(
        call
    )


def _some(test: Callable[[int], bool]) -> Callable[[Call], bool]:
    return lambda call: any(test(length) for length in geometry(call).lengths)


def _many_kv_heads(call: Call) -> bool:
    return geometry(call).HKV > 1


def _partial_tile(call: Call) -> bool:
    return geometry(call).group < MMA_ROWS


def _offset_differs(call: Call) -> bool:
    shape = geometry(call)
    return any(length and shape.starts[b] != b for b, length in enumerate(shape.lengths))


def _can_read_on(call: Call) -> bool:
    return geometry(call).starts[-1] > 0 and call.inputs["k"].shape[0] > geometry(call).starts[1]


def _gains_tiles(call: Call) -> bool:
    old = geometry(call).lengths
    return any(-(-new // TILE) > -(-was // TILE) for new, was in zip(longer_lengths(call), old, strict=True))


_SOFTMAX = (_some(lambda n: n > 1), "no row has two keys, so every weight is 1 whatever the scores are")
_SPLIT = (_some(lambda n: n > TILE), f"no row is longer than one tile of {TILE} keys, so nothing is split")
_LIVE = (_some(lambda n: n > 0), "all rows are empty, so the right output is zero")

MUTANTS: tuple[Mutant, ...] = (
    plain("all_zero", "Writes zeros.", all_zero, *_LIVE),
    plain("untouched", "Writes nothing.", untouched),
    plain(
        "head_map",
        "Query head h reads key head h % HKV instead of h // (HQ // HKV).",
        _Decode(heads=heads_modulo),
        _many_kv_heads,
        "there is one key head, so both maps agree",
    ),
    plain(
        "sixteen_heads",
        "Stores all 16 rows of the tensor-core tile instead of the group's own.",
        _Decode().sixteen_heads,
        _partial_tile,
        "the group fills the tile, so there is no padding row to store",
    ),
    plain(
        "tail_mask",
        "The tail mask is <=, so each row reads one key beyond its end.",
        _Decode(rows=_one_row_more),
        _can_read_on,
        "there is no row behind the first segment to read",
    ),
    plain("last_row_dropped", "The last key of each row is left out.", _Decode(rows=_one_row_less), *_LIVE),
    plain("scale_omitted", "Scores are not scaled.", _Decode(factor=lambda scale: 1.0), *_SOFTMAX),
    plain("scale_twice", "Scores are scaled twice.", _Decode(factor=lambda scale: scale * scale), *_SOFTMAX),
    plain("base_two", "exp2 without log2(e).", _Decode(factor=lambda scale: scale * math.log(2)), *_SOFTMAX),
    plain("merge_unscaled", "Splits are added without their maxima.", _Decode(merge=merge_without_rescale), *_SPLIT),
    plain("merge_first", "Only the first split reaches the output.", _Decode(merge=merge_first_only), *_SPLIT),
    stateful(
        "counter_kept",
        "The arrival counter is never reset, so only the first launch merges.",
        _Decode().counter_kept,
        *_LIVE,
    ),
    stateful(
        "lengths_baked",
        "Offsets are read when the call is bound, not when it is launched.",
        _lengths_baked,
        *_SOFTMAX,
    ),
    stateful(
        "tiles_baked",
        "The number of tiles is read when the call is bound, so longer rows are cut.",
        _tiles_baked,
        _gains_tiles,
        "no row can become longer by a tile within max_seqlen_k and the buffers",
    ),
    plain(
        "empty_row_nan",
        "A row without keys divides by its sum of zero.",
        _Decode(empty=math.nan),
        _some(lambda n: n == 0),
        "no row is empty",
    ),
    plain("half_width_scores", "Scores use the first half of D only.", _Decode(width=slice(0, 128)), *_SOFTMAX),
    plain("half_width_output", "The second half of D is not written.", _Decode().half_output),
    plain("keys_as_values", "K and V are exchanged.", _Decode(swapped=True), *_LIVE),
    plain(
        "batch_offset",
        "Row b starts at packed row b instead of cu_seqlens_k[b].",
        _Decode(rows=_batch_index_as_offset),
        _offset_differs,
        "every row starts at its own index",
    ),
    plain(
        "padding_as_empty",
        "A graph-padding row of length 1 is taken for an empty one.",
        _Decode(rows=_padding_as_empty),
        _some(lambda n: n == 1),
        "no row has length 1",
    ),
    plain(
        "draft_width_cut",
        f"Rows of up to {DRAFT_WIDTH} keys are cut at {TARGET_WIDTH}.",
        _Decode(rows=_target_width_only),
        _some(lambda n: n > TARGET_WIDTH),
        f"no row is longer than {TARGET_WIDTH}",
    ),
    plain(
        "stale_tail",
        "The last keys of a row are what another row left there (compaction that trusts the column index).",
        _Decode(rows=_stale_tail),
        _some(lambda n: n >= 2 * STALE_ROWS),
        f"no row has {2 * STALE_ROWS} keys",
    ),
)
