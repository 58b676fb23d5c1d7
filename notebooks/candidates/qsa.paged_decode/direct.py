"""QSA paged decode without compaction: each program ranks its row's valid tokens and reads their slots from the pool.

Every program of a row loads all of the row's tokens once, counts the valid ones and ranks them by a prefix sum, so
holes may stand anywhere and the row is split by its live count, read on the device: a captured graph may be replayed
with other selections. It looks up the slots of its own share only, keeps them in rank order in a scratch of its own
and then streams K and V rows through them: dense tiles, one indirection ahead of the loads. Slots are multiplied in
64 bits, since a pool may hold more than 2^31 elements. The query heads of one KV head share a program; BF16
tensor-core products with FP32 accumulation, base-2 online softmax on FP32 scores, P rounded to BF16 for the second
product while the running sum keeps the unrounded P.

Splits are merged in their fixed order within the same launch: one kernel a call, deterministic bits, nothing to
clear. In small launches every program waits for its row's others and merges a share of D; the launch is cooperative,
so the hardware starts it only when all its programs are resident. In large launches the last program to arrive
merges alone.

Imports torch and triton only. Idea: source threads sglang 36787 (direct-paged decode) and PR 36845 (split and merge);
code written here.
"""

from __future__ import annotations

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
BLOCK_W = 2048
TAIL_W = 16
"""A row's columns are ranked in two pieces, so that 2055 of them do not take the work of 4096."""
ROUND = 1 << 16
MAX_BATCH = 128
MAX_WIDTH = 2055
SLOT_ROW = 2080
"""Slots kept for a row: all columns, in whole cache lines, so that no two programs store into one."""
LOG2_E = 1.4426950408889634
TOPOLOGIES = ((24, 2), (12, 1))


@dataclass(frozen=True)
class Schedule:
    """How one launch is cut: at most `splits` programs a row, tiles of `block_k` valid tokens."""

    splits: int
    block_k: int
    min_tiles: int
    """A split gets at least this many tiles, so short rows do not pay for a merge."""
    num_warps: int
    num_stages: int
    """Loads of K and V run (num_stages - 1) // 2 tiles ahead: the slots of a tile are loaded as far ahead of them."""
    cooperative: bool = False
    """Every program merges a share of its row, for which all of them must be resident; else the last one merges all."""
    min_splits: int = 2
    """A row that would get fewer splits is not split: few programs would merge many slices one after another."""


# (most rows x KV heads, schedule); the first entry that fits is used. Split counts are those measured for the packed
# kernel of the same shape on one H200 (SM90, 132 SMs).
SCHEDULES_SM90 = (
    (4, Schedule(33, 32, min_tiles=1, num_warps=4, num_stages=5, cooperative=True, min_splits=6)),
    (8, Schedule(16, 32, min_tiles=1, num_warps=4, num_stages=5, cooperative=True, min_splits=6)),
    (24, Schedule(8, 32, min_tiles=1, num_warps=4, num_stages=5, cooperative=True, min_splits=6)),
    (32, Schedule(4, 64, min_tiles=1, num_warps=4, num_stages=5)),
    (64, Schedule(2, 64, min_tiles=2, num_warps=8, num_stages=5)),
    (128, Schedule(1, 64, min_tiles=1, num_warps=4, num_stages=5)),
    (256, Schedule(1, 32, min_tiles=1, num_warps=4, num_stages=5)),
)
# SM120 and SM121 have 99 KB of shared memory a block: smaller tiles. Compiled, never measured.
SCHEDULES_99_KB = (
    (8, Schedule(8, 32, min_tiles=2, num_warps=4, num_stages=3)),
    (32, Schedule(4, 32, min_tiles=4, num_warps=4, num_stages=3)),
    (256, Schedule(1, 32, min_tiles=1, num_warps=4, num_stages=3)),
)
SMALL_SHARED_MEMORY = ((12, 0), (12, 1))
MOST_PARTIALS = max(most * s.splits for most, s in (*SCHEDULES_SM90, *SCHEDULES_99_KB) if s.splits > 1)
SCRATCH_BYTES = MOST_PARTIALS * BLOCK_M * (HEAD_DIM + 2) * 4 + MAX_BATCH * 2 * 4 * (1 + SLOT_ROW)


