"""Deliberately wrong decodes from a ring, one mistake each: what the gates must reject before they count.

Every mutant reads and writes the pools in the call's outputs, computes in FP32 on any device and would be right without
its mistake. `applies` reads tensors on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from kda_lab.ops.kda import replay
from kda_lab.ops.kda.gate import bound_of
from kda_lab.ops.kda.recurrence import normalise_k
from kda_lab.ops.kda.replay import Memory, Modes, Token
from kda_lab.ops.kda.speculative import Heads
from kda_lab.ops.kda.wrong_requests import has_padding
from kda_lab.ops.kda_replay_decode.oracle import touched
from kda_lab.ops.kda_replay_decode.steps import Steps, heads_of_call, modes_of
from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.wrong import all_zero, baked, plain, untouched

Decoded = tuple[torch.Tensor, Memory]


def _outside_root(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True).sqrt() + 1e-6)


def _modulo(x: torch.Tensor, heads: Heads) -> torch.Tensor:
    return x[..., torch.arange(heads.HV, device=x.device) % heads.H, :]


def _transposed(memory: Memory) -> Memory:
    HV, V, K = memory.state.shape
    return replace(memory, state=memory.state.reshape(HV, K, V).mT.contiguous())


def _restored(before: Memory, after: Memory) -> Memory:
    """A checkpoint that is not flushed goes back as [V, K]."""
    HV, V, K = after.state.shape
    return replace(after, state=after.state.mT.reshape(HV, V, K))


def _read_before(memory: Memory, token: Token, modes: Modes) -> Decoded:
    decayed = replay.present_state(memory, modes.predecayed) * token.g.exp()[:, None, :]
    return (decayed * token.q[:, None, :]).sum(-1), replay.decode(memory, token, modes)[1]


def _undecayed(memory: Memory, token: Token, modes: Modes) -> Decoded:
    """The present token's decay is left out of the state; its record keeps it."""
    out, after = replay.decode(memory, replace(token, g=torch.zeros_like(token.g)), modes)
    return out, replace(after, g=replay.decode(memory, token, modes)[1].g)


def _on_state(change: Callable[[Memory, Modes], Memory]) -> Steps:
    """The state is made from a changed memory; the ring is written as it should be."""

    def decode(memory: Memory, token: Token, modes: Modes) -> Decoded:
        out, wrong = replay.decode(change(memory, modes), token, modes)
        right = replay.decode(memory, token, modes)[1]
        flush = replay.flushes(memory, modes)[0]
        return out, replace(right, state=wrong.state if flush else right.state)

    return Steps(decode=decode)


def _without_records(memory: Memory, modes: Modes) -> Memory:
    return replace(memory, d=torch.zeros_like(memory.d))


def _without_newest(memory: Memory, modes: Modes) -> Memory:
    d = memory.d.clone()
    d[:, max(0, memory.position - 1)] = 0
    return replace(memory, d=d)


def _checkpoint_kept(memory: Memory, modes: Modes) -> Memory:
    """The records' decay does not reach the checkpoint: it is taken back beforehand."""
    n = memory.position
    if not n:
        return memory
    total = memory.g[:, n - 1] if modes.predecayed else memory.g[:, :n].sum(1)
    return replace(memory, state=memory.state * (-total).exp()[:, None, :])


def _own_decay_too(memory: Memory, modes: Modes) -> Memory:
    """A record decays by its own token's g as well."""
    own = memory.g.clone()
    if modes.predecayed:
        own[:, 1:] -= memory.g[:, :-1]
    held = torch.arange(memory.length, device=own.device)[None, :, None] < memory.position
    return replace(memory, k=memory.k * torch.where(held, own, torch.zeros_like(own)).exp())


def _other_keys(memory: Memory, modes: Modes) -> Memory:
    """Keys are taken for the other kind, raw for pre-decayed."""
    n = memory.position
    sums = memory.g if modes.predecayed else memory.g.cumsum(1)
    held = torch.arange(memory.length, device=sums.device)[None, :, None] < n
    factor = torch.where(held, sums, torch.zeros_like(sums)).clamp(min=-80).exp()
    return replace(memory, k=memory.k * (factor if modes.predecayed else 1 / factor))


