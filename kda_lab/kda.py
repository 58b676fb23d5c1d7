"""The public door of Kimi Delta Attention (KDA): decode, speculative verification, prefill and attention residuals.

Each function runs an exported kernel where one takes the call, and otherwise a torch function, on CPU tensors too. A
tensor that a function updates in place is passed by position and written where it lies, with any strides of its leading
axes (slots, layers). A negative slot index is padding: zero output, and no slot is read or written.
Every function raises ContractError, with one reason per wrong field and nothing launched, where nothing may run;
ParameterError for an unknown `kernel`; KernelLoadError where a kernel's files disagree with its contract.
Importing it loads torch and this package's production column, no Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kda_lab.contracts.predicate import show
from kda_lab.dispatch.dispatcher import DISPATCHER
from kda_lab.dispatch.explanation import Explanation
from kda_lab.dispatch.kda_shapes import SPECS
from kda_lab.dispatch.statistics import Statistics
from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.kda_attn_residuals.spec import SPEC as ATTN_RESIDUALS
from kda_lab.ops.kda_chunk_prefill.spec import SPEC as CHUNK_PREFILL
from kda_lab.ops.kda_fold.spec import SPEC as FOLD
from kda_lab.ops.kda_fused_decode.spec import SPEC as FUSED_DECODE
from kda_lab.ops.kda_packed_decode.spec import SPEC as PACKED_DECODE
from kda_lab.ops.kda_replay_decode.spec import SPEC as REPLAY_DECODE
from kda_lab.ops.kda_verify_ring.spec import SPEC as VERIFY_RING
from kda_lab.ops.kda_verify_snapshots.spec import SPEC as VERIFY_SNAPSHOTS
from kda_lab.ops.protocol import OpSpec

Tensor = torch.Tensor
OPS: dict[str, OpSpec] = {spec.name.removeprefix("kda."): spec for spec in SPECS}
"""Specification of each op by the name of its function here."""


def packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    state_indices: Tensor,
    *,
    lower_bound: float | None,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """One token of each request: S ← S e^g; S ← S + β (v - S k̂) k̂ᵀ; o = S q̂, read behind the update.

    Axes:      B requests, H query and key heads, HV value heads (head h reads query head h // (HV / H)), K and V widths.
    Args:
        mixed_qkv:     [B, 2·H·K + HV·V] bf16, behind the convolution: q heads, k heads, v heads; any row stride.
        a, b:          [B, HV·K] and [B, HV] bf16, raw gate and raw β = sigmoid(b); any row stride.
        a_log, dt_bias: [HV] and [HV·K] fp32.
        state:         [slots, HV, V, K] fp32 or bf16, updated in place; any slot stride.
        state_indices: [B] int32, distinct where not negative.
        lower_bound:   g = lower_bound · sigmoid(e^a_log · (a + dt_bias)), -5 to below 0; None for
                       g = -e^a_log · softplus(a + dt_bias). It must be the model's: the other gate gives plausible text.
        out:           [B, 1, HV, V] bf16; allocated when None. kernel: name of an exported kernel to force.
    Returns:   out.
    Raises:    see the module.
    Numerics:  FP32; q̂ = K^-0.5 · q / √(Σq² + 1e-6), k̂ likewise; one rounding at each store. Oracle: ops.kda_packed_decode.
    Work:      reads and writes 8·V·K bytes a (request, value head) of an fp32 state; 7·V·K FLOPs.
    Launch:    current stream; no device read on the host; safe in graph capture after one call of the same geometry.
    Source:    source thread (sglang PR 32890). Code: written here.
    """
    tensors = (mixed_qkv, a, b, a_log, dt_bias, state, state_indices)
    return DISPATCHER.call(PACKED_DECODE, tensors, {"lower_bound": lower_bound}, {"out": out}, kernel)


def fused_decode(
    mixed_qkv: Tensor,
    conv_state: Tensor,
    conv_weight: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    gate: Tensor,
    norm_weight: Tensor,
    state: Tensor,
    state_indices: Tensor,
    *,
    lower_bound: float | None,
    epsilon: float = 1e-5,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """`packed_decode` with the convolution before it and the gated norm behind it, in one launch of a kernel.

    Axes:      as `packed_decode` with H = HV and K = V; P = HV·V.
    Args:
        mixed_qkv:   [B, 3·P] bf16, raw.
        conv_state:  [slots, 3, 3·P] bf16, the last three rows, oldest first; updated in place.
        conv_weight: [4, 3·P] fp32, oldest first.
        a, b, a_log, dt_bias, state, state_indices, lower_bound, kernel: as `packed_decode`.
        gate:        [B, P] bf16, raw. norm_weight: [V] fp32. epsilon: of the norm.
        out:         [B, P] bf16; allocated when None.
    Returns:   out = o / √(mean o² + epsilon) · norm_weight · sigmoid(gate), o in FP32.
    Raises:    see the module.
    Numerics:  the convolved row is rounded to bf16 before the recurrence, as apart. Oracle: ops.kda_fused_decode.
    Work:      that of `packed_decode` and 44·P bytes a request.
    Launch:    as `packed_decode`.
    Source:    as `packed_decode`.
    """
    tensors = (mixed_qkv, conv_state, conv_weight, a, b, a_log, dt_bias, gate, norm_weight, state, state_indices)
    scalars = {"lower_bound": lower_bound, "epsilon": epsilon}
    return DISPATCHER.call(FUSED_DECODE, tensors, scalars, {"out": out}, kernel)


def verify_snapshots(
    mixed_qkv: Tensor,
    conv_state: Tensor,
    conv_weight: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    state_indices: Tensor,
    *,
    lower_bound: float | None,
    out: Tensor | None = None,
    windows: Tensor | None = None,
    snapshots: Tensor | None = None,
    kernel: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """T drafted tokens of each request from its slots, which stay as they are, with window and state behind each token.

    Axes:      as `packed_decode`, T tokens, C = 2·H·K + HV·V.
    Args:
        mixed_qkv:   [B, T, C] bf16, raw.
        conv_state:  [slots, 3, C] bf16, oldest first. conv_weight: [4, C] bf16.
        a, b:        [B, T, HV·K] and [B, T, HV] bf16, raw.
        state:       [slots, HV, V, K] fp32.
        a_log, dt_bias, state_indices, lower_bound, kernel: as `packed_decode`.
        out:         [B, T, HV, V] bf16. windows: [B, T, 3, C] bf16. snapshots: [B, T, HV, V, K] fp32.
    Returns:   out, windows, snapshots; each allocated when None, and zero in rows of padding.
    Raises:    see the module.
    Numerics:  as `packed_decode`, the convolved row rounded to bf16.
    Work:      reads a state and writes T, 4·V·K bytes each, a (request, value head).
    Launch:    as `packed_decode`.
    Source:    as `packed_decode`.
    """
    tensors = (mixed_qkv, conv_state, conv_weight, a, b, a_log, dt_bias, state, state_indices)
    outputs = {"out": out, "windows": windows, "snapshots": snapshots}
    return DISPATCHER.call(VERIFY_SNAPSHOTS, tensors, {"lower_bound": lower_bound}, outputs, kernel)


def verify_ring(
    mixed_qkv: Tensor,
    conv_state: Tensor,
    conv_weight: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    state_indices: Tensor,
    *,
    lower_bound: float | None,
    out: Tensor | None = None,
    windows: Tensor | None = None,
    ring_k: Tensor | None = None,
    ring_v: Tensor | None = None,
    ring_g: Tensor | None = None,
    ring_beta: Tensor | None = None,
    kernel: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`verify_snapshots` with what makes each state again in the place of the states: `fold` applies it.

    Axes:      as `verify_snapshots`.
    Args:
        ring_k, ring_v: [B, T, H, K] and [B, T, HV, V] bf16, behind the convolution, before normalisation.
        ring_g, ring_beta: [B, T, HV, K] log-decay and [B, T, HV] β, fp32.
        The others: as `verify_snapshots`.
    Returns:   out, windows, ring_k, ring_v, ring_g, ring_beta; each allocated when None, and zero in rows of padding.
    Raises:    see the module.
    Numerics:  as `verify_snapshots`; out and windows have the same bits from the kernels of both.
    Work:      reads a state, 4·V·K bytes a (request, value head), and writes no state.
    Launch:    as `packed_decode`.
    Source:    as `packed_decode`.
    """
    tensors = (mixed_qkv, conv_state, conv_weight, a, b, a_log, dt_bias, state, state_indices)
    rings = {"ring_k": ring_k, "ring_v": ring_v, "ring_g": ring_g, "ring_beta": ring_beta}
    outputs = {"out": out, "windows": windows, **rings}
    return DISPATCHER.call(VERIFY_RING, tensors, {"lower_bound": lower_bound}, outputs, kernel)


def fold(
    ring_k: Tensor,
    ring_v: Tensor,
    ring_g: Tensor,
    ring_beta: Tensor,
    state: Tensor,
    state_indices: Tensor,
    accepted: Tensor,
    *,
    kernel: str | None = None,
) -> Tensor:
    """Apply the first accepted[b] tokens of each request's ring to its state, in all layers at once.

    Axes:      as `verify_ring`, with layers in front; one slot of a request in every layer.
    Args:
        ring_k, ring_v, ring_g, ring_beta: as `verify_ring` gives them, each [layers, …].
        state:         [layers, slots, HV, V, K] fp32, updated in place; 0 accepted tokens keep the bits.
        state_indices: [B] int32, distinct where not negative.
        accepted:      [B] int32, 0 to T. kernel: as `packed_decode`.
    Returns:   state.
    Raises:    see the module.
    Numerics:  FP32, as the steps of `verify_ring`.
    Work:      reads and writes a state, 8·V·K bytes a (layer, request, value head).
    Launch:    as `packed_decode`.
    Source:    as `packed_decode`.
    """
    tensors = (ring_k, ring_v, ring_g, ring_beta, state, state_indices, accepted)
    return DISPATCHER.call(FOLD, tensors, {}, {}, kernel)


def replay_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    ring_d: Tensor,
    ring_k: Tensor,
    ring_g: Tensor,
    write_positions: Tensor,
    state_indices: Tensor,
    *,
    lower_bound: float | None,
    circular: bool = False,
    predecayed: bool = False,
    force_flush: bool = False,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """`packed_decode` that leaves the state alone until its ring of L tokens is full, and replays the ring instead.

    Axes:      as `packed_decode`, L places of the ring.
    Args:
        state:           [slots, HV, V, K] fp32, updated in place where a slot flushes.
        ring_d:          [slots, HV, L, V] bf16, updated in place: β (v - S k̂) of the tokens since.
        ring_k:          [slots, H, L, K] bf16, updated in place: k̂; [slots, HV, L, K] bf16 or fp32 with `predecayed`.
        ring_g:          [slots, HV, L, K] fp32, updated in place: log-decays of the tokens.
        write_positions: [slots] int32: tokens in the ring of a slot. The caller advances it: one more, and behind a
                         flush 0, or 1 where `circular` and not forced.
        circular:        a full ring flushes its history and begins anew with this token, instead of flushing all.
        predecayed:      ring_k is kept divided by the decay so far, and ring_g adds up; needs H = HV and a short ring.
        force_flush:     every slot flushes all. The others: as `packed_decode`.
    Returns:   out, [B, 1, HV, V] bf16.
    Raises:    see the module.
    Numerics:  as `packed_decode`, with d and k̂ rounded as they are kept.
    Work:      reads 4·V·K bytes of a state and the ring; writes a record, or the state when it flushes.
    Launch:    as `packed_decode`.
    Source:    sglang PRs 28511 and 37739. Code: written here.
    """
    tensors = (mixed_qkv, a, b, a_log, dt_bias, state, ring_d, ring_k, ring_g, write_positions, state_indices)
    flags = {"circular": circular, "predecayed": predecayed, "force_flush": force_flush}
    scalars = {"lower_bound": lower_bound, **flags}
    return DISPATCHER.call(REPLAY_DECODE, tensors, scalars, {"out": out}, kernel)


def chunk_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    beta: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    state: Tensor,
    state_indices: Tensor,
    has_state: Tensor,
    *,
    lower_bound: float | None,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """The recurrence of `packed_decode` over packed sequences, in chunks of matrix products.

    Axes:      T tokens of N sequences; H, HV, K, V as `packed_decode`.
    Args:
        q, k:       [T, H, K] bf16, before normalisation. v: [T, HV, V] bf16.
        a:          [T, HV·K] bf16, raw gate. beta: [T, HV] fp32, behind the sigmoid.
        cu_seqlens: [N+1] int32: sequence n is tokens cu_seqlens[n] to cu_seqlens[n + 1].
        state:      [slots, HV, V, K] fp32, updated in place: the state behind each sequence that has tokens.
        state_indices: [N] int32. has_state: [N] bool or uint8; where it is 0 the sequence starts from zero.
        a_log, dt_bias, lower_bound, kernel: as `packed_decode`.
        out:        [T, HV, V] bf16; allocated when None.
    Returns:   out.
    Raises:    see the module.
    Numerics:  FP32 sums; finite for either gate. Oracle: ops.kda_chunk_prefill.
    Work:      reads and writes its operands once: 2·(2·H·K + HV·(2·V + K)) + 4·HV bytes a token.
    Launch:    as `packed_decode`.
    Source:    as `packed_decode`.
    """
    tensors = (q, k, v, a, beta, a_log, dt_bias, cu_seqlens, state, state_indices, has_state)
    return DISPATCHER.call(CHUNK_PREFILL, tensors, {"lower_bound": lower_bound}, {"out": out}, kernel)


def attn_residuals(
    bank: Tensor,
    prefix: Tensor,
    delta: Tensor,
    score_weight: Tensor,
    out_weight: Tensor,
    *,
    valid: int,
    write_prefix: bool,
    add_delta: bool,
    epsilon: float = 1e-6,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """RMS norm of a token's mix of its saved snapshots and its running stream, by a softmax over their scores.

    Axes:      T tokens, NB snapshots of room, D width.
    Args:
        bank:         [T, NB, D] bf16; with `write_prefix` snapshot `valid` becomes the stream, bit for bit, in place.
        prefix:       [T, D] bf16, the stream; with `add_delta` updated in place to bf16(prefix + delta) before all else.
        delta:        [T, D] bf16.
        score_weight: [D] fp32: a row's score is Σ row · score_weight / √(mean row² + epsilon).
        out_weight:   [D] fp32, of the norm.
        valid:        snapshots that are mixed, 0 to NB.
        out:          [T, D] bf16; allocated when None. kernel: as `packed_decode`.
    Returns:   out.
    Raises:    see the module.
    Numerics:  FP32, one rounding at each store. Oracle: ops.kda_attn_residuals.
    Work:      reads 2·D·(valid + 1) bytes a token, 2·D more with `add_delta`, and writes 2·D for each row written.
    Launch:    as `packed_decode`.
    Source:    as `packed_decode`.
    """
    tensors = (bank, prefix, delta, score_weight, out_weight)
    scalars = {"valid": valid, "write_prefix": write_prefix, "add_delta": add_delta, "epsilon": epsilon}
    return DISPATCHER.call(ATTN_RESIDUALS, tensors, scalars, {"out": out}, kernel)


def explain(
    op: str,
    tensors: Sequence[Tensor],
    scalars: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Tensor | None] | None = None,
    kernel: str | None = None,
) -> Explanation:
    """Which kernel or fallback the function `op` would run, and why not the others. Nothing is launched or counted.

    Args:
        tensors: its positional arguments, all of them.
        scalars, outputs: its keywords; what is left out counts as None.

    Raises:
        ParameterError: the op or the forced kernel is not known, or the number of tensors is another.
        KernelLoadError: a contract is broken.
    """
    if op not in OPS:
        raise ParameterError("kda", [Reason("op", show(op), ", ".join(map(repr, OPS)))])
    spec = OPS[op]
    return DISPATCHER.explain(spec, tensors, {**dict.fromkeys(spec.scalars), **(scalars or {})}, outputs or {}, kernel)


def prepare() -> tuple[str, ...]:
    """Import every exported kernel of every KDA op now; returns their names. Call it before a graph capture.

    Raises:
        KernelLoadError: a kernel's files disagree with its contract.
    """
    return tuple(name for spec in OPS.values() for name in DISPATCHER.prepare(spec))


def statistics() -> Statistics:
    """Hits, fallbacks and refusals of this process since its start or the last reset, all ops."""
    return DISPATCHER.statistics()


def reset_statistics() -> None:
    """Put every count back to zero."""
    DISPATCHER.reset_statistics()
