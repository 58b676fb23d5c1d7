"""QSA packed decode: the query heads of one KV head share a program, long rows are split over programs.

Each KV row is loaded once for all twelve query heads of its group. Scores and outputs use BF16
tensor-core products with FP32 accumulation; softmax runs in base 2 on FP32 scores; P is rounded to
BF16 for the second product while the running sum keeps the unrounded P. A row is split by its live
length, read on the device, so a captured graph may be replayed with other lengths. Splits are merged
in their fixed order within the same launch: one kernel a call, deterministic bits, nothing to clear.

Two ways to merge. In small launches every program waits for its row's others and merges a share of D;
the launch is cooperative, so the hardware starts it only when all its programs are resident and none
can wait for one that never runs. In large launches, where a row has few splits, the program that
arrives last merges alone.

Imports torch and triton only. Idea and contract: source thread sglang PR 36845; code written here.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

HEAD_DIM = 256
GROUP = 12
BLOCK_M = 16
BLOCK_D = 16
MERGE_BLOCK_D = 256
ROUND = 1 << 16
MAX_BATCH = 128
MAX_SEQLEN_K = 2055
LOG2_E = 1.4426950408889634
TOPOLOGIES = ((24, 2), (12, 1))


@dataclass(frozen=True)
class Schedule:
    """How one launch is cut: at most `splits` programs a row, KV tiles of `block_k` rows."""

    splits: int
    block_k: int
    min_tiles: int
    """A split gets at least this many tiles, so short rows do not pay for a merge."""
    num_warps: int
    num_stages: int
    cooperative: bool = False
    """Every program merges a share of its row, for which all of them must be resident; else the last one merges all."""
    min_splits: int = 2
    """A row that would get fewer splits is not split: few programs would merge many slices one after another."""


# (most rows x KV heads, schedule); the first entry that fits is used. Measured on one H200 (SM90, 132 SMs,
# torch 2.11, Triton 3.6): within 6 % of the best of 95 schedules on medium and saturated rows of each size.
SCHEDULES_SM90 = (
    (4, Schedule(33, 32, min_tiles=1, num_warps=4, num_stages=3, cooperative=True, min_splits=6)),
    (8, Schedule(16, 32, min_tiles=1, num_warps=4, num_stages=4, cooperative=True, min_splits=6)),
    (24, Schedule(8, 32, min_tiles=1, num_warps=4, num_stages=4, cooperative=True, min_splits=6)),
    (32, Schedule(4, 64, min_tiles=1, num_warps=4, num_stages=3)),
    (64, Schedule(2, 64, min_tiles=2, num_warps=8, num_stages=3)),
    (128, Schedule(1, 64, min_tiles=1, num_warps=4, num_stages=3)),
    (256, Schedule(1, 32, min_tiles=1, num_warps=4, num_stages=3)),
)
# SM120 and SM121 have 99 KB of shared memory a block: smaller tiles. Compiled, never measured.
SCHEDULES_99_KB = (
    (8, Schedule(8, 32, min_tiles=2, num_warps=4, num_stages=3)),
    (32, Schedule(4, 32, min_tiles=4, num_warps=4, num_stages=3)),
    (256, Schedule(1, 32, min_tiles=1, num_warps=4, num_stages=3)),
)
SMALL_SHARED_MEMORY = ((12, 0), (12, 1))
MOST_PARTIALS = max(most * s.splits for most, s in (*SCHEDULES_SM90, *SCHEDULES_99_KB) if s.splits > 1)
SCRATCH_BYTES = MOST_PARTIALS * BLOCK_M * (HEAD_DIM + 2) * 4 + MAX_BATCH * 2 * 4


def schedules_for(capability: tuple[int, int]) -> tuple[tuple[int, Schedule], ...]:
    """The schedule table of an architecture."""
    return SCHEDULES_99_KB if capability in SMALL_SHARED_MEMORY else SCHEDULES_SM90


def schedule_for(slots: int, capability: tuple[int, int] = (9, 0)) -> Schedule:
    """The schedule of a launch with `slots` = rows x KV heads; host-visible facts only."""
    return next(schedule for most, schedule in schedules_for(capability) if slots <= most)


@triton.jit
def _merge_slices(
    p_out,
    p_acc,
    p_max,
    p_sum,
    first_part,
    out_base,
    n,
    first_slice,
    step,
    SPLITS: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Add the partial outputs of `n` splits in order, for the slices first_slice, first_slice + step, … of D.

    The loop over splits is unrolled and rescales as it goes, so that all loads of a slice are in flight at
    once; `.cg`, because the partials were written by other SMs in this launch and L1 may not serve them.
    """
    o_m = tl.arange(0, BLOCK_M)
    m_m = o_m < GROUP
    for i_d in range(first_slice, D // BLOCK_D, step):
        o_d = i_d * BLOCK_D + tl.arange(0, BLOCK_D)
        top = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
        total = tl.zeros([BLOCK_M], dtype=tl.float32)
        b_acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
        for i_s in tl.static_range(SPLITS):
            o_part = first_part + i_s * BLOCK_M + o_m
            b_max = tl.load(p_max + o_part, mask=i_s < n, other=-float("inf"), cache_modifier=".cg")
            b_sum = tl.load(p_sum + o_part, mask=i_s < n, other=0.0, cache_modifier=".cg")
            m_part = (m_m & (i_s < n))[:, None]
            b_part = tl.load(p_acc + o_part[:, None] * D + o_d[None, :], mask=m_part, other=0.0, cache_modifier=".cg")
            # Split 0 always holds keys, so the maximum is finite from then on.
            new_top = tl.maximum(top, b_max)
            decay = tl.exp2(top - new_top)
            b_w = tl.exp2(b_max - new_top)
            total = total * decay + b_w * b_sum
            b_acc = b_acc * decay[:, None] + b_w[:, None] * b_part
            top = new_top
        b_out = b_acc / total[:, None]
        tl.store(
            p_out + out_base + o_m[:, None] * D + o_d[None, :], b_out.to(p_out.dtype.element_ty), mask=m_m[:, None]
        )


@triton.jit
def _grouped_split_kernel(
    p_q,
    p_k,
    p_v,
    p_cu_k,
    p_out,
    p_acc,
    p_max,
    p_sum,
    p_count,
    scale_log2,
    stride_kv,
    SPLITS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    MIN_TILES: tl.constexpr,
    MIN_SPLITS: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROUND: tl.constexpr,
    COOPERATIVE: tl.constexpr,
):
    i_s = tl.program_id(0)
    i_g = tl.program_id(1)
    i_b = tl.program_id(2)
    start = tl.load(p_cu_k + i_b)
    length = tl.load(p_cu_k + i_b + 1) - start
    tiles = (length + BLOCK_K - 1) // BLOCK_K
    n = tl.minimum(tiles // MIN_TILES, SPLITS)
    n = tl.where(n < MIN_SPLITS, 1, n)
    if i_s < n:
        o_m = tl.arange(0, BLOCK_M)
        o_d = tl.arange(0, D)
        o_k = tl.arange(0, BLOCK_K)
        m_m = o_m < GROUP
        # One query row a sequence: row b of q is sequence b, and its heads of group g are adjacent.
        out_base = i_b * GROUP * stride_kv + i_g * GROUP * D
        o_out = o_m[:, None] * D + o_d[None, :]
        b_q = tl.load(p_q + out_base + o_out, mask=m_m[:, None], other=0.0)
        p_rows = start.to(tl.int64) * stride_kv + i_g * D

        b_max = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
        b_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
        b_acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
        for tile in range(tiles * i_s // n, tiles * (i_s + 1) // n):
            row = tile * BLOCK_K + o_k
            m_k = row < length
            o_kv = row[:, None] * stride_kv + o_d[None, :]
            b_k = tl.load(p_k + p_rows + o_kv, mask=m_k[:, None], other=0.0)
            b_s = tl.dot(b_q, tl.trans(b_k)) * scale_log2  # [BLOCK_M, BLOCK_K]
            b_s = tl.where(m_k[None, :], b_s, -float("inf"))
            new_max = tl.maximum(b_max, tl.max(b_s, axis=1))
            b_p = tl.exp2(b_s - new_max[:, None])
            decay = tl.exp2(b_max - new_max)
            b_v = tl.load(p_v + p_rows + o_kv, mask=m_k[:, None], other=0.0)
            b_acc = b_acc * decay[:, None]
            b_acc = tl.dot(b_p.to(b_v.dtype), b_v, acc=b_acc)
            b_sum = b_sum * decay + tl.sum(b_p, axis=1)
            b_max = new_max

        if n == 1:
            # A row without keys has no sum; its output is exactly zero.
            b_out = b_acc / tl.where(b_sum > 0.0, b_sum, 1.0)[:, None]
            tl.store(p_out + out_base + o_out, b_out.to(p_out.dtype.element_ty), mask=m_m[:, None])
        else:
            slot = i_b * tl.num_programs(1) + i_g
            o_part = (slot * SPLITS + i_s) * BLOCK_M
            tl.store(p_acc + o_part * D + o_out, b_acc, mask=m_m[:, None])
            tl.store(p_max + o_part + o_m, b_max)
            tl.store(p_sum + o_part + o_m, b_sum)
            # The programs of a row add up to exactly ROUND, whatever n is: the low bits of its counter are zero
            # when all have arrived and between launches, so nothing is ever cleared.
            share = tl.where(i_s == 0, ROUND - (n - 1), 1)
            # Every thread's partial must be visible before the one that counts arrivals.
            tl.debug_barrier()
            arrived = tl.atomic_add(p_count + slot, share, sem="acq_rel", scope="gpu") + share
            first_part = slot * SPLITS * BLOCK_M
            if COOPERATIVE:
                # All programs of the launch are resident, so the others arrive; each then merges its own slices.
                while (arrived & (ROUND - 1)) != 0:
                    arrived = tl.atomic_add(p_count + slot, 0, sem="acquire", scope="gpu")
                _merge_slices(
                    p_out, p_acc, p_max, p_sum, first_part, out_base, n, i_s, n, SPLITS, D, GROUP, BLOCK_M, BLOCK_D
                )
            elif (arrived & (ROUND - 1)) == 0:
                _merge_slices(
                    p_out, p_acc, p_max, p_sum, first_part, out_base, n, 0, 1, SPLITS, D, GROUP, BLOCK_M, BLOCK_D
                )


def _compile_unit(schedule: Schedule, capabilities: tuple[tuple[int, int], ...]) -> dict[str, object]:
    pointers = dict.fromkeys(("p_q", "p_k", "p_v"), "*bf16")
    pointers |= {"p_cu_k": "*i32", "p_out": "*bf16"}
    pointers |= dict.fromkeys(("p_acc", "p_max", "p_sum"), "*fp32") | {"p_count": "*i32"}
    constants = {
        "SPLITS": schedule.splits,
        "BLOCK_K": schedule.block_k,
        "MIN_TILES": schedule.min_tiles,
        "MIN_SPLITS": schedule.min_splits,
        "D": HEAD_DIM,
        "GROUP": GROUP,
        "BLOCK_M": BLOCK_M,
        "BLOCK_D": BLOCK_D if schedule.cooperative else MERGE_BLOCK_D,
        "ROUND": ROUND,
        "COOPERATIVE": schedule.cooperative,
    }
    return {
        "function": "_grouped_split_kernel",
        "signature": {**pointers, "scale_log2": "fp32", "stride_kv": "i32", **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": (*pointers, "stride_kv"),
        "num_warps": schedule.num_warps,
        "num_stages": schedule.num_stages,
        "capabilities": capabilities,
    }


_ROWS = {"dtypes": ("bfloat16",), "contiguous": True, "alignment_bytes": 16}
_ENDS = {"dtypes": ("int32",), "shape": ("B+1",), "contiguous": True, "alignment_bytes": 4}
CONTRACT = {
    "op": "qsa.packed_decode",
    "kernel": "qsa_packed_decode_grouped",
    "entry": "packed_decode",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "QSA packed decode, contract of sglang PR 36845 (BF16, D 256, 12 query heads a KV head)",
    "tensors": {
        "q": {**_ROWS, "shape": ("B", "HQ", HEAD_DIM)},
        "k": {**_ROWS, "shape": ("N", "HKV", HEAD_DIM)},
        "v": {**_ROWS, "shape": ("N", "HKV", HEAD_DIM)},
        "cu_seqlens_q": _ENDS,
        "cu_seqlens_k": _ENDS,
        "out": {**_ROWS, "shape": ("B", "HQ", HEAD_DIM), "optional": True},
    },
    "scalars": {
        "max_seqlen_k": {"kind": "int", "minimum": 1, "maximum": MAX_SEQLEN_K},
        "softmax_scale": {"kind": "float", "optional": True},
        "max_seqlen_q": {"kind": "int", "allowed": (1,), "remedy": "QSA requires max_seqlen_q=1."},
    },
    "callable": tuple(
        {"axes": {"B": {"minimum": 1, "maximum": MAX_BATCH}, "HQ": heads, "HKV": kv_heads}, "basis": "source thread"}
        for heads, kv_heads in TOPOLOGIES
    ),
    "fallback": {"kind": "raise"},
    "state": {
        "scratch_bytes": SCRATCH_BYTES,
        "concurrency": (
            "one workspace a stream, so eager calls on several streams may overlap; all captured graphs of a device "
            "share one more, so their replays must not overlap each other; launches of up to 24 rows x KV heads are "
            "cooperative and fail with an error where the device cannot hold their programs at once"
        ),
        "reset": "reset_state() zeroes the arrival counters after an aborted launch",
    },
    "kernels_per_call": 1,
    "compile_units": tuple(
        _compile_unit(schedule, capabilities)
        for table, capabilities in ((SCHEDULES_SM90, ((9, 0),)), (SCHEDULES_99_KB, SMALL_SHARED_MEMORY))
        for _, schedule in table
    ),
}


@dataclass(frozen=True)
class Workspace:
    """Partial results and arrival counters of one stream; counters are zero between calls."""

    acc: torch.Tensor
    maximum: torch.Tensor
    total: torch.Tensor
    count: torch.Tensor


_WORKSPACES: dict[tuple[str, int | None, int], Workspace] = {}
_CAPTURE = -1


def _new_workspace(device: torch.device) -> Workspace:
    return Workspace(
        acc=torch.zeros(MOST_PARTIALS * BLOCK_M * HEAD_DIM, dtype=torch.float32, device=device),
        maximum=torch.zeros(MOST_PARTIALS * BLOCK_M, dtype=torch.float32, device=device),
        total=torch.zeros(MOST_PARTIALS * BLOCK_M, dtype=torch.float32, device=device),
        count=torch.zeros(MAX_BATCH * 2, dtype=torch.int32, device=device),
    )


def _workspace(device: torch.device) -> Workspace:
    """The workspace of the current stream; one more, made beforehand, serves all captured graphs."""
    if device.type != "cuda":
        return _WORKSPACES.setdefault((device.type, None, 0), _new_workspace(device))
    capturing = torch.cuda.is_current_stream_capturing()
    stream = _CAPTURE if capturing else torch.cuda.current_stream(device).cuda_stream
    found = _WORKSPACES.get((device.type, device.index, stream))
    if found is not None:
        return found
    if capturing:
        raise RuntimeError(
            "qsa_packed_decode_grouped: the first call on this device is inside a graph capture; allowed: after one "
            "eager call, which allocates the scratch. Call packed_decode once before the capture."
        )
    for key in (stream, _CAPTURE):
        _WORKSPACES.setdefault((device.type, device.index, key), _new_workspace(device))
    # The zero-fill ran on this stream; a graph may be replayed on another.
    torch.cuda.current_stream(device).synchronize()
    return _WORKSPACES[(device.type, device.index, stream)]


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


def state_tensors() -> dict[str, torch.Tensor]:
    """Arrivals of unfinished rows in every workspace; all zero whenever no launch is in flight."""
    return {
        f"count[{device}:{index}:{stream}]": w.count & (ROUND - 1) for (device, index, stream), w in _WORKSPACES.items()
    }


def reset_state() -> None:
    """Zero every counter, after a launch was aborted; no launch may be in flight."""
    for workspace in _WORKSPACES.values():
        workspace.count.zero_()


def _problems(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_k: torch.Tensor, max_seqlen_k: int, max_seqlen_q: int
) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    found = []
    if q.dim() != 3 or k.dim() != 3 or k.shape != v.shape:
        return ["q must be [B, HQ, 256], k and v [N, HKV, 256] of one shape"]
    if (q.shape[1], k.shape[1]) not in TOPOLOGIES or q.shape[2] != HEAD_DIM or k.shape[2] != HEAD_DIM:
        found.append(
            f"heads and width are {tuple(q.shape[1:])} and {tuple(k.shape[1:])}; allowed: (24, 2) or (12, 1) x 256"
        )
    if not 1 <= q.shape[0] <= MAX_BATCH:
        found.append(f"B is {q.shape[0]}; allowed: 1 to {MAX_BATCH}")
    if any(t.dtype != torch.bfloat16 or not t.is_contiguous() for t in (q, k, v)):
        found.append("q, k and v must be contiguous bfloat16")
    if cu_seqlens_k.dtype != torch.int32 or cu_seqlens_k.numel() != q.shape[0] + 1:
        found.append("cu_seqlens_k must be int32 with B+1 elements")
    if not 0 < max_seqlen_k <= MAX_SEQLEN_K:
        found.append(f"max_seqlen_k is {max_seqlen_k}; allowed: 1 to {MAX_SEQLEN_K}")
    if max_seqlen_q != 1:
        found.append(f"max_seqlen_q is {max_seqlen_q}; QSA requires max_seqlen_q=1")
    return found


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
) -> torch.Tensor:
    """Attention of one query row a sequence over its packed KV rows.

    Args:
        q: [B, HQ, 256] bf16, contiguous.
        k: [N, HKV, 256] bf16, contiguous, N >= cu_seqlens_k[B]; rows behind the live end are not read.
        v: as k.
        cu_seqlens_q: [B+1] int32, must be 0, 1, …, B; not read.
        cu_seqlens_k: [B+1] int32, read on the device.
        max_seqlen_k: capacity of a row, 1 to 2055.
        softmax_scale: multiplies q·k; 1/16 when None.
        max_seqlen_q: must be 1.
        out: [B, HQ, 256] bf16, contiguous; allocated when None.

    Returns:
        out. A row without keys is exactly zero.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
        RuntimeError: first call on a device inside a graph capture.
    """
    problems = _problems(q, k, v, cu_seqlens_k, max_seqlen_k, max_seqlen_q)
    if problems:
        raise ValueError("qsa_packed_decode_grouped: " + "; ".join(problems) + ".")
    if out is None:
        out = torch.empty_like(q)
    batch, kv_heads = q.shape[0], k.shape[1]
    schedule = schedule_for(batch * kv_heads, _capability(q.device))
    # The interpreter runs programs one after another: waiting for a later one would never end.
    cooperative = schedule.cooperative and q.is_cuda
    workspace = _workspace(q.device)
    scale = 1.0 / math.sqrt(HEAD_DIM) if softmax_scale is None else softmax_scale
    _grouped_split_kernel[(schedule.splits, kv_heads, batch)](
        q,
        k,
        v,
        cu_seqlens_k,
        out,
        workspace.acc,
        workspace.maximum,
        workspace.total,
        workspace.count,
        scale * LOG2_E,
        kv_heads * HEAD_DIM,
        SPLITS=schedule.splits,
        BLOCK_K=schedule.block_k,
        MIN_TILES=schedule.min_tiles,
        MIN_SPLITS=schedule.min_splits,
        D=HEAD_DIM,
        GROUP=GROUP,
        BLOCK_M=BLOCK_M,
        BLOCK_D=BLOCK_D if cooperative else MERGE_BLOCK_D,
        ROUND=ROUND,
        COOPERATIVE=cooperative,
        num_warps=schedule.num_warps,
        num_stages=schedule.num_stages,
        launch_cooperative_grid=cooperative,
    )
    return out
