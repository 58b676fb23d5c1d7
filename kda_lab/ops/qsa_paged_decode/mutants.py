"""Deliberately wrong paged decodes, one mistake each: what the gates must reject before they count.

Every mutant computes in FP32 on any device and would be right without its mistake, so that a check
which rejects it sees the mistake and nothing else. `applies` reads the selection on the host.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from kda_lab.ops.protocol import Arm, Call, FunctionArm, Launcher, Mutant
from kda_lab.ops.qsa_paged_decode import selections as s
from kda_lab.ops.qsa_paged_decode.cases import new_counts
from kda_lab.ops.qsa_paged_decode.layouts import TARGET_WIDTH
from kda_lab.ops.qsa_paged_decode.oracle import Geometry, geometry
from kda_lab.ops.wrong import StatefulArm, all_zero, untouched

TILE = 64
SPLITS = 8
MMA_ROWS = 16
"""Query rows of a tensor-core tile, of which a group of 12 heads fills 12."""

Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Maximum [G], sum [G] and accumulator [G, D] of one split, relative to that split's own maximum."""


def _right_heads(shape: Geometry, g: int) -> list[int]:
    return list(range(g * shape.group, (g + 1) * shape.group))


def _right_merge(parts: list[Part]) -> torch.Tensor:
    top = torch.stack([m for m, _, _ in parts]).amax(0)
    weights = [torch.exp(m - top) for m, _, _ in parts]
    total = torch.stack([w * t for w, (_, t, _) in zip(weights, parts, strict=True)]).sum(0)
    acc = torch.stack([w[:, None] * a for w, (_, _, a) in zip(weights, parts, strict=True)]).sum(0)
    return acc / total[:, None]


@dataclass(frozen=True)
class _Decode:
    """The op with replaceable steps; the defaults are right."""

    slots: Callable[[Call], Sequence[torch.Tensor]] = s.right
    """For each row the slots it reads, int64."""
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
    """What a row without valid tokens becomes."""

    def output(self, call: Call) -> torch.Tensor:
        """[B, HQ, D] fp32."""
        shape = geometry(call)
        names = ("v_pool", "k_pool") if self.swapped else ("k_pool", "v_pool")
        q, (k, v) = call.inputs["q"], (call.inputs[name] for name in names)
        out = torch.full(q.shape, self.empty, dtype=torch.float32, device=q.device)
        for b, slots in enumerate(self.slots(call)):
            if len(slots) == 0:
                continue
            keys, values = k[slots].float(), v[slots].float()
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
    edges = [tiles * i // count * TILE for i in range(count)] + [scores.shape[1]]
    parts = []
    for first, last in itertools.pairwise(edges):
        top = scores[:, first:last].amax(1)
        p = torch.exp(scores[:, first:last] - top[:, None])
        parts.append((top, p.sum(1), p @ values[first:last]))
    return parts


def _merge_without_rescale(parts: list[Part]) -> torch.Tensor:
    total = torch.stack([t for _, t, _ in parts]).sum(0)
    return torch.stack([a for _, _, a in parts]).sum(0) / total[:, None]


def _merge_first_only(parts: list[Part]) -> torch.Tensor:
    return parts[0][2] / parts[0][1][:, None]


def _merge_all_but_last(parts: list[Part]) -> torch.Tensor:
    return _right_merge(parts[:-1] or parts)


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


def _plain(
    name: str,
    what: str,
    decode: Callable[[Call], None],
    applies: Callable[[Call], bool] | None = None,
    why_not: str = "",
) -> Mutant:
    return Mutant(name, what, lambda: FunctionArm(name, decode), applies or (lambda call: True), why_not)


def _selected(name: str, what: str, slots: Callable[[Call], Sequence[torch.Tensor]], why_not: str) -> Mutant:
    return _plain(name, what, _Decode(slots=slots), _differs(slots), why_not)


def _stateful(
    name: str, what: str, make: Callable[[Call], Launcher], applies: Callable[[Call], bool], why_not: str
) -> Mutant:
    def fresh() -> Arm:
        return StatefulArm(name, make)

    return Mutant(name, what, fresh, applies, why_not)


_SOFTMAX = (_some(lambda n: n > 1), "no row has two valid tokens, so every weight is 1 whatever the scores are")
_SPLIT = (_some(lambda n: n > TILE), f"no row has more than one tile of {TILE} valid tokens, so nothing is split")
_LIVE = (_some(lambda n: n > 0), "all rows are empty, so the right output is zero")
_EMPTY = "all rows are empty, so no slot is read"

MUTANTS: tuple[Mutant, ...] = (
    _plain("all_zero", "Writes zeros.", all_zero, *_LIVE),
    _plain("untouched", "Writes nothing.", untouched),
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
    _plain(
        "head_map",
        "Query head h reads key head h % HKV instead of h // (HQ // HKV).",
        _Decode(heads=_heads_modulo),
        lambda call: _many_kv_heads(call) and _LIVE[0](call),
        "there is one key head, so both maps agree, or all rows are empty",
    ),
    _plain(
        "sixteen_heads",
        "All 16 rows of the tile are stored, four of them behind the group's own.",
        _sixteen_heads,
        _partial_tile,
        "the group fills the tile, so there is no padding row to store",
    ),
    _plain("scale_omitted", "Scores are not scaled.", _Decode(factor=lambda scale: 1.0), *_SOFTMAX),
    _plain("scale_twice", "Scores are scaled twice.", _Decode(factor=lambda scale: scale * scale), *_SOFTMAX),
    _plain("base_two", "exp2 without log2(e).", _Decode(factor=lambda scale: scale * math.log(2)), *_SOFTMAX),
    _plain("merge_unscaled", "Splits are added without their maxima.", _Decode(merge=_merge_without_rescale), *_SPLIT),
    _plain("merge_first", "Only the first split reaches the output.", _Decode(merge=_merge_first_only), *_SPLIT),
    _plain("last_split_dropped", "The last split is not merged.", _Decode(merge=_merge_all_but_last), *_SPLIT),
    _stateful(
        "counter_kept", "The arrival counter is never reset, so only the first launch merges.", _counter_kept, *_LIVE
    ),
    _stateful(
        "slots_baked", "Slots are looked up when the call is bound, not when it is launched.", _slots_baked, *_LIVE
    ),
    _stateful(
        "tiles_baked",
        "The number of tiles is read when the call is bound, so longer rows are cut.",
        _tiles_baked,
        _gains_tiles,
        "no row can gain a tile within its columns and the pool",
    ),
    _plain(
        "empty_row_nan",
        "A row without valid tokens divides by its sum of zero.",
        _Decode(empty=math.nan),
        _some(lambda n: n == 0),
        "no row is empty",
    ),
    _plain("half_width_scores", "Scores use the first half of D only.", _Decode(width=slice(0, 128)), *_SOFTMAX),
    _plain("half_width_output", "The second half of D is not written.", _half_output),
    _plain("keys_as_values", "K and V are exchanged.", _Decode(swapped=True), *_LIVE),
)