def _modes(**fixed: bool) -> Steps:
    return Steps(modes=lambda call: replace(modes_of(call), **fixed))


def _never_flushed(before: Memory, after: Memory) -> Memory:
    return replace(after, state=before.state)


def _next_place(before: Memory, after: Memory) -> Memory:
    """Records go one place too far."""
    at = after.position - 1
    if at < 0:
        return after
    rings = {}
    for name in ("d", "k", "g"):
        ring = getattr(before, name).clone()
        ring[:, (at + 1) % before.length] = getattr(after, name)[:, at]
        rings[name] = ring
    return replace(after, **rings)


def _recorded(**change: Callable[[torch.Tensor], torch.Tensor]) -> Steps:
    """The appended record is changed on its way into the ring."""

    def kept(before: Memory, after: Memory) -> Memory:
        at = after.position - 1
        if at < 0:
            return after
        rings = {}
        for name, turn in change.items():
            ring = getattr(after, name).clone()
            ring[:, at] = turn(ring[:, at])
            rings[name] = ring
        return replace(after, **rings)

    return Steps(kept=kept)


def _written_on_flush(before: Memory, after: Memory) -> Memory:
    """A flush into the state writes the place behind the last record as well."""
    if after.position:
        return after
    d = after.d.clone()
    d[:, min(before.position, before.length - 1)] = 1.0
    return replace(after, d=d)


def _cleared(before: Memory, after: Memory) -> Memory:
    """A flush into the state clears the ring."""
    return replace(after, d=torch.zeros_like(after.d)) if after.position == 0 else after


def _rounded_state(before: Memory, after: Memory) -> Memory:
    return replace(after, state=after.state.bfloat16().float())


def _padding_left(call: Call) -> None:
    """The output of padding is not written."""
    before = call.outputs["out"].clone()
    Steps()(call)
    idle = call.inputs["state_indices"] < 0
    call.outputs["out"][idle] = before[idle]


def _advances(call: Call) -> None:
    """The kernel moves the write positions on."""
    Steps()(call)
    call.inputs["write_positions"].add_(1)


def _any(test: Callable[[bool, int], bool]) -> Callable[[Call], bool]:
    """Some live request for which (flushes, place of its record or -1) passes."""
    return lambda call: any(test(flush, at) for _, flush, at in touched(call))


def _records(call: Call, least: int = 1) -> bool:
    positions = call.inputs["write_positions"].tolist()
    return any(positions[slot] >= least for slot, _, _ in touched(call))


def _is_grouped(call: Call) -> bool:
    heads = heads_of_call(call)
    return 1 < heads.H < heads.HV


def _natural(call: Call) -> bool:
    """A ring of several places that is full and not flushed by force: where the two conventions differ."""
    length, forced = call.inputs["ring_d"].shape[2], modes_of(call).force_flush
    return length > 1 and not forced and _records(call, length - 1)


_RECORDS = (_records, "every ring is empty")
_FLUSH = (_any(lambda flush, at: flush), "nothing is flushed")
_KEPT = (_any(lambda flush, at: not flush), "every request is flushed")
_APPENDS = (_any(lambda flush, at: at >= 0), "no record is appended")
_FULL = (_any(lambda flush, at: flush and at < 0), "no request flushes its own token")

