"""The public door of Qwen Sparse Attention (QSA): every stage from raw index keys to attention, one function each.

compress_keys -> block_scores -> topk_blocks -> expand_blocks -> compact_kv -> packed_decode, or paged_decode in the place
of the last two. Each stage runs an exported kernel where one takes the call. Packed decode then raises; the others have
a torch function to fall back to, which serves CPU tensors too.
Importing it loads torch and this package's production column, no Triton: a kernel is imported when a call first selects it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kda_lab.contracts.predicate import show
from kda_lab.dispatch.dispatcher import DISPATCHER
from kda_lab.dispatch.explanation import Explanation
from kda_lab.dispatch.statistics import Statistics
from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import OpSpec
from kda_lab.ops.qsa_block_scores.spec import SPEC as BLOCK_SCORES
from kda_lab.ops.qsa_compact_kv.spec import SPEC as COMPACT_KV
from kda_lab.ops.qsa_compress_keys.spec import SPEC as COMPRESS_KEYS
from kda_lab.ops.qsa_expand_blocks.spec import SPEC as EXPAND_BLOCKS
from kda_lab.ops.qsa_packed_decode.spec import SPEC
from kda_lab.ops.qsa_paged_decode.spec import SPEC as PAGED_DECODE
from kda_lab.ops.qsa_topk_blocks.spec import SPEC as TOPK_BLOCKS

__all__ = [
    "block_scores",
    "compact_kv",
    "compress_keys",
    "expand_blocks",
    "explain",
    "explain_packed_decode",
    "packed_decode",
    "paged_decode",
    "prepare",
    "reset_statistics",
    "statistics",
    "topk_blocks",
]

_SPECS = (COMPRESS_KEYS, BLOCK_SCORES, TOPK_BLOCKS, EXPAND_BLOCKS, COMPACT_KV, SPEC, PAGED_DECODE)
STAGES: dict[str, OpSpec] = {spec.name.removeprefix("qsa."): spec for spec in _SPECS}
"""Specification of each stage by the name of its function here."""


def packed_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    max_seqlen_q: int = 1,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Attend one query row of each sequence to its packed, already selected KV rows.

    out[b, h] = sum_i softmax_i(scale · q[b, h] · k[i, g]) · v[i, g], with g = h // (HQ / HKV) and i
    over the rows cu_seqlens_k[b] <= i < cu_seqlens_k[b + 1]. No causal mask: the selection made it.

    Axes:      B sequences, one query row each. HQ query heads, HKV KV heads, HQ % HKV == 0. D head
               width. N packed KV rows, N >= cu_seqlens_k[B]. The contracts of the exported kernels
               say which extents are served; today at most B 1 to 128, D 256, (HQ, HKV) (24, 2) or (12, 1).
    Args:
        q:            [B, HQ, D] bf16, contiguous; not written.
        k:            [N, HKV, D] bf16, contiguous; rows behind the live end are not read; not written.
        v:            as k.
        cu_seqlens_q: [B+1] int32 on the device of q: 0, 1, …, B; not written.
        cu_seqlens_k: [B+1] int32 on the device of q: prefix sum of the live lengths; not written.
        max_seqlen_k: rows, a bound on every live length, 1 to 2055. It must be the host's bound: the
                      lengths themselves are never read by the host.
        softmax_scale: dimensionless factor of q·k; D^-0.5 when None.
        max_seqlen_q: rows, must be 1.
        out:          [B, HQ, D], dtype and layout of q, overlapping no input; allocated when None.
        kernel:       name of an exported kernel to force, judged by its callable shapes.
    Returns:   out. A sequence without KV rows gets exactly zero.
    Raises:    ContractError, opening with "unsupported QSA call" and one reason per wrong field;
               ParameterError for an unknown kernel; KernelLoadError when a kernel's files disagree
               with its contract. Nothing launched, out untouched. There is no fallback.
    Numerics:  scores and sums in fp32, P rounded to bf16 for its product with V, one rounding at the
               store. Oracle: ops.qsa_packed_decode.oracle. Gates: see the kernel's contract.
    Work:      reads 2·B·HQ·D + 4·S·HKV·D bytes with S = cu_seqlens_k[B] live rows, plus 4·(B+1) bytes
               for cu_seqlens_k, writes 2·B·HQ·D bytes; 4·S·HQ·D FLOPs.
    Launch:    current stream; no device read on the host. Safe in graph capture after one call of the
               same geometry outside it, which imports, compiles and allocates the kernel's workspace.
               State and concurrency: see the contract's `state`. Not differentiable.
    Source:    formula and contract: source thread (sglang PR 36845). Code: written here.
    """
    scalars = {"max_seqlen_k": max_seqlen_k, "softmax_scale": softmax_scale, "max_seqlen_q": max_seqlen_q}
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k)
    return DISPATCHER.call(SPEC, tensors, scalars, {"out": out}, kernel)


