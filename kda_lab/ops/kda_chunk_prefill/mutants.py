"""Deliberately wrong prefills, one mistake each: what the gates must reject before they count.

Every mutant works on the memory of the call in FP32, on any device, and would be right without its mistake. A write
strength rounded to BF16 is not among them: it moves outputs by 1.4e-3, which BF16 operands hide, and it comes ready.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from kda_lab.ops.kda.chunked import CHUNK, chunked
from kda_lab.ops.kda.gate import bound_of, log_decay
from kda_lab.ops.kda.geometry import L2_EPSILON
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, recurrent
from kda_lab.ops.kda_chunk_prefill.oracle import Sequence, Tokens, sequences, tokens_of
from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.wrong import all_zero, baked, plain, untouched

Applies = Callable[[Call], bool]
Advance = Callable[[torch.Tensor, Tokens], tuple[torch.Tensor, torch.Tensor]]


def _right(state: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    return recurrent(state, *tokens)


def _same_sequences(call: Call) -> list[Sequence]:
    return sequences(call)


def _same_tokens(tokens: Tokens, call: Call) -> Tokens:
    return tokens


@dataclass(frozen=True)
class _Prefill:
    """The op with replaceable parts; the defaults are right."""

    prepare: Callable[[Tokens, Call], Tokens] = _same_tokens
    advance: Advance = _right
    sequences: Callable[[Call], list[Sequence]] = _same_sequences
    keeps: bool = True
    """Whether states are written back."""
    zeroes: bool = True
    """Whether rows of padding are written."""

    def __call__(self, call: Call) -> None:
        pool, out = call.outputs["state"], call.outputs["out"]
        q, k, v, g, beta = self.prepare(tokens_of(call, torch.float32), call)
        if self.zeroes:
            out.zero_()
        for one in filter(lambda s: s.is_live, self.sequences(call)):
            part = slice(one.first, one.last)
            start = pool[one.slot].float() if one.has_state else torch.zeros_like(pool[one.slot])
            found, state = self.advance(start, (q[part], k[part], v[part], g[part], beta[part]))
            out[part] = found.to(out.dtype)
            if self.keeps:
                pool[one.slot] = state.to(pool.dtype)


def _tokens(name: str, change: Callable[[Tokens, Call], torch.Tensor]) -> _Prefill:
    """The op with one of q, k, v, g, beta computed otherwise."""
    at = ("q", "k", "v", "g", "beta").index(name)

    def prepare(tokens: Tokens, call: Call) -> Tokens:
        return (*tokens[:at], change(tokens, call), *tokens[at + 1 :])  # type: ignore[return-value]

    return _Prefill(prepare=prepare)


def _cut(change: Callable[[Sequence], Sequence]) -> _Prefill:
    return _Prefill(sequences=lambda call: [change(one) for one in sequences(call)])


def _gate(call: Call, **wrong: torch.Tensor | float | None) -> torch.Tensor:
    given: dict[str, Any] = {**call.inputs, "lower_bound": bound_of(call), **wrong}
    return log_decay(given["a"].float(), given["a_log"], given["dt_bias"], given["lower_bound"])


def _other_gate(tokens: Tokens, call: Call) -> torch.Tensor:
    return _gate(call, lower_bound=-5.0 if bound_of(call) is None else None)


def _raw(call: Call, name: str, heads: torch.Tensor | None = None) -> torch.Tensor:
    """Raw q or k [T, HV, K] in FP32, heads mapped rightly unless told otherwise."""
    raw, HV = call.inputs[name].float(), call.inputs["v"].shape[1]
    return raw.repeat_interleave(HV // raw.shape[1], dim=1) if heads is None else raw[:, heads]


def _outside_root(tokens: Tokens, call: Call) -> torch.Tensor:
    raw = _raw(call, "k")
    return raw / (raw.norm(dim=-1, keepdim=True) + L2_EPSILON)


def _modulo(tokens: Tokens, call: Call) -> Tokens:
    heads = torch.arange(call.inputs["v"].shape[1], device=call.device) % call.inputs["q"].shape[1]
    return (normalise_q(_raw(call, "q", heads)), normalise_k(_raw(call, "k", heads)), *tokens[2:])


def _exchanged(tokens: Tokens, call: Call) -> Tokens:
    q, _, v, g, beta = tokens
    return q, normalise_k(v), _raw(call, "k"), g, beta


def _read_before(state: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, g, beta = tokens
    found, last = recurrent(state, *tokens)
    d_and_k = (q * k).sum(-1, keepdim=True)
    # The output after the update less what the token itself added: q·k times its delta.
    outputs = []
    for t in range(len(q)):
        decayed = state * g[t].exp()[..., None, :]
        delta = beta[t][..., None] * (v[t] - (decayed * k[t][..., None, :]).sum(-1))
        outputs.append(found[t] - d_and_k[t] * delta)
        state = decayed + delta[..., None] * k[t][..., None, :]
    return torch.stack(outputs), last


def _transposed(state: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    out, last = recurrent(state.transpose(-1, -2), *tokens)
    return out, last.transpose(-1, -2).contiguous()


def _tail_dropped(state: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    whole = len(tokens[0]) // CHUNK * CHUNK
    q, k, v, g, beta = (x.clone() for x in tokens)
    for x in (q, k, v, g, beta):
        x[whole:] = 0
    return recurrent(state, q, k, v, g, beta)


def _chunks_apart(state: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    outputs = []
    for at in range(0, len(tokens[0]), CHUNK):
        piece = tuple(x[at : at + CHUNK] for x in tokens)
        found, state = recurrent(state if at == 0 else torch.zeros_like(state), *piece)
        outputs.append(found)
    return torch.cat(outputs), state


def _inverse_cut(state: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    """Linear attention: what the state holds for a key is not taken away."""
    q, k, v, g, beta = tokens
    outputs = []
    for t in range(len(q)):
        state = state * g[t].exp()[..., None, :] + (beta[t][..., None] * v[t])[..., None] * k[t][..., None, :]
        outputs.append((state * q[t][..., None, :]).sum(-1))
    return torch.stack(outputs), state


def _crossing(call: Call) -> list[Sequence]:
    """Sequences start where the one before began: chunks are cut through their boundaries."""
    found = sequences(call)
    pairs = zip([found[0], *found], found, strict=False)
    return [replace(b, first=a.first) if a.is_live and b.is_live else b for a, b in pairs]


def _contiguous_pool(call: Call) -> None:
    pool = call.outputs["state"]
    size = pool[0].numel()
    dense = pool.as_strided(pool.shape, (size, *pool.stride()[1:]))
    start = call.with_outputs(state=dense)
    _Prefill()(start)


def _padding_at_last(one: Sequence, slots: int) -> Sequence:
    return replace(one, slot=slots - 1 if one.slot < 0 else one.slot)


def _padding_written(call: Call) -> None:
    slots = call.inputs["state"].shape[0]
    _Prefill(sequences=lambda now: [_padding_at_last(one, slots) for one in sequences(now)])(call)


def _numbered(call: Call) -> list[Sequence]:
    return [replace(one, slot=n if one.slot >= 0 else -1) for n, one in enumerate(sequences(call))]


def _any(test: Callable[[Sequence], bool]) -> Applies:
    """Whether any live sequence has a property."""
    return lambda call: any(one.is_live and test(one) for one in sequences(call))


def _live(call: Call) -> bool:
    return any(one.is_live for one in sequences(call))


def _padded(call: Call) -> bool:
    return any(one.slot < 0 and one.last > one.first for one in sequences(call))


def _square(call: Call) -> bool:
    return call.inputs["state"].shape[-1] == call.inputs["state"].shape[-2] and _any(lambda s: s.has_state)(call)


def _exchangeable(call: Call) -> bool:
    return call.inputs["state"].shape[-1] == call.inputs["state"].shape[-2] and _live(call)


def _strided(call: Call) -> bool:
    pool = call.outputs["state"]
    return pool.stride(0) != pool[0].numel() and any(one.is_live and one.slot > 0 for one in sequences(call))


def _shared(call: Call) -> bool:
    H, HV = call.inputs["q"].shape[1], call.inputs["v"].shape[1]
    return 1 < H < HV and _live(call)


def _tiny(call: Call) -> bool:
    k = call.inputs["k"].float()
    return _live(call) and bool((k.square().sum(-1) < 1e-4).any())


def _reordered(call: Call) -> bool:
    return any(one.is_live and one.slot != n for n, one in enumerate(sequences(call)))


def _neighbours(call: Call) -> bool:
    found = sequences(call)
    return any(a.is_live and b.is_live for a, b in itertools.pairwise(found))


_NONE = "no sequence has tokens and a slot"
_LIVE = (_live, _NONE)
_LONG = (_any(lambda s: s.last - s.first > CHUNK), f"no sequence is longer than a chunk of {CHUNK}")
_STARTS = (_any(lambda s: s.has_state), "every sequence starts from zero")
_FRESH = (_any(lambda s: not s.has_state), "no sequence starts from zero")

MUTANTS: tuple[Mutant, ...] = (
    plain("all_zero", "Writes zeros.", all_zero, *_LIVE),
    plain("untouched", "Writes nothing.", untouched),
    plain("other_gate", "The gate is the other of the two.", _tokens("g", _other_gate), *_LIVE),
    plain("no_decay", "Nothing decays.", _tokens("g", lambda t, c: torch.zeros_like(t[3])), *_LIVE),
    plain("one_head_gate", "A head decays as one.", _tokens("g", lambda t, c: t[3][..., :1].expand_as(t[3])), *_LIVE),
    plain(
        "bias_omitted",
        "dt_bias is not added.",
        _tokens("g", lambda t, c: _gate(c, dt_bias=torch.zeros_like(c.inputs["dt_bias"]))),
        *_LIVE,
    ),
    plain(
        "rate_omitted",
        "exp(A_log) is taken for 1.",
        _tokens("g", lambda t, c: _gate(c, a_log=torch.zeros_like(c.inputs["a_log"]))),
        *_LIVE,
    ),
    plain("beta_one", "The write strength is 1.", _tokens("beta", lambda t, c: torch.ones_like(t[4])), *_LIVE),
    plain("beta_twice", "The sigmoid is applied again.", _tokens("beta", lambda t, c: torch.sigmoid(t[4])), *_LIVE),
    plain("scale_omitted", "q is not scaled.", _tokens("q", lambda t, c: t[0] * t[0].shape[-1] ** 0.5), *_LIVE),
    plain("keys_raw", "k is not normalised.", _tokens("k", lambda t, c: 0.1 * _raw(c, "k")), *_LIVE),
    plain(
        "epsilon_outside",
        "Epsilon is added to the norm, outside of the root.",
        _tokens("k", _outside_root),
        _tiny,
        "no key is so small that epsilon counts",
    ),
    plain(
        "head_map",
        "Value head h reads query head h % H instead of h // (HV // H).",
        _Prefill(prepare=_modulo),
        _shared,
        "each value head has its own query head, or all share one, so both maps agree",
    ),
    plain(
        "exchanged", "k and v are exchanged.", _Prefill(prepare=_exchanged), _exchangeable, "K is not V, or " + _NONE
    ),
    plain("read_before", "The output is read before the update.", _Prefill(advance=_read_before), *_LIVE),
    plain("no_delta", "What the state holds for a key is not taken away.", _Prefill(advance=_inverse_cut), *_LIVE),
    plain(
        "transposed",
        "States are read and written as [K, V].",
        _Prefill(advance=_transposed),
        _square,
        "K is not V, or every sequence starts from zero",
    ),
    plain(
        "tail_dropped",
        "The tokens behind the last whole chunk are left out.",
        _Prefill(advance=_tail_dropped),
        _any(lambda s: (s.last - s.first) % CHUNK > 0),
        "every sequence is whole chunks",
    ),
    plain("chunks_apart", "Every chunk starts from zero.", _Prefill(advance=_chunks_apart), *_LONG),
    plain(
        "crossing",
        "A sequence begins with the tokens of the one before it.",
        _Prefill(sequences=_crossing),
        _neighbours,
        "no two sequences with tokens follow each other",
    ),
    plain("state_ignored", "Every sequence starts from zero.", _cut(lambda s: replace(s, has_state=False)), *_STARTS),
    plain("state_always", "Every sequence starts from its slot.", _cut(lambda s: replace(s, has_state=True)), *_FRESH),
    plain("state_kept", "States are not written back.", _Prefill(keeps=False), *_LIVE),
    plain(
        "slots_numbered",
        "Sequence n works on slot n.",
        _Prefill(sequences=_numbered),
        _reordered,
        "every sequence's slot is its number",
    ),
    plain(
        "stride_ignored",
        "The distance between slots is taken for their size.",
        _contiguous_pool,
        _strided,
        "the pool has no gaps between slots, or only slot 0 is used",
    ),
    plain(
        "padding_unwritten",
        "The rows of padding are left as they were.",
        _Prefill(zeroes=False),
        _padded,
        "no padding sequence has tokens",
    ),
    plain(
        "padding_as_last",
        "Index -1 is taken for the last slot.",
        _padding_written,
        _padded,
        "no padding sequence has tokens",
    ),
    Mutant(
        "lengths_baked",
        "Where sequences lie is read when the call is bound, not when it is launched.",
        lambda: baked("lengths_baked", ("cu_seqlens", "state_indices", "has_state"), _Prefill(advance=chunked)),
        _live,
        _NONE,
    ),
)
