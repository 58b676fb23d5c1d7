"""Deliberately wrong compressed keys, one mistake each: what the gates must reject before they count.

Every mutant follows the ring token by token, computes in FP32 on any device and would be right without its mistake.
`applies` reads tensors on the host. Not here: the sum in the place of the mean, and the slot of a group's last token
divided by r in the place of the first one's. The norm takes back any factor but for epsilon, and the slots of a group
are consecutive from a multiple of r: both give the right result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kda_lab.ops.protocol import Arm, Call, Mutant
from kda_lab.ops.qsa.geometry import PAGE_TOKENS
from kda_lab.ops.qsa.rmsnorm import rms_norm
from kda_lab.ops.qsa.rope import rotate
from kda_lab.ops.qsa_compress_keys.oracle import Token, eps_of, tokens_of
from kda_lab.ops.wrong import all_zero, baked, plain, untouched

Tensors = dict[str, torch.Tensor]


def _right_mean(group: torch.Tensor) -> torch.Tensor:
    return group.float().mean(0).bfloat16().float()


def _right_norm(mean: torch.Tensor, call: Call) -> torch.Tensor:
    return rms_norm(mean, call.inputs["weight"], eps_of(call))


def _right_key(group: torch.Tensor, call: Call, turn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return turn(_right_norm(_right_mean(group), call))


@dataclass(frozen=True)
class _Compress:
    """The op with replaceable steps; the defaults are right."""

    key: Callable[[torch.Tensor, Call, Callable[[torch.Tensor], torch.Tensor]], torch.Tensor] = _right_key
    """A group [r, D], the call and the rotation at the group's position to its key [D]."""
    rotation: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = rotate
    turned_at: Callable[[int, int], int] = lambda position, ratio: position - (ratio - 1)
    """The position whose rotation is used: (position of the last token, r)."""
    place: Callable[[int, int], int] = lambda position, ratio: position % ratio
    """Where a token's raw key lies in the ring."""
    completes: Callable[[int, int], bool] = lambda position, ratio: (position + 1) % ratio == 0
    entry: Callable[[int, int], int] = lambda slot, ratio: (slot - (ratio - 1)) // ratio
    """Where the key goes: (slot of the last token, r)."""
    group: Callable[[Call, torch.Tensor, Token], torch.Tensor] = lambda call, ring, token: ring[token.request]
    """[r, D] members of the group that a token completes: (call, ring by now, token)."""
    padding: bool = False
    """Whether padding is taken for tokens."""
    keeps: bool = True
    """Whether raw keys stay in the ring after the step."""

    def output(self, call: Call) -> Tensors:
        """The three outputs, entries in FP32."""
        k_raw, ring, cos_sin = call.inputs["k_raw"], call.inputs["ring"].clone(), call.inputs["cos_sin"]
        ratio = ring.shape[1]
        entries = torch.zeros(k_raw.shape, dtype=torch.float32, device=k_raw.device)
        places = torch.zeros(k_raw.shape[0], dtype=torch.int64, device=k_raw.device)
        for token in self._tokens(call):
            ring[token.request, self.place(token.position, ratio)] = k_raw[token.at]
            if self.completes(token.position, ratio):
                row = cos_sin[min(max(0, self.turned_at(token.position, ratio)), cos_sin.shape[0] - 1)]
                group = self.group(call, ring, token)
                entries[token.at] = self.key(group, call, lambda x, row=row: self.rotation(x, row))  # type: ignore[misc]
                places[token.at] = self.entry(token.slot, ratio)
        return {
            "entries": entries,
            "entry_slots": places,
            "new_ring": ring if self.keeps else call.inputs["ring"],
        }

    def _tokens(self, call: Call) -> list[Token]:
        if not self.padding:
            return tokens_of(call)
        names = ("requests", "positions", "slots")
        rows = zip(*(call.inputs[name].tolist() for name in names), strict=True)
        return [Token(at, *row) for at, row in enumerate(rows)]

    def __call__(self, call: Call) -> None:
        for name, value in self.output(call).items():
            call.outputs[name].copy_(value)