def explain_packed_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    max_seqlen_q: int = 1,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> Explanation:
    """Which kernel `packed_decode` would run for these arguments, and why not the others.

    Takes the arguments of `packed_decode`. Print the result. Nothing is launched, imported or counted.

    Raises:
        ParameterError: the forced kernel is not known.
        KernelLoadError: a contract is broken.
    """
    scalars = {"max_seqlen_k": max_seqlen_k, "softmax_scale": softmax_scale, "max_seqlen_q": max_seqlen_q}
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k)
    return DISPATCHER.explain(SPEC, tensors, scalars, {"out": out}, kernel)


def compress_keys(
    k_raw: torch.Tensor,
    requests: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    ring: torch.Tensor,
    weight: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    eps: float | None = None,
    entries: torch.Tensor | None = None,
    entry_slots: torch.Tensor | None = None,
    new_ring: torch.Tensor | None = None,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The compressed key of every group of four tokens that a step completes, and the ring of pending keys after it.

    entries[t] = bf16(rope(rmsnorm(bf16(mean of the group's raw keys), weight + 1), position of its first token)), which
    belongs in the compressed cache at entry_slots[t]. Where token t completes no group both are 0: entry 0 is the trash.

    Axes:      T tokens of a step. R requests in the ring, 4 places each. P positions and W columns of the table.
    Args:
        k_raw:       [T, 128] bf16; a request's tokens are adjacent, at ascending consecutive positions.
        requests, positions: [T] int32; a request is a row of the ring.
        slots:       [T] int64, raw KV slots; those of a group are consecutive from a multiple of 4; 0 is padding.
        ring:        [R, 4, 128] bf16, position p of a request in place p % 4; not written.
        weight:      [128] bf16, the norm's weight less one.
        cos_sin:     [P, W] fp32, W/2 cosines, then W/2 sines.
        eps:         of the norm; 1e-6 when None.
        entries:     [T, 128] bf16; allocated when None.
        entry_slots: [T] int64; allocated when None.
        new_ring:    [R, 4, 128] bf16; allocated when None; may not be `ring`.
        kernel:      name of an exported kernel to force.
    Returns:   entries, entry_slots, new_ring.
    Raises:    ContractError where no kernel nor the torch function takes the call; ParameterError for an unknown
               kernel; KernelLoadError as `packed_decode`.
    Numerics:  mean, norm and rotation in fp32, one rounding behind the mean and one at the store.
    Work:      a call reads and writes its buffers once.
    Launch:    current stream; no device read on the host; safe in graph capture after one call outside of it. No state.
    Source:    sglang, QSA indexer. Code: written here.
    """
    tensors = (k_raw, requests, positions, slots, ring, weight, cos_sin)
    outputs = {"entries": entries, "entry_slots": entry_slots, "new_ring": new_ring}
    return DISPATCHER.call(COMPRESS_KEYS, tensors, {"eps": eps}, outputs, kernel)


def block_scores(
    q_index: torch.Tensor,
    keys: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scores: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Score each row's compressed keys: 128^-0.5 · sum_h max(0, q_index[b, h] · key), -inf at and behind its length.

    Axes:      B rows, HI index heads, S entries of the pool in pages of 16, N = 16 times the pages of a row.
    Args:
        q_index: [B, HI, 128] bf16, normalised and rotated.
        keys:    [S, 128] bf16.
        pages:   [B, N/16] int32, page ids, -1 where unused; read below the lengths only.
        lengths: [B] int32, compressed keys of each row.
        scores:  [B, N] fp32; allocated when None.
        kernel:  name of an exported kernel to force.
    Returns:   scores.
    Raises:    as `compress_keys`.
    Numerics:  products of bf16, sums in fp32, no rounding. Oracle: ops.qsa_block_scores.oracle.
    Work:      reads 256 bytes a live key, writes 4·B·N bytes; 256·HI FLOPs a live key.
    Launch:    as `compress_keys`.
    Source:    sglang, QSA indexer. Code: written here.
    """
    return DISPATCHER.call(BLOCK_SCORES, (q_index, keys, pages, lengths), {}, {"scores": scores}, kernel)


def topk_blocks(
    scores: torch.Tensor,
    lengths: torch.Tensor,
    *,
    k: int = 512,
    blocks: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Choose the k best-scored blocks of each row: ascending ids, ties to the lower id, -1 behind them.

    Axes:      B rows, N scores a row.
    Args:
        scores:  [B, N] fp32; what stands at or behind a row's length is not used. A NaN counts as -inf.
        lengths: [B] int32, compressed keys of each row, 0 to N.
        k:       ids a row.
        blocks:  [B, k] int32; allocated when None.
        kernel:  name of an exported kernel to force.
    Returns:   blocks: all ids of a row that has no more than k.
    Raises:    as `compress_keys`.
    Numerics:  comparisons of fp32 only; equal bits everywhere. Oracle: ops.qsa_topk_blocks.oracle.
    Work:      reads 4 bytes a live score of rows longer than k, writes 4·B·k bytes; no FLOPs.
    Launch:    as `compress_keys`.
    Source:    sglang, QSA indexer. Code: written here.
    """
    return DISPATCHER.call(TOPK_BLOCKS, (scores, lengths), {"k": k}, {"blocks": blocks}, kernel)


def expand_blocks(
    blocks: torch.Tensor,
    lengths: torch.Tensor,
    positions: torch.Tensor,
    *,
    ratio: int = 4,
    tokens: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Name the tokens of each row's blocks and of its incomplete tail: valid ids first, then -1.

    Axes:      B rows, k blocks a row.
    Args:
        blocks:    [B, k] int32; a negative id is no block, wherever it stands.
        lengths:   [B] int32, tokens of the row's request: none at or behind it is named.
        positions: [B] int32: the tail is ratio·((position + 1) // ratio) to position.
        ratio:     tokens a block.
        tokens:    [B, k·ratio + ratio - 1] int32; allocated when None.
        kernel:    name of an exported kernel to force.
    Returns:   tokens, in the order of the blocks: 2051 columns for 512 blocks of 4.
    Raises:    as `compress_keys`.
    Numerics:  integers. Oracle: ops.qsa_expand_blocks.oracle.
    Work:      reads 4·B·(k + 2) bytes, writes 4·B·(k·ratio + ratio - 1) bytes; no FLOPs.
    Launch:    as `compress_keys`.
    Source:    sglang, QSA metadata. Code: written here.
    """
    return DISPATCHER.call(EXPAND_BLOCKS, (blocks, lengths, positions), {"ratio": ratio}, {"tokens": tokens}, kernel)


def compact_kv(
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    requests: torch.Tensor,
    req_to_slot: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    *,
    packed_k: torch.Tensor | None = None,
    packed_v: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Copy the KV rows of every valid token out of the pools, row behind row, in the order of the columns.

    packed[cu_seqlens_k[b] + i] = pool[req_to_slot[requests[b], t]] for the i-th valid token t of row b.

    Axes:      B rows of W columns, R requests, S slots, HKV heads, N packed rows.
    Args:
        tokens:       [B, W] int32; valid where 0 <= token < lengths[b]; holes may stand anywhere.
        lengths:      [B] int32, tokens of the row's request.
        requests:     [B] int32, rows of the table.
        req_to_slot:  [R, maxlen] int32; its entries at valid tokens must be slots of the pools, which is not checked.
        k_pool, v_pool: [S, HKV, 256] bf16; any S, also beyond 2^31 elements.
        packed_k, packed_v: [N, HKV, 256] bf16, N at least the number of valid tokens; B·W rows when None.
        cu_seqlens_k: [B+1] int32; allocated when None.
        kernel:       name of an exported kernel to force.
    Returns:   packed_k and packed_v, zero behind cu_seqlens_k[B], and cu_seqlens_k: what `packed_decode` takes.
    Raises:    as `compress_keys`.
    Numerics:  copies, equal to the pools' rows bit by bit. Oracle: ops.qsa_compact_kv.oracle.
    Work:      reads 1024·HKV bytes a valid token and the indices, writes 1024·N·HKV bytes; no FLOPs.
    Launch:    as `compress_keys`.
    Source:    source thread (sglang PR 36845), with holes compacted. Code: written here.
    """
    tensors = (tokens, lengths, requests, req_to_slot, k_pool, v_pool)
    outputs = {"packed_k": packed_k, "packed_v": packed_v, "cu_seqlens_k": cu_seqlens_k}
    return DISPATCHER.call(COMPACT_KV, tensors, {}, outputs, kernel)


def paged_decode(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    requests: torch.Tensor,
    req_to_slot: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Attend one query row of each sequence to its selected tokens, straight from the paged pools: no packed rows.

    Axes:      B rows, HQ query heads, HKV KV heads, D head width, W columns, R requests, S slots.
    Args:
        q:             [B, HQ, D] bf16.
        k_pool, v_pool: [S, HKV, D] bf16.
        tokens, lengths, requests, req_to_slot: as `compact_kv`.
        softmax_scale: dimensionless factor of q·k; D^-0.5 when None.
        out:           [B, HQ, D] bf16; allocated when None.
        kernel:        name of an exported kernel to force.
    Returns:   out. A row without a valid token gets exactly zero.
    Raises:    as `compress_keys`.
    Numerics:  as `packed_decode`. Oracle: ops.qsa_paged_decode.oracle.
    Work:      reads 4·HKV·D bytes a valid token, the indices and q, writes 2·B·HQ·D bytes; 4·HQ·D FLOPs a valid token.
    Launch:    as `packed_decode`.
    Source:    sglang issue 36787. Code: written here.
    """
    tensors = (q, k_pool, v_pool, tokens, lengths, requests, req_to_slot)
    return DISPATCHER.call(PAGED_DECODE, tensors, {"softmax_scale": softmax_scale}, {"out": out}, kernel)


def explain(
    stage: str,
    tensors: Sequence[torch.Tensor],
    scalars: Mapping[str, Any] | None = None,
    outputs: Mapping[str, torch.Tensor | None] | None = None,
    kernel: str | None = None,
) -> Explanation:
    """Which kernel or fallback a stage would run, and why not the others. Nothing is launched, imported or counted.

    Args:
        stage: name of a function of this module, such as `compact_kv`.
        tensors: its positional arguments, all of them.
        scalars: its scalars by name; what is left out counts as None.
        outputs: given output buffers by name.
        kernel: name of an exported kernel to force.

    Raises:
        ParameterError: the stage or the forced kernel is not known, or the number of tensors is another.
        KernelLoadError: a contract is broken.
    """
    if stage not in STAGES:
        raise ParameterError("qsa", [Reason("stage", show(stage), ", ".join(map(repr, STAGES)))])
    spec = STAGES[stage]
    every = {**dict.fromkeys(spec.scalars), **(scalars or {})}
    return DISPATCHER.explain(spec, tensors, every, {**dict.fromkeys(spec.outputs), **(outputs or {})}, kernel)


def prepare() -> tuple[str, ...]:
    """Import every exported kernel of every QSA stage now; returns their names. Call it before a graph capture.

    Raises:
        KernelLoadError: a kernel's files disagree with its contract.
    """
    return tuple(name for spec in STAGES.values() for name in DISPATCHER.prepare(spec))


def statistics() -> Statistics:
    """Hits, fallbacks and refusals of this process since its start or the last reset, all ops."""
    return DISPATCHER.statistics()


def reset_statistics() -> None:
    """Put every count back to zero."""
    DISPATCHER.reset_statistics()