def schedules_for(capability: tuple[int, int]) -> tuple[tuple[int, Schedule], ...]:
    """The schedule table of an architecture."""
    return SCHEDULES_99_KB if capability in SMALL_SHARED_MEMORY else SCHEDULES_SM90


def schedule_for(rows: int, capability: tuple[int, int] = (9, 0)) -> Schedule:
    """The schedule of a launch with `rows` = rows x KV heads; host-visible facts only."""
    return next(schedule for most, schedule in schedules_for(capability) if rows <= most)


@triton.jit
def _keep_slots(p_slots, p_table, b_token, m_valid, before, first, last):
    """Store the slots of the valid tokens whose rank lies in first <= rank < last, at their rank; the ranks start at `before`."""
    b_rank = before + tl.cumsum(m_valid.to(tl.int32), axis=0) - 1
    m_mine = m_valid & (b_rank >= first) & (b_rank < last)
    b_slot = tl.load(p_table + b_token, mask=m_mine, other=0)
    tl.store(p_slots + b_rank, b_slot, mask=m_mine)


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

    `.cg`, because the partials were written by other SMs in this launch and L1 may not serve them.
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


@triton.jit(do_not_specialize=("width", "stride_table"))
def _direct_kernel(
    p_q,
    p_k,
    p_v,
    p_tokens,
    p_lengths,
    p_requests,
    p_table,
    p_out,
    p_slots,
    p_acc,
    p_max,
    p_sum,
    p_count,
    scale_log2,
    width,
    stride_table,
    stride_kv,
    SPLITS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    MIN_TILES: tl.constexpr,
    MIN_SPLITS: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_W: tl.constexpr,
    TAIL_W: tl.constexpr,
    SLOT_ROW: tl.constexpr,
    ROUND: tl.constexpr,
    COOPERATIVE: tl.constexpr,
):
    i_s = tl.program_id(0)
    i_g = tl.program_id(1)
    i_b = tl.program_id(2)
    length = tl.load(p_lengths + i_b)
    o_head = tl.arange(0, BLOCK_W)
    o_tail = BLOCK_W + tl.arange(0, TAIL_W)
    p_row = p_tokens + i_b * width
    b_head = tl.load(p_row + o_head, mask=o_head < width, other=-1)
    b_tail = tl.load(p_row + o_tail, mask=o_tail < width, other=-1)
    m_head = (b_head >= 0) & (b_head < length)
    m_tail = (b_tail >= 0) & (b_tail < length)
    in_head = tl.sum(m_head.to(tl.int32), axis=0)
    count = in_head + tl.sum(m_tail.to(tl.int32), axis=0)
    tiles = (count + BLOCK_K - 1) // BLOCK_K
    n = tl.minimum(tiles // MIN_TILES, SPLITS)
    n = tl.where(n < MIN_SPLITS, 1, n)
    if i_s < n:
        slot_row = i_b * tl.num_programs(1) + i_g
        first = tiles * i_s // n
        last = tiles * (i_s + 1) // n
        p_mine = p_slots + slot_row * SLOT_ROW
        p_pages = p_table + tl.load(p_requests + i_b).to(tl.int64) * stride_table
        _keep_slots(p_mine, p_pages, b_head, m_head, 0, first * BLOCK_K, last * BLOCK_K)
        _keep_slots(p_mine, p_pages, b_tail, m_tail, in_head, first * BLOCK_K, last * BLOCK_K)
        # A slot is read back by another thread of this program than the one that stored it.
        tl.debug_barrier()

        o_m = tl.arange(0, BLOCK_M)
        o_d = tl.arange(0, D)
        o_k = tl.arange(0, BLOCK_K)
        m_m = o_m < GROUP
        out_base = i_b * GROUP * stride_kv + i_g * GROUP * D
        o_out = o_m[:, None] * D + o_d[None, :]
        b_q = tl.load(p_q + out_base + o_out, mask=m_m[:, None], other=0.0)

        b_max = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
        b_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
        b_acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
        for tile in range(first, last):
            rank = tile * BLOCK_K + o_k
            m_k = rank < count
            b_slot = tl.load(p_mine + rank, mask=m_k, other=0).to(tl.int64)
            o_kv = b_slot[:, None] * stride_kv + (i_g * D + o_d)[None, :]
            b_k = tl.load(p_k + o_kv, mask=m_k[:, None], other=0.0)
            b_s = tl.dot(b_q, tl.trans(b_k)) * scale_log2  # [BLOCK_M, BLOCK_K]
            b_s = tl.where(m_k[None, :], b_s, -float("inf"))
            new_max = tl.maximum(b_max, tl.max(b_s, axis=1))
            b_p = tl.exp2(b_s - new_max[:, None])
            decay = tl.exp2(b_max - new_max)
            b_v = tl.load(p_v + o_kv, mask=m_k[:, None], other=0.0)
            b_acc = b_acc * decay[:, None]
            b_acc = tl.dot(b_p.to(b_v.dtype), b_v, acc=b_acc)
            b_sum = b_sum * decay + tl.sum(b_p, axis=1)
            b_max = new_max

        if n == 1:
            # A row without valid tokens has no sum; its output is exactly zero.
            b_out = b_acc / tl.where(b_sum > 0.0, b_sum, 1.0)[:, None]
            tl.store(p_out + out_base + o_out, b_out.to(p_out.dtype.element_ty), mask=m_m[:, None])
        else:
            first_part = slot_row * SPLITS * BLOCK_M
            o_part = first_part + i_s * BLOCK_M
            tl.store(p_acc + o_part * D + o_out, b_acc, mask=m_m[:, None])
            tl.store(p_max + o_part + o_m, b_max)
            tl.store(p_sum + o_part + o_m, b_sum)
            # The programs of a row add up to exactly ROUND, whatever n is: the low bits of its counter are zero
            # when all have arrived and between launches, so nothing is ever cleared.
            share = tl.where(i_s == 0, ROUND - (n - 1), 1)
            # Every thread's partial must be visible before the one that counts arrivals.
            tl.debug_barrier()
            arrived = tl.atomic_add(p_count + slot_row, share, sem="acq_rel", scope="gpu") + share
            if COOPERATIVE:
                # All programs of the launch are resident, so the others arrive; each then merges its own slices.
                while (arrived & (ROUND - 1)) != 0:
                    arrived = tl.atomic_add(p_count + slot_row, 0, sem="acquire", scope="gpu")
                _merge_slices(
                    p_out, p_acc, p_max, p_sum, first_part, out_base, n, i_s, n, SPLITS, D, GROUP, BLOCK_M, BLOCK_D
                )
            elif (arrived & (ROUND - 1)) == 0:
                _merge_slices(
                    p_out, p_acc, p_max, p_sum, first_part, out_base, n, 0, 1, SPLITS, D, GROUP, BLOCK_M, BLOCK_D
                )


POINTERS = {
    **dict.fromkeys(("p_q", "p_k", "p_v"), "*bf16"),
    **dict.fromkeys(("p_tokens", "p_lengths", "p_requests", "p_table"), "*i32"),
    "p_out": "*bf16",
    "p_slots": "*i32",
    **dict.fromkeys(("p_acc", "p_max", "p_sum"), "*fp32"),
    "p_count": "*i32",
}


def _constants(schedule: Schedule, cooperative: bool) -> dict[str, int | bool]:
    return {
        "SPLITS": schedule.splits,
        "BLOCK_K": schedule.block_k,
        "MIN_TILES": schedule.min_tiles,
        "MIN_SPLITS": schedule.min_splits,
        "D": HEAD_DIM,
        "GROUP": GROUP,
        "BLOCK_M": BLOCK_M,
        "BLOCK_D": BLOCK_D if cooperative else MERGE_BLOCK_D,
        "BLOCK_W": BLOCK_W,
        "TAIL_W": TAIL_W,
        "SLOT_ROW": SLOT_ROW,
        "ROUND": ROUND,
        "COOPERATIVE": cooperative,
    }


def _compile_unit(schedule: Schedule, capabilities: tuple[tuple[int, int], ...]) -> dict[str, object]:
    constants = _constants(schedule, schedule.cooperative)
    numbers = {"scale_log2": "fp32", "width": "i32", "stride_table": "i32", "stride_kv": "i32"}
    return {
        "function": "_direct_kernel",
        "signature": {**POINTERS, **numbers, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": (*POINTERS, "stride_kv"),
        "num_warps": schedule.num_warps,
        "num_stages": schedule.num_stages,
        "capabilities": capabilities,
    }


_ROWS = {"dtypes": ("bfloat16",), "contiguous": True, "alignment_bytes": 16}
_INDICES = {"dtypes": ("int32",), "contiguous": True, "alignment_bytes": 4}
CONTRACT = {
    "op": "qsa.paged_decode",
    "kernel": "qsa_paged_decode_direct",
    "entry": "paged_decode",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "QSA decode straight from the paged pool (BF16, D 256, 12 query heads a KV head), no compaction",
    "tensors": {
        "q": {**_ROWS, "shape": ("B", "HQ", HEAD_DIM)},
        "k_pool": {**_ROWS, "shape": ("S", "HKV", HEAD_DIM)},
        "v_pool": {**_ROWS, "shape": ("S", "HKV", HEAD_DIM)},
        "tokens": {**_INDICES, "shape": ("B", "W")},
        "lengths": {**_INDICES, "shape": ("B",)},
        "requests": {**_INDICES, "shape": ("B",)},
        "req_to_slot": {**_INDICES, "shape": ("R", "L")},
        "out": {**_ROWS, "shape": ("B", "HQ", HEAD_DIM), "optional": True},
    },
    "scalars": {"softmax_scale": {"kind": "float", "optional": True}},
    "callable": tuple(
        {
            "axes": {
                "B": {"minimum": 1, "maximum": MAX_BATCH},
                "HQ": heads,
                "HKV": kv_heads,
                "W": {"minimum": 1, "maximum": MAX_WIDTH},
            },
            "basis": "source thread",
        }
        for heads, kv_heads in TOPOLOGIES
    ),
    "fallback": {"kind": "chain", "chain": ("qsa_paged_decode_torch",)},
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
    """Slots, partial results and arrival counters of one stream; counters are zero between calls."""

    slots: torch.Tensor
    acc: torch.Tensor
    maximum: torch.Tensor
    total: torch.Tensor
    count: torch.Tensor


_WORKSPACES: dict[tuple[str, int | None, int], Workspace] = {}
_CAPTURE = -1


def _new_workspace(device: torch.device) -> Workspace:
    fp32 = {"dtype": torch.float32, "device": device}
    int32 = {"dtype": torch.int32, "device": device}
    return Workspace(
        slots=torch.zeros(MAX_BATCH * 2 * SLOT_ROW, **int32),
        acc=torch.zeros(MOST_PARTIALS * BLOCK_M * HEAD_DIM, **fp32),
        maximum=torch.zeros(MOST_PARTIALS * BLOCK_M, **fp32),
        total=torch.zeros(MOST_PARTIALS * BLOCK_M, **fp32),
        count=torch.zeros(MAX_BATCH * 2, **int32),
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
            "qsa_paged_decode_direct: the first call on this device is inside a graph capture; allowed: after one "
            "eager call, which allocates the scratch. Call paged_decode once before the capture."
        )
    for key in (stream, _CAPTURE):
        _WORKSPACES.setdefault((device.type, device.index, key), _new_workspace(device))
    return _WORKSPACES[device.type, device.index, stream]


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


def _problems(pools: tuple[torch.Tensor, ...], indices: tuple[torch.Tensor, ...]) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    (q, k_pool, v_pool), (tokens, lengths, requests, table) = pools, indices
    if any(t.dim() != 3 for t in pools) or k_pool.shape != v_pool.shape or tokens.dim() != 2 or table.dim() != 2:
        return ["q must be [B, HQ, 256], k_pool and v_pool [S, HKV, 256], tokens [B, W] and req_to_slot [R, L]"]
    found, batch = [], q.shape[0]
    if (q.shape[1], k_pool.shape[1]) not in TOPOLOGIES or q.shape[2] != HEAD_DIM or k_pool.shape[2] != HEAD_DIM:
        given = f"{tuple(q.shape[1:])} and {tuple(k_pool.shape[1:])}"
        found.append(f"heads and width are {given}; allowed: (24, 2) or (12, 1) x 256")
    if not 1 <= batch <= MAX_BATCH:
        found.append(f"B is {batch}; allowed: 1 to {MAX_BATCH}")
    if any(t.dtype != torch.bfloat16 or not t.is_contiguous() for t in pools):
        found.append("q, k_pool and v_pool must be contiguous bfloat16")
    if any(t.dtype != torch.int32 or not t.is_contiguous() for t in indices):
        found.append("tokens, lengths, requests and req_to_slot must be contiguous int32")
    if tokens.shape[0] != batch or lengths.shape != (batch,) or requests.shape != (batch,):
        found.append(f"tokens, lengths and requests must have {batch} rows, those of q")
    if not 1 <= tokens.shape[1] <= MAX_WIDTH:
        found.append(f"W is {tokens.shape[1]}; allowed: 1 to {MAX_WIDTH}")
    return found


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
) -> torch.Tensor:
    """Attention of one query row a sequence over its selected tokens, read from the pool through the slot table.

    Args:
        q: [B, HQ, 256] bf16, contiguous.
        k_pool: [S, HKV, 256] bf16, contiguous; only slots of valid tokens are read.
        v_pool: as k_pool.
        tokens: [B, W] int32, W at most 2055; valid where 0 <= token < length, anything else is a hole.
        lengths: [B] int32, tokens of each row's sequence.
        requests: [B] int32, each row's row of req_to_slot; not checked.
        req_to_slot: [R, L] int32, slot of each token; not checked.
        softmax_scale: multiplies q·k; 1/16 when None.
        out: [B, HQ, 256] bf16, contiguous; allocated when None.

    Returns:
        out. A row without a valid token is exactly zero.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
        RuntimeError: first call on a device inside a graph capture.
    """
    problems = _problems((q, k_pool, v_pool), (tokens, lengths, requests, req_to_slot))
    if problems:
        raise ValueError("qsa_paged_decode_direct: " + "; ".join(problems) + ".")
    out = torch.empty_like(q) if out is None else out
    batch, kv_heads = q.shape[0], k_pool.shape[1]
    schedule = schedule_for(batch * kv_heads, _capability(q.device))
    # The interpreter runs programs one after another: waiting for a later one would never end.
    cooperative = schedule.cooperative and q.is_cuda
    w = _workspace(q.device)
    scale = 1.0 / math.sqrt(HEAD_DIM) if softmax_scale is None else softmax_scale
    pointers = (q, k_pool, v_pool, tokens, lengths, requests, req_to_slot, out, w.slots, w.acc, w.maximum, w.total)
    _direct_kernel[(schedule.splits, kv_heads, batch)](
        *pointers,
        w.count,
        scale * LOG2_E,
        tokens.shape[1],
        req_to_slot.shape[1],
        kv_heads * HEAD_DIM,
        **_constants(schedule, cooperative),
        num_warps=schedule.num_warps,
        num_stages=schedule.num_stages,
        launch_cooperative_grid=cooperative,
    )
    return out