MUTANTS: tuple[Mutant, ...] = (
    plain("all_zero", "Writes zeros.", all_zero),
    plain("untouched", "Writes nothing.", untouched),
    plain("other_gate", "The other of the two gates.", Steps(bound=lambda c: -5.0 if bound_of(c) is None else None)),
    plain("no_decay", "The present token does not decay the state.", Steps(decode=_undecayed)),
    plain("read_before", "The output is read before the update.", Steps(decode=_read_before)),
    plain("scale_missing", "Queries are not scaled.", Steps(query=normalise_k)),
    plain(
        "epsilon_outside",
        "Epsilon is added outside of the root.",
        Steps(key=_outside_root, query=lambda q: _outside_root(q) * q.shape[-1] ** -0.5),
    ),
    plain(
        "beta_rounded",
        "The write strength is rounded to BF16.",
        Steps(strength=lambda b: torch.sigmoid(b).bfloat16().to(b.dtype)),
        *_FLUSH,
    ),
    plain(
        "records_ignored",
        "The checkpoint is taken for the state.",
        _on_state(lambda m, modes: replace(m, position=0)),
        *_RECORDS,
    ),
    plain("deltas_ignored", "Only the decay of the records is applied.", _on_state(_without_records), *_RECORDS),
    plain("newest_missing", "The newest record is not replayed.", _on_state(_without_newest), *_RECORDS),
    plain(
        "stale_replayed",
        "One place too many is replayed.",
        _on_state(lambda m, modes: replace(m, position=min(m.position + 1, m.length - 1))),
        lambda c: _any(lambda flush, at: not flush)(c),
        "every ring is full or flushed",
    ),
    plain(
        "checkpoint_undecayed",
        "The checkpoint does not decay with the records.",
        _on_state(_checkpoint_kept),
        *_RECORDS,
    ),
    plain("own_decay_too", "A record decays by its own token's g too.", _on_state(_own_decay_too), *_RECORDS),
    plain(
        "other_keys",
        "Raw keys are taken for pre-decayed ones, or the other way round.",
        _on_state(_other_keys),
        *_RECORDS,
    ),
    plain("never_flushed", "A flush does not write the state.", Steps(kept=_never_flushed), *_FLUSH),
    plain("always_flushed", "Every call flushes.", _modes(force_flush=True), *_KEPT),
    plain(
        "force_ignored",
        "A forced flush is not done.",
        _modes(force_flush=False),
        lambda c: modes_of(c).force_flush,
        "no flush is forced",
    ),
    plain(
        "flush_late",
        "The ring is taken to hold L records.",
        Steps(position=lambda p, b, length: max(0, p - 1)),
        *_RECORDS,
    ),
    plain(
        "full_for_circular",
        "A circular flush takes the token into the state.",
        _modes(circular=False),
        lambda c: modes_of(c).circular and _natural(c),
        "there is no circular flush",
    ),
    plain(
        "circular_for_full",
        "A full flush leaves the token in the ring.",
        _modes(circular=True),
        lambda c: not modes_of(c).circular and _natural(c),
        "there is no full flush of a full ring",
    ),
    plain("next_place", "Records go one place too far.", Steps(kept=_next_place), *_APPENDS),
    plain(
        "record_raw_value",
        "The delta's record is halved, as a write strength applied twice would.",
        _recorded(d=lambda d: d * 0.5),
        *_APPENDS,
    ),
    plain("record_undecayed", "The record's log-decay is the decay itself.", _recorded(g=torch.exp), *_APPENDS),
    plain(
        "record_doubled_key",
        "The record's key is not normalised: twice its length.",
        _recorded(k=lambda k: k * 2),
        *_APPENDS,
    ),
    plain("written_on_flush", "A flush into the state writes a record as well.", Steps(kept=_written_on_flush), *_FULL),
    plain("cleared_on_flush", "A flush into the state clears the ring.", Steps(kept=_cleared), *_FULL),
    plain("state_bf16", "The state is rounded to BF16.", Steps(kept=_rounded_state)),
    plain("state_transposed", "The state is read as [K, V].", Steps(memory=_transposed, kept=_restored)),
    plain("slots_ignored", "Request b has slot b.", Steps(slot=lambda i, b, slots: b if i >= 0 else i)),
    plain(
        "padding_wraps",
        "Index -1 is the last slot.",
        Steps(slot=lambda i, b, slots: i if i >= 0 else slots - 1),
        has_padding,
        "no request is padding",
    ),
    plain("padding_left", "The output of padding is not written.", _padding_left, has_padding, "no request is padding"),
    plain(
        "head_map",
        "Value head h reads query head h % H.",
        Steps(heads=_modulo),
        _is_grouped,
        "there is one query head, or as many as value heads",
    ),
    plain("positions_moved", "The kernel moves the write positions on.", _advances),
    Mutant(
        "positions_baked",
        "Write positions are read when the call is bound.",
        lambda: baked("positions_baked", ("write_positions",), Steps()),
        lambda c: c.inputs["ring_d"].shape[2] > 1,
        "a ring of one place is always flushed",
    ),
    Mutant(
        "slots_baked",
        "Slots are read when the call is bound.",
        lambda: baked("slots_baked", ("state_indices",), Steps()),
    ),
)