def _norm_before_mean(group: torch.Tensor, call: Call, turn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return turn(_right_norm(group.float(), call).mean(0).bfloat16().float())


def _turn_before_norm(group: torch.Tensor, call: Call, turn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return _right_norm(turn(_right_mean(group)), call)


def _bf16_sums(group: torch.Tensor, call: Call, turn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    total = group[0]
    for key in group[1:]:
        total = total + key
    return turn(_right_norm((total / group.shape[0]).float(), call))


def _of_members(count: int) -> Callable[..., torch.Tensor]:
    def key(group: torch.Tensor, call: Call, turn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return _right_key(group[:count], call, turn)

    return key


def _with_norm(norm: Callable[[torch.Tensor, Call], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def key(group: torch.Tensor, call: Call, turn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return turn(norm(_right_mean(group), call))

    return key


def _centred(mean: torch.Tensor, call: Call) -> torch.Tensor:
    return _right_norm(mean - mean.mean(-1, keepdim=True), call)


def _interleaved(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Neighbours turn with each other instead of halves."""
    cos, sin = cos_sin.to(x.dtype).chunk(2, dim=-1)
    width = cos_sin.shape[-1]
    even, odd = x[..., 0:width:2], x[..., 1:width:2]
    pairs = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
    return torch.cat([pairs, x[..., width:]], -1)


def _backwards(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    half = cos_sin.shape[-1] // 2
    return rotate(x, torch.cat([cos_sin[..., :half], -cos_sin[..., half:]], -1))


def _from_step_only(call: Call, ring: torch.Tensor, token: Token) -> torch.Tensor:
    """Members that an earlier step left in the ring are taken as zero."""
    first = token.position - (ring.shape[1] - 1)
    here = {t.position for t in tokens_of(call) if t.request == token.request}
    mask = torch.tensor([first + i in here for i in range(ring.shape[1])], device=ring.device)
    return torch.where(mask[:, None], ring[token.request], torch.zeros_like(ring[token.request]))


def _from_old_ring(call: Call, ring: torch.Tensor, token: Token) -> torch.Tensor:
    """All members but the last come from the ring as the step found it."""
    group = call.inputs["ring"][token.request].clone()
    group[-1] = call.inputs["k_raw"][token.at]
    return group


def _from_neighbours(call: Call, ring: torch.Tensor, token: Token) -> torch.Tensor:
    """The last r tokens of the step, whosever they are."""
    at = torch.arange(token.at - ring.shape[1] + 1, token.at + 1, device=ring.device)
    return torch.where((at >= 0)[:, None], call.inputs["k_raw"][at.clamp(min=0)], ring[token.request])


def _first_stays(call: Call) -> None:
    """Of several tokens for one place of the ring the first one stays."""
    _Compress()(call)
    ring, seen = call.inputs["ring"].clone(), set()
    for token in tokens_of(call):
        place = (token.request, token.position % ring.shape[1])
        if place not in seen:
            ring[place] = call.inputs["k_raw"][token.at]
        seen.add(place)
    call.outputs["new_ring"].copy_(ring)


def _rounded_twice(call: Call) -> None:
    def key(group: torch.Tensor, call: Call, turn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return turn(_right_norm(_right_mean(group), call).bfloat16().float())

    _Compress(key=key)(call)


def _narrow_slots(call: Call) -> None:
    _Compress()(call)
    call.outputs["entry_slots"].copy_(call.outputs["entry_slots"].to(torch.int32))


def _complete_only(call: Call) -> None:
    """Rows that complete nothing are not written."""
    found = _Compress().output(call)
    for token in tokens_of(call):
        if _Compress().completes(token.position, call.inputs["ring"].shape[1]):
            for name in ("entries", "entry_slots"):
                call.outputs[name][token.at] = found[name][token.at].to(call.outputs[name].dtype)
    call.outputs["new_ring"].copy_(found["new_ring"])


def _ring_in_place(call: Call) -> None:
    _Compress()(call)
    call.inputs["ring"].copy_(call.outputs["new_ring"])


def _differs(mistake: Callable[[Call], None]) -> Callable[[Call], bool]:
    """Whether the mistake moves an entry by a hundredth of the largest, or changes a slot or the ring."""

    def applies(call: Call) -> bool:
        right = _Compress().output(call)
        wrong = call.with_outputs(**{n: torch.zeros_like(t) for n, t in call.outputs.items()})
        mistake(wrong)
        moved = (wrong.outputs["entries"].float() - right["entries"]).abs().max()
        exact = ("entry_slots", "new_ring")
        same = all(torch.equal(wrong.outputs[n], right[n].to(wrong.outputs[n].dtype)) for n in exact)
        return bool(moved > 1e-2 * right["entries"].abs().max()) or not same

    return applies


def _is_live(call: Call) -> bool:
    return bool(tokens_of(call))


def _completes(call: Call) -> bool:
    ratio = call.inputs["ring"].shape[1]
    return any((token.position + 1) % ratio == 0 for token in tokens_of(call))


def _epsilon_counts(call: Call) -> bool:
    found = _Compress().output(call)["entries"]
    bare = _Compress(key=_with_norm(lambda m, c: rms_norm(m, c.inputs["weight"], 0.0))).output(call)["entries"]
    return bool((bare - found).nan_to_num(0.0).norm() > 0.02 * found.norm())


def _leaves_rows(call: Call) -> bool:
    ratio = call.inputs["ring"].shape[1]
    done = sum((token.position + 1) % ratio == 0 for token in tokens_of(call))
    return done < call.inputs["k_raw"].shape[0]


def _is_far(call: Call) -> bool:
    return bool((_Compress().output(call)["entry_slots"] >= 1 << 31).any())


def _step(name: str, what: str, mistake: Callable[[Call], None]) -> Mutant:
    return plain(name, what, mistake, _differs(mistake), "nothing in this call depends on it")


def _baked(name: str, what: str, *tensors: str) -> Mutant:
    def fresh() -> Arm:
        return baked(name, tensors, _Compress())

    return Mutant(name, what, fresh, _is_live, "all tokens are padding")


_COMPLETE = (_completes, "no token completes a group")

MUTANTS: tuple[Mutant, ...] = (
    plain("untouched", "Writes nothing.", untouched),
    _step("all_zero", "Writes zeros.", all_zero),
    _step("last_position", "Rotated at the group's last token.", _Compress(turned_at=lambda p, r: p)),
    _step("group_number", "Rotated at the number of the group.", _Compress(turned_at=lambda p, r: p // r)),
    _step("rope_skipped", "Not rotated.", _Compress(rotation=lambda x, table: x)),
    _step(
        "rope_interleaved",
        "Neighbours are rotated with each other instead of halves.",
        _Compress(rotation=_interleaved),
    ),
    _step("rope_backwards", "Rotated the other way round.", _Compress(rotation=_backwards)),
    _step("norm_skipped", "Not normalised.", _Compress(key=_with_norm(lambda mean, call: mean))),
    _step("norm_before_mean", "Raw keys are normalised before they are averaged.", _Compress(key=_norm_before_mean)),
    _step("norm_after_rope", "Normalised after the rotation.", _Compress(key=_turn_before_norm)),
    _step("norm_centred", "A layer norm: the mean over channels is subtracted.", _Compress(key=_with_norm(_centred))),
    _step(
        "weight_plain",
        "The weight is used as it is stored, without the one.",
        _Compress(key=_with_norm(lambda m, c: rms_norm(m, c.inputs["weight"], eps_of(c), unit_offset=False))),
    ),
    plain(
        "epsilon_missing",
        "The norm has no epsilon.",
        _Compress(key=_with_norm(lambda m, c: rms_norm(m, c.inputs["weight"], 0.0))),
        _epsilon_counts,
        "keys are so large that epsilon does not count",
    ),
    plain("mean_in_bf16", "Sums of the mean are rounded to BF16.", _Compress(key=_bf16_sums), *_COMPLETE),
    plain("rounded_twice", "The norm's result is rounded to BF16 too.", _rounded_twice, *_COMPLETE),
    _step("three_keys", "The last key of a group is left out.", _Compress(key=_of_members(3))),
    _step("first_key", "The first key stands for its group.", _Compress(key=_of_members(1))),
    _step("earlier_forgotten", "Keys of earlier steps count as zero.", _Compress(group=_from_step_only)),
    _step("step_forgotten", "Keys of this step are not seen but for the last.", _Compress(group=_from_old_ring)),
    _step(
        "neighbour_request", "A group takes the last tokens of the step, whosever.", _Compress(group=_from_neighbours)
    ),
    _step("ring_place_off", "A raw key lies one place too far.", _Compress(place=lambda p, r: (p + 1) % r)),
    _step("ring_kept", "The ring stays as it was.", _Compress(keeps=False)),
    _step("ring_first_stays", "The first token of a place stays in the ring.", _first_stays),
    plain("ring_in_place", "The old ring is overwritten.", _ring_in_place, _is_live, "all tokens are padding"),
    _step("completes_late", "A group ends one token too late.", _Compress(completes=lambda p, r: p % r == 0)),
    _step("completes_soon", "A group ends one token too early.", _Compress(completes=lambda p, r: (p + 2) % r == 0)),
    _step("padding_counts", "Padding is taken for tokens of request 0.", _Compress(padding=True)),
    _step("slot_undivided", "The slot is not divided by r.", _Compress(entry=lambda s, r: s - (r - 1))),
    _step("slot_of_page", "The slot is divided by the page.", _Compress(entry=lambda s, r: s // PAGE_TOKENS)),
    _step("slot_rounded_up", "The slot is divided upwards.", _Compress(entry=lambda s, r: (s + r - 1) // r)),
    plain("slot_narrow", "Slots are kept in 32 bits.", _narrow_slots, _is_far, "all slots fit into 32 bits"),
    plain(
        "complete_only",
        "Rows that complete nothing are not written.",
        _complete_only,
        _leaves_rows,
        "every token completes a group",
    ),
    _baked("positions_baked", "Positions are read when the call is bound.", "positions"),
    _baked("weight_baked", "The weight is read when the call is bound.", "weight"),
    _baked("table_baked", "Cosines and sines are read when the call is bound.", "cos_sin"),
)
