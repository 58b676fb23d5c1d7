"""Deliberately wrong packed decodes, one mistake each: what the gates must reject before they count.

Every mutant computes in FP32 on any device and would be right without its mistake, so that a check
which rejects it sees the mistake and nothing else. `applies` reads the live lengths on the host.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher, Mutant
from kda_lab.ops.qsa_packed_decode.cases import DRAFT_WIDTH, TARGET_WIDTH, longer_lengths
from kda_lab.ops.qsa_packed_decode.oracle import Geometry, geometry
from kda_lab.ops.wrong import StatefulArm, all_zero, untouched

TILE = 64
SPLITS = 8
MMA_ROWS = 16
"""Query rows of a tensor-core tile, of which a group of 12 heads fills 12."""
STALE_ROWS = 4

Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Maximum [G], sum [G] and accumulator [G, D] of one split, relative to that split's own maximum."""


def _right_rows(shape: Geometry, b: int, capacity: int) -> Sequence[int] | range:
    return range(shape.starts[b], shape.starts[b + 1])


def _right_heads(shape: Geometry, g: int) -> list[int]:
    return list(range(g * shape.group, (g + 1) * shape.group))


def _right_merge(parts: list[Part]) -> torch.Tensor:
    top = torch.stack([m for m, _, _ in parts]).amax(0)
    weights = [torch.exp(m - top) for m, _, _ in parts]
    total = sum(w * t for w, (_, t, _) in zip(weights, parts, strict=True))
    return sum(w[:, None] * a for w, (_, _, a) in zip(weights, parts, strict=True)) / total[:, None]  # type: ignore[union-attr,index]


@dataclass(frozen=True)
class _Decode:
    """The op with replaceable steps; the defaults are right."""

    rows: Callable[[Geometry, int, int], Sequence[int] | range] = _right_rows
    """Packed rows that row b reads: (geometry, b, rows of the buffer)."""
    heads: Callable[[Geometry, int], list[int]] = _right_heads
    """Query heads served by key head g."""
    factor: Callable[[float], float] = lambda scale: scale
    """From the call's scale to what multiplies the scores."""
    width: slice = field(default_factory=lambda: slice(None))
    """Part of D that the scores use."""
    merge: Callable[[list[Part]], torch.Tensor] = _right_merge
    swapped: bool = False
    """K and V exchanged."""
    empty: float = 0.0
    """What a row without keys becomes."""

    def output(self, call: Call) -> torch.Tensor:
        """[B, HQ, D] fp32."""
        shape = geometry(call)
        names = ("v", "k") if self.swapped else ("k", "v")
        q, (k, v) = call.inputs["q"], (call.inputs[name] for name in names)
        out = torch.full(q.shape, self.empty, dtype=torch.float32, device=q.device)
        for b in range(shape.B):
            rows = self.rows(shape, b, k.shape[0])
            if len(rows) == 0:
                continue
            at = slice(rows.start, rows.stop) if isinstance(rows, range) else torch.as_tensor(rows, device=q.device)
            keys, values = k[at].float(), v[at].float()
            for g in range(shape.HKV):
                heads = self.heads(shape, g)
                scores = q[b, heads][:, self.width].float() @ keys[:, g, self.width].T * self.factor(shape.scale)
                out[b, heads] = self.merge(_parts(scores, values[:, g]))
        return out

    def __call__(self, call: Call) -> None:
        call.outputs["out"].copy_(self.output(call))


