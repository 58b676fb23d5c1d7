"""What `kda.chunk_prefill` must compute: the shared recurrence over packed sequences, and the chunked form's emulation.

Sequence n is the tokens cu_seqlens[n] to cu_seqlens[n + 1] and works on slot s = state_indices[n] of the pool. It starts
from the slot's state where has_state[n] says so, else from zero, and leaves its last state there. -1 is padding: zero
rows, and no state is touched. A sequence without tokens leaves its slot as it is, and so does the call every slot that
it does not name. q and k are normalised with 1e-6 inside the root, q is scaled by 1/sqrt(K), beta comes ready.

Oracles read `call.inputs` only. They look at lengths and indices on the host, so none may run inside graph capture.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda.chunked import chunked
from kda_lab.ops.kda.gate import bound_of, log_decay
from kda_lab.ops.kda.geometry import query_head
from kda_lab.ops.kda.recurrence import normalise_k, normalise_q, recurrent
from kda_lab.ops.precision import full_fp32
from kda_lab.ops.protocol import Call

ROOM = "kda.chunk_prefill"
Tensors = dict[str, torch.Tensor]
Tokens = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Advance = Callable[[torch.Tensor, Tokens], tuple[torch.Tensor, torch.Tensor]]
"""State [HV, V, K] and q, k, v, g, beta of a sequence to its outputs [T, HV, V] and its last state."""

OUT_ALLOWED = 0.1
"""Most error of an output element, relative to the root mean square of its (token, head): see README.md."""
HEAD_ALLOWED = 0.02
"""The same relative to its head over the whole sequence, for tokens whose parts nearly cancel."""
STATE_ALLOWED = 0.1
"""Most error of a state element, relative to the root mean square of its head's state."""
ELEMENT_ALLOWED = 0.05
"""The same relative to the element itself: channels that hardly decay stand out of their head."""
SMALLEST = 1e-30
"""Allowed of any element that is computed: FP32 flushes what FP64 keeps far below it."""


@dataclass(frozen=True)
class Sequence:
    """One sequence of a call: which tokens, and where its state lies."""

    first: int
    last: int
    """Behind its last token."""
    slot: int
    """-1: padding."""
    has_state: bool

    @property
    def is_live(self) -> bool:
        """Whether it reads and writes a state."""
        return self.slot >= 0 and self.last > self.first


def sequences(call: Call) -> list[Sequence]:
    """The sequences of a call, read on the host.

    Raises:
        ParameterError: offsets that do not run from 0 to T, or an index that leaves the pool or occurs twice.
    """
    i = call.inputs
    ends, slots, has = i["cu_seqlens"].tolist(), i["state_indices"].tolist(), i["has_state"].tolist()
    reasons, pool = [], i["state"].shape[0]
    if ends[0] != 0 or ends[-1] != i["q"].shape[0] or any(a > b for a, b in itertools.pairwise(ends)):
        reasons.append(Reason("cu_seqlens", repr(ends), f"rising from 0 to T, {i['q'].shape[0]}"))
    named = [slot for slot in slots if slot != -1]
    if len(set(named)) < len(named) or any(not 0 <= slot < pool for slot in named):
        reasons.append(Reason("state_indices", repr(slots), f"-1, or distinct slots from 0 to {pool - 1}"))
    if reasons:
        raise ParameterError(ROOM, reasons)
    return [Sequence(*row) for row in zip(ends, ends[1:], slots, map(bool, has), strict=False)]


def tokens_of(call: Call, dtype: torch.dtype) -> Tokens:
    """q, k, v, g and beta of all tokens in `dtype`, heads mapped, q and k normalised."""
    i = call.inputs
    heads = query_head(i["v"].shape[1], i["q"].shape[1]).to(call.device)
    a, a_log, dt_bias = (i[n].to(dtype) for n in ("a", "a_log", "dt_bias"))
    g = log_decay(a, a_log, dt_bias, bound_of(call))
    q, k = normalise_q(i["q"].to(dtype))[:, heads], normalise_k(i["k"].to(dtype))[:, heads]
    return q, k, i["v"].to(dtype), g, i["beta"].to(dtype)


def oracle_fp32(call: Call) -> Tensors:
    """The op token by token in FP32, unrounded: `out` and the whole pool `state`."""
    return compute(call, torch.float32, _recurrent)


def oracle_fp64(call: Call) -> Tensors:
    """The same in FP64, the arbiter."""
    return compute(call, torch.float64, _recurrent)


def oracle_chunked(call: Call) -> Tensors:
    """The same in FP64 by another road: chunks and matrix products, a second reference."""
    return compute(call, torch.float64, chunked)


def emulate(call: Call) -> Tensors:
    """What a right tensor-core kernel returns: BF16 operands, FP32 sums and states, one rounding of the output."""

    def advance(state: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        return chunked(state, tokens, operand=torch.bfloat16)

    with full_fp32():
        found = compute(call, torch.float32, advance)
    return {"out": found["out"].to(call.inputs["v"].dtype), "state": found["state"].to(call.inputs["state"].dtype)}


def compute(call: Call, dtype: torch.dtype, advance: Advance) -> Tensors:
    """The op with one way to advance a sequence: `{"out": [T, HV, V], "state": [S, HV, V, K]}` in `dtype`."""
    q, k, v, g, beta = tokens_of(call, dtype)
    out, pool = torch.zeros_like(v), call.inputs["state"].to(dtype).clone()
    for sequence in filter(lambda s: s.is_live, sequences(call)):
        part = slice(sequence.first, sequence.last)
        start = pool[sequence.slot] if sequence.has_state else torch.zeros_like(pool[sequence.slot])
        out[part], pool[sequence.slot] = advance(start, (q[part], k[part], v[part], g[part], beta[part]))
    return {"out": out, "state": pool}


def allowance(call: Call, exact: Tensors) -> Tensors:
    """Most error of each element against the FP64 result; 0 for padding and for slots that keep their bits."""
    out, pool = torch.zeros_like(exact["out"]), torch.zeros_like(exact["state"])
    for sequence in filter(lambda s: s.is_live, sequences(call)):
        part, size = slice(sequence.first, sequence.last), exact["out"][sequence.first : sequence.last].square()
        row, head = size.mean(-1, keepdim=True).sqrt(), size.mean((0, 2), keepdim=True).sqrt()
        out[part] = (SMALLEST + OUT_ALLOWED * row + HEAD_ALLOWED * head).expand(size.shape)
        state = exact["state"][sequence.slot]
        head = state.square().mean((-1, -2), keepdim=True).sqrt()
        pool[sequence.slot] = SMALLEST + STATE_ALLOWED * head + ELEMENT_ALLOWED * state.abs()
    return {"out": out, "state": pool}


def _recurrent(state: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    return recurrent(state, *tokens)