def _parts(scores: torch.Tensor, values: torch.Tensor) -> list[Part]:
    tiles = -(-scores.shape[1] // TILE)
    count = min(SPLITS, tiles)
    edges = [tiles * s // count * TILE for s in range(count)] + [scores.shape[1]]
    parts = []
    for first, last in itertools.pairwise(edges):
        top = scores[:, first:last].amax(1)
        p = torch.exp(scores[:, first:last] - top[:, None])
        parts.append((top, p.sum(1), p @ values[first:last]))
    return parts


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


def _merge_without_rescale(parts: list[Part]) -> torch.Tensor:
    return sum(a for _, _, a in parts) / sum(t for _, t, _ in parts)[:, None]  # type: ignore[index,return-value]


def _merge_first_only(parts: list[Part]) -> torch.Tensor:
    return parts[0][2] / parts[0][1][:, None]


def _heads_modulo(shape: Geometry, g: int) -> list[int]:
    return list(range(g, shape.HQ, shape.HKV))


def _sixteen_heads(call: Call) -> None:
    """Store the four padding rows of each group's tile too, over the heads that follow in memory."""
    shape, out = geometry(call), call.outputs["out"]
    right, start = _Decode().output(call).to(out.dtype).view(-1, shape.D), out.storage_offset()
    room = (out.untyped_storage().nbytes() // out.element_size() - start) // shape.D
    memory = out.as_strided((room, shape.D), (shape.D, 1), start)
    for first in reversed(range(0, shape.B * shape.HQ, shape.group)):
        memory[first : first + shape.group] = right[first : first + shape.group]
        memory[first + shape.group : first + max(MMA_ROWS, shape.group)] = 0


def _half_output(call: Call) -> None:
    half = call.outputs["out"].shape[2] // 2
    call.outputs["out"][:, :, :half] = _Decode().output(call)[:, :, :half].to(call.outputs["out"].dtype)


def _counter_kept(call: Call) -> Launcher:
    """Each split counts up; the last arrival merges. Without a reset no later launch has a last arrival."""
    arrivals = 0

    def launch() -> None:
        nonlocal arrivals
        arrivals += SPLITS
        if arrivals == SPLITS:
            _Decode()(call)

    return launch


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


def _plain(
    name: str,
    what: str,
    decode: Callable[[Call], None],
    applies: Callable[[Call], bool] | None = None,
    why_not: str = "",
) -> Mutant:
    return Mutant(name, what, lambda: FunctionArm(name, decode), applies or (lambda call: True), why_not)


def _stateful(
    name: str, what: str, make: Callable[[Call], Launcher], applies: Callable[[Call], bool], why_not: str
) -> Mutant:
    def fresh() -> Arm:
        return StatefulArm(name, make)

    return Mutant(name, what, fresh, applies, why_not)


_SOFTMAX = (_some(lambda n: n > 1), "no row has two keys, so every weight is 1 whatever the scores are")
_SPLIT = (_some(lambda n: n > TILE), f"no row is longer than one tile of {TILE} keys, so nothing is split")
_LIVE = (_some(lambda n: n > 0), "all rows are empty, so the right output is zero")

MUTANTS: tuple[Mutant, ...] = (
    _plain("all_zero", "Writes zeros.", all_zero, *_LIVE),
    _plain("untouched", "Writes nothing.", untouched),
    _plain(
        "head_map",
        "Query head h reads key head h % HKV instead of h // (HQ // HKV).",
        _Decode(heads=_heads_modulo),
        _many_kv_heads,
        "there is one key head, so both maps agree",
    ),
    _plain(
        "sixteen_heads",
        "Stores all 16 rows of the tensor-core tile instead of the group's own.",
        _sixteen_heads,
        _partial_tile,
        "the group fills the tile, so there is no padding row to store",
    ),
    _plain(
        "tail_mask",
        "The tail mask is <=, so each row reads one key beyond its end.",
        _Decode(rows=_one_row_more),
        _can_read_on,
        "there is no row behind the first segment to read",
    ),
    _plain("last_row_dropped", "The last key of each row is left out.", _Decode(rows=_one_row_less), *_LIVE),
    _plain("scale_omitted", "Scores are not scaled.", _Decode(factor=lambda scale: 1.0), *_SOFTMAX),
    _plain("scale_twice", "Scores are scaled twice.", _Decode(factor=lambda scale: scale * scale), *_SOFTMAX),
    _plain("base_two", "exp2 without log2(e).", _Decode(factor=lambda scale: scale * math.log(2)), *_SOFTMAX),
    _plain("merge_unscaled", "Splits are added without their maxima.", _Decode(merge=_merge_without_rescale), *_SPLIT),
    _plain("merge_first", "Only the first split reaches the output.", _Decode(merge=_merge_first_only), *_SPLIT),
    _stateful(
        "counter_kept", "The arrival counter is never reset, so only the first launch merges.", _counter_kept, *_LIVE
    ),
    _stateful(
        "lengths_baked",
        "Offsets are read when the call is bound, not when it is launched.",
        _lengths_baked,
        *_SOFTMAX,
    ),
    _stateful(
        "tiles_baked",
        "The number of tiles is read when the call is bound, so longer rows are cut.",
        _tiles_baked,
        _gains_tiles,
        "no row can become longer by a tile within max_seqlen_k and the buffers",
    ),
    _plain(
        "empty_row_nan",
        "A row without keys divides by its sum of zero.",
        _Decode(empty=math.nan),
        _some(lambda n: n == 0),
        "no row is empty",
    ),
    _plain("half_width_scores", "Scores use the first half of D only.", _Decode(width=slice(0, 128)), *_SOFTMAX),
    _plain("half_width_output", "The second half of D is not written.", _half_output),
    _plain("keys_as_values", "K and V are exchanged.", _Decode(swapped=True), *_LIVE),
    _plain(
        "batch_offset",
        "Row b starts at packed row b instead of cu_seqlens_k[b].",
        _Decode(rows=_batch_index_as_offset),
        _offset_differs,
        "every row starts at its own index",
    ),
    _plain(
        "padding_as_empty",
        "A graph-padding row of length 1 is taken for an empty one.",
        _Decode(rows=_padding_as_empty),
        _some(lambda n: n == 1),
        "no row has length 1",
    ),
    _plain(
        "draft_width_cut",
        f"Rows of up to {DRAFT_WIDTH} keys are cut at {TARGET_WIDTH}.",
        _Decode(rows=_target_width_only),
        _some(lambda n: n > TARGET_WIDTH),
        f"no row is longer than {TARGET_WIDTH}",
    ),
    _plain(
        "stale_tail",
        "The last keys of a row are what another row left there (compaction that trusts the column index).",
        _Decode(rows=_stale_tail),
        _some(lambda n: n >= 2 * STALE_ROWS),
        f"no row has {2 * STALE_ROWS} keys",
    ),
)
