"""KDA decode that seldom writes its state: a checkpoint, and a ring of what the tokens since then have added to it.

One program owns a block of value channels of one head of one request. It asks for its part of the checkpoint before it
knows how many records there are, and for all of these at once, newest first. Output and delta never need the present
state: its products with k̂ and q̂ are those of the checkpoint, decayed, plus for each record a dot product of two keys
times the record's delta. The token is then appended to the ring. Only a flush makes the state, by adding the records to
the decayed checkpoint, and writes it: with the present token (the ring is empty afterwards), or, circular, without it
(it becomes record 0). With a ring of one place it is packed decode, operation for operation, and the bits are the same.

Pre-decayed keys are stored times exp(-E), with E the sum of the log-decays since the checkpoint, which the ring keeps in
the place of each token's own: a record then costs no exponential and no log-decay. A circular flush writes a record that
the request's other programs would still read, so one program then owns a whole query head. FP32 arithmetic; deltas and
keys are rounded to the ring's dtype where they are stored.

Imports torch and triton only. Idea: source threads (sglang PR 28511, 33630 and 37739); code written here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Schedule(NamedTuple):
    """How one launch is cut."""

    block_v: int
    """Value channels a program."""
    num_warps: int
    lane: int
    """Key channels a lane: 4, 8 or 16; at most 8 where decays are summed or a program owns a query head."""
    registers: int | None = None
    """Most registers of a thread; None leaves it to the compiler."""


# Of fourteen schedules on one H200 the fastest at 32 and 128 requests of 12 heads.
RAW = Schedule(block_v=16, num_warps=1, lane=16)
PREDECAYED = Schedule(block_v=32, num_warps=2, lane=8, registers=168)
CIRCULAR = Schedule(block_v=128, num_warps=8, lane=16, registers=168)
ONE_PLACE = Schedule(block_v=16, num_warps=1, lane=4)
"""For a ring of one place: that of packed decode, whose order of additions its bits need."""
MAX_LENGTH = 64
MOST_PREDECAYED = 16
MOST_DECAY = 80.0
"""Largest (L - 1)·|lower_bound| of pre-decayed keys: exp(80) times a key still fits into FP32 and BF16."""
LEAST_BOUND = -5.0
MAX_BATCH = 65535
WIDTHS = (16, 32, 48, 64, 80, 96, 100, 128)


@triton.jit
def _spread(p_any, o_tile, never, LANE: tl.constexpr):
    """Give each lane LANE consecutive channels of the tile at `o_tile`: a load of narrow elements that never happens.

    The compiler lays a tile out by the widest access to it, 16 bytes a lane. Lanes that hold 16 of 128 channels in the
    place of 4 add up a row in 3 exchanges for 4 rows at once, in the place of 5 for each row.
    """
    if LANE == 16:
        tl.load(p_any.to(tl.pointer_type(tl.int8)) + o_tile, mask=(o_tile >= 0) & never, volatile=True)
    if LANE == 8:
        tl.load(p_any.to(tl.pointer_type(tl.int16)) + o_tile, mask=(o_tile >= 0) & never, volatile=True)


@triton.jit
def _sigmoid(x):
    # Clamped, so that exp2 stays finite: below 2^-126 the result is no different for any use here.
    return 1.0 / (1.0 + tl.exp2(tl.minimum(-x * 1.4426950408889634, 126.0)))


@triton.jit
def _log2_decay(b_x, a_log, lower_bound, SAFE: tl.constexpr):
    """Base-2 logarithm of one head's decay, in the order in which packed decode multiplies."""
    rate = tl.exp2(a_log * 1.4426950408889634)
    if SAFE:
        z = lower_bound * 1.4426950408889634 * _sigmoid(rate * b_x)
    else:
        soft = tl.where(b_x > 20.0, b_x, tl.log(1.0 + tl.exp2(tl.minimum(b_x, 20.0) * 1.4426950408889634)))
        z = -rate * 1.4426950408889634 * soft
    return z


@triton.jit
def _advance(b_s, b_decay, n_k, n_q, b_v, beta, overlap):
    """One token on a state at hand, as packed decode does it: output, delta, new state."""
    b_s = b_s * b_decay[None, :]
    b_d = beta * (b_v - tl.sum(b_s * n_k[None, :], axis=1))
    b_o = tl.sum(b_s * n_q[None, :], axis=1) + b_d * overlap
    b_s += b_d[:, None] * n_k[None, :]
    return b_o, b_d, b_s


@triton.jit
def _replayed(
    b_s,
    p_d,
    p_k,
    p_g,
    m_v,
    m_k,
    records,
    b_all,
    V: tl.constexpr,
    K: tl.constexpr,
    PRE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The state after `records` records, newest first; `b_all` is the decay of all of them together.

    The records of a chunk are loaded before any is used, so that a chunk waits once.
    """
    b_since = b_all * 0.0
    if not PRE:
        b_s = b_s * b_all[None, :]
    for j in range(0, records, CHUNK):
        b_d, b_k, b_g = (), (), ()
        for i in tl.static_range(CHUNK):
            at = records - 1 - j - i
            b_d += (tl.load(p_d + at * V, mask=m_v & (at >= 0), other=0.0),)
            b_k += (tl.load(p_k + at * K, mask=m_k & (at >= 0), other=0.0),)
            if not PRE:
                b_g += (tl.load(p_g + at * K, mask=m_k & (at >= 0), other=0.0),)
        for i in tl.static_range(CHUNK):
            b_w = b_k[i].to(tl.float32)
            if not PRE:
                b_w = b_w * tl.exp2(b_since * 1.4426950408889634)
                b_since = b_since + b_g[i]
            b_s = b_s + b_d[i].to(tl.float32)[:, None] * b_w[None, :]
    if PRE:
        b_s = b_s * b_all[None, :]
    return b_s


@triton.jit
def _append(p_k, p_g, n_k, b_g, b_e, m_key, m_decay, history, PRE: tl.constexpr):
    """Key and log-decay of a record; `b_e` is the sum of those before it, none where it is the first."""
    if PRE:
        b_g = tl.where(history, 0.0, 1.0) * b_e + b_g
        n_k = n_k * tl.exp2(b_g * -1.4426950408889634)
    tl.store(p_k, n_k.to(p_k.dtype.element_ty), mask=m_key)
    tl.store(p_g, b_g, mask=m_decay)


@triton.jit
def _products(b_w, b_rg, b_e, x_k, x_q, PRE: tl.constexpr):
    """Products of the records' keys with the two vectors, what the checkpoint is multiplied with, and its decay.

    `b_rg` is the raw ring's: row i holds what decays record i besides the rows above. `b_e` is the sum of a pre-decayed one.
    """
    b_w = b_w.to(tl.float32)
    if not PRE:
        b_w = b_w * tl.exp2(tl.cumsum(b_rg, axis=0) * 1.4426950408889634)
        b_e = tl.sum(b_rg, axis=0)
    b_all = tl.exp2(b_e * 1.4426950408889634)
    u_k = b_all * x_k
    u_q = b_all * x_q
    if PRE:
        x_k = u_k
        x_q = u_q
    c_k = tl.sum(b_w * x_k[None, :], axis=1)
    c_q = tl.sum(b_w * x_q[None, :], axis=1)
    return c_k, c_q, u_k, u_q, b_all


@triton.jit
def _replay_decode_kernel(
    p_qkv,
    p_a,
    p_b,
    p_a_log,
    p_dt,
    p_state,
    p_ring_d,
    p_ring_k,
    p_ring_g,
    p_positions,
    p_index,
    p_out,
    lower_bound,
    scale,
    stride_qkv,
    stride_a,
    stride_b,
    stride_state,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    L: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_L: tl.constexpr,
    LANE: tl.constexpr,
    SAFE: tl.constexpr,
    CIRCULAR: tl.constexpr,
    PRE: tl.constexpr,
    FORCE: tl.constexpr,
):
    i_b = tl.program_id(2).to(tl.int64)
    GROUP: tl.constexpr = HV // H
    # Circular: a program owns all heads and blocks that read the record it will overwrite.
    HEADS_EACH: tl.constexpr = GROUP if CIRCULAR else 1
    BLOCKS_EACH: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V if CIRCULAR else 1
    # More channels a lane spill where decays are scanned or a program owns many rows.
    CHUNK: tl.constexpr = 2 if CIRCULAR else 4
    CHANNELS: tl.constexpr = LANE if LANE < 8 or (PRE and not CIRCULAR) else 8
    index = tl.load(p_index + i_b)
    o_k = tl.arange(0, BLOCK_K)
    m_k = o_k < K
    i_q = (tl.program_id(1) * HEADS_EACH) // GROUP
    p_row = p_qkv + i_b * stride_qkv
    # Ahead of the branch, so that these loads do not wait for the index.
    b_q = tl.load(p_row + i_q * K + o_k, mask=m_k, other=0.0)
    b_k = tl.load(p_row + (H + i_q) * K + o_k, mask=m_k, other=0.0)
    if index >= 0:
        slot = index.to(tl.int64)
        position = tl.load(p_positions + slot)
        for i_e in tl.static_range(HEADS_EACH):
            i_h = tl.program_id(1) * HEADS_EACH + i_e
            own = (slot * HV + i_h) * L
            shared = own if PRE else (slot * H + i_q) * L
            for i_each in tl.static_range(BLOCKS_EACH):
                i_v = tl.program_id(0) * BLOCKS_EACH + i_each
                o_v = i_v * BLOCK_V + tl.arange(0, BLOCK_V)
                m_v = (o_v < V) | (V % BLOCK_V == 0)
                o_tile = tl.arange(0, BLOCK_V)[:, None] * K + o_k[None, :]
                m_tile = m_v[:, None] & m_k[None, :]
                p_head = p_state + (slot * stride_state + i_h * (V * K) + i_v * (BLOCK_V * K))
                p_d = p_ring_d + own * V + o_v
                # Every load is issued before the first is used, and the checkpoint's before the position is known.
                b_s = tl.load(p_head + o_tile, mask=m_tile, other=0.0)
                _spread(p_state, o_tile, i_v < 0, CHANNELS)
                b_v = tl.load(p_row + 2 * H * K + i_h * V + o_v, mask=m_v, other=0.0)
                if i_each == 0:
                    b_x = tl.load(p_a + i_b * stride_a + i_h * K + o_k, mask=m_k, other=0.0)
                    b_bias = tl.load(p_dt + i_h * K + o_k, mask=m_k, other=0.0)
                    a_log = tl.load(p_a_log + i_h)
                    strength = tl.load(p_b + i_b * stride_b + i_h)
                    if L > 1:
                        # Keeps the compiler from waiting for the position before it has asked for the checkpoint.
                        tl.debug_barrier()
                    records = tl.minimum(position, L - 1)
                    natural = records >= L - 1
                    history = natural & (CIRCULAR and not FORCE and L > 1)
                    flush = natural | FORCE
                    appended = history | (flush == 0)
                    at = tl.where(history, 0, records)
                if L > 1:
                    # Newest record first, so that the decay since a record is a sum over the rows above it.
                    o_l = records - 1 - tl.arange(0, BLOCK_L)
                    m_d = (o_l >= 0)[:, None] & m_v[None, :]
                    if i_each == 0:
                        m_r = (o_l >= 0)[:, None] & m_k[None, :]
                        o_r = o_l[:, None] * K + o_k[None, :]
                        b_w = tl.load(p_ring_k + shared * K + o_r, mask=m_r, other=0.0)
                        _spread(p_ring_k, tl.arange(0, BLOCK_L)[:, None] * K + o_k[None, :], i_v < 0, CHANNELS)
                        b_e, b_rg = tl.zeros([BLOCK_K], dtype=tl.float32), b_w
                        if PRE:
                            p_last = p_ring_g + (own + records - 1) * K
                            b_e = tl.load(p_last + o_k, mask=m_k & (records > 0), other=0.0)
                        else:
                            # A row later than its record: row i holds what decays record i besides the rows above.
                            m_g = ((o_l + 1 >= 0) & (o_l + 1 < records))[:, None] & m_k[None, :]
                            b_rg = tl.load(p_ring_g + own * K + K + o_r, mask=m_g, other=0.0)
                    b_rd = tl.load(p_d[None, :] + o_l[:, None] * V, mask=m_d, other=0.0)
                if i_each == 0:
                    n_q, n_k = b_q.to(tl.float32), b_k.to(tl.float32)
                    n_q = n_q * (tl.rsqrt(tl.sum(n_q * n_q, axis=0) + 1e-6) * scale)
                    n_k = n_k * tl.rsqrt(tl.sum(n_k * n_k, axis=0) + 1e-6)
                    overlap = tl.sum(n_k * n_q, axis=0)
                    b_z = _log2_decay(b_x.to(tl.float32) + b_bias, a_log, lower_bound, SAFE)
                    b_decay = tl.exp2(b_z)
                    b_g = b_z * 0.6931471805599453
                    beta = _sigmoid(strength.to(tl.float32))
                    if L > 1:
                        c_k, c_q, u_k, u_q, b_all = _products(b_w, b_rg, b_e, b_decay * n_k, b_decay * n_q, PRE)
                b_v = b_v.to(tl.float32)
                if L == 1:
                    b_o, b_d, b_s = _advance(b_s, b_decay, n_k, n_q, b_v, beta, overlap)
                    tl.store(p_head + o_tile, b_s, mask=m_tile)
                else:
                    b_rd = b_rd.to(tl.float32)
                    s_k = tl.sum(b_s * u_k[None, :], axis=1) + tl.sum(b_rd * c_k[:, None], axis=0)
                    s_q = tl.sum(b_s * u_q[None, :], axis=1) + tl.sum(b_rd * c_q[:, None], axis=0)
                    b_d = beta * (b_v - s_k)
                    b_o = s_q + b_d * overlap
                    if flush:
                        p_k = p_ring_k + shared * K + o_k
                        p_g = p_ring_g + own * K + o_k
                        b_s = _replayed(b_s, p_d, p_k, p_g, m_v, m_k, records, b_all, V, K, PRE, CHUNK)
                        # With the token, unless it becomes a record.
                        b_last = tl.where(history, 0.0, b_z)
                        b_s = b_s * tl.exp2(b_last)[None, :] + tl.where(history, 0.0, b_d)[:, None] * n_k[None, :]
                        tl.store(p_head + o_tile, b_s, mask=m_tile)
                    if CIRCULAR:
                        # Record 0 is overwritten only after all threads have read it.
                        tl.debug_barrier()
                    tl.store(p_d + at * V, b_d.to(p_ring_d.dtype.element_ty), mask=m_v & appended)
                tl.store(p_out + (i_b * HV + i_h) * V + o_v, b_o.to(p_out.dtype.element_ty), mask=m_v)
            if L > 1:
                once = m_k & appended & (tl.program_id(0) == 0)
                # The key is the group's: its last head writes it, when all of them have read the old one.
                m_key = once & (i_h % GROUP == GROUP - 1)
                p_k = p_ring_k + (shared + at) * K + o_k
                _append(p_k, p_ring_g + (own + at) * K + o_k, n_k, b_g, b_e, m_key, once, history, PRE)
    else:
        for i_e in tl.static_range(HEADS_EACH):
            for i_each in tl.static_range(BLOCKS_EACH):
                o_v = (tl.program_id(0) * BLOCKS_EACH + i_each) * BLOCK_V + tl.arange(0, BLOCK_V)
                p_zero = p_out + (i_b * HV + tl.program_id(1) * HEADS_EACH + i_e) * V + o_v
                tl.store(p_zero, tl.zeros([BLOCK_V], dtype=p_out.dtype.element_ty), mask=o_v < V)


POINTERS = {
    **dict.fromkeys(("p_qkv", "p_a", "p_b"), "*bf16"),
    **dict.fromkeys(("p_a_log", "p_dt", "p_state"), "*fp32"),
    **dict.fromkeys(("p_ring_d", "p_ring_k"), "*bf16"),
    "p_ring_g": "*fp32",
    **dict.fromkeys(("p_positions", "p_index"), "*i32"),
    "p_out": "*bf16",
}
STRIDES = ("stride_qkv", "stride_a", "stride_b", "stride_state")
FLAGS = ("SAFE", "CIRCULAR", "PRE", "FORCE")


def _constants(
    heads: tuple[int, int], widths: tuple[int, int], length: int, flags: tuple[bool, ...]
) -> dict[str, int | bool]:
    schedule = _schedule(length, flags)
    return {
        "H": heads[0],
        "HV": heads[1],
        "K": widths[0],
        "V": widths[1],
        "L": length,
        "BLOCK_K": triton.next_power_of_2(widths[0]),
        "BLOCK_V": min(schedule.block_v, triton.next_power_of_2(widths[1])),
        "BLOCK_L": triton.next_power_of_2(length),
        "LANE": schedule.lane,
        **dict(zip(FLAGS, flags, strict=True)),
    }


def _schedule(length: int, flags: tuple[bool, ...]) -> Schedule:
    """Of a launch with rings of `length` places; `flags` as FLAGS."""
    _, circular, predecayed, _ = flags
    if length == 1:
        return ONE_PLACE
    if circular:
        return CIRCULAR
    return PREDECAYED if predecayed else RAW


def _compile_unit(length: int, flags: tuple[bool, ...], keys: str = "*bf16") -> dict[str, object]:
    constants, schedule = _constants((12, 12), (128, 128), length, flags), _schedule(length, flags)
    numbers = {"lower_bound": "fp32", "scale": "fp32", **dict.fromkeys(STRIDES, "i32")}
    aligned = tuple(n for n in (*POINTERS, *STRIDES) if n not in ("p_b", "p_a_log", "stride_b"))
    return {
        "function": "_replay_decode_kernel",
        "signature": {**POINTERS, "p_ring_k": keys, **numbers, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": aligned,
        "num_warps": schedule.num_warps,
        "num_stages": 1,
        "maxnreg": schedule.registers,
    }


_ROWS = {"dtypes": ("bfloat16",), "free_leading": 1, "alignment_bytes": 2}
_BF16 = {"dtypes": ("bfloat16",), "contiguous": True, "alignment_bytes": 16}
_FP32 = {"dtypes": ("float32",), "contiguous": True, "alignment_bytes": 16}
_INT32 = {"dtypes": ("int32",), "alignment_bytes": 4}
CONTRACT = {
    "op": "kda.replay_decode",
    "kernel": "kda_replay_decode_checkpoint",
    "entry": "replay_decode",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "KDA decode from a checkpoint and a ring of records, with the state written every L tokens (FP32 state)",
    "tensors": {
        "mixed_qkv": {**_ROWS, "shape": ("B", "C")},
        "a": {**_ROWS, "shape": ("B", "G")},
        "b": {**_ROWS, "shape": ("B", "HV")},
        "a_log": {**_FP32, "alignment_bytes": 4, "shape": ("HV",)},
        "dt_bias": {**_FP32, "shape": ("G",)},
        "state": {**_FP32, "free_leading": 1, "shape": ("S", "HV", "V", "K")},
        "ring_d": {**_BF16, "shape": ("S", "HV", "L", "V")},
        "ring_k": {**_BF16, "dtypes": ("bfloat16", "float32"), "shape": ("S", "H", "L", "K")},
        "ring_g": {**_FP32, "shape": ("S", "HV", "L", "K")},
        "write_positions": {**_INT32, "shape": ("S",)},
        "state_indices": {**_INT32, "shape": ("B",)},
        "out": {**_BF16, "optional": True, "shape": ("B", 1, "HV", "V")},
    },
    "scalars": {
        "lower_bound": {"kind": "float", "minimum": LEAST_BOUND, "maximum": -1e-6, "optional": True},
        "circular": {"kind": "bool"},
        "predecayed": {"kind": "bool"},
        "force_flush": {"kind": "bool"},
    },
    "callable": (
        {
            "axes": {
                "B": {"minimum": 1, "maximum": MAX_BATCH},
                "L": {"minimum": 1, "maximum": MAX_LENGTH},
                "K": WIDTHS,
                "V": WIDTHS,
            },
            "basis": "widths of the source thread; the entry checks what pre-decayed keys need",
        },
    ),
    "range_axis": "B",
    "fallback": {"kind": "chain", "chain": ("kda_replay_decode_torch",)},
    "state": {"scratch_bytes": 0, "concurrency": "any on distinct slots", "reset": "none"},
    "kernels_per_call": 1,
    "compile_units": (
        _compile_unit(16, (True, False, False, False)),
        _compile_unit(16, (True, False, True, False)),
        _compile_unit(16, (True, False, True, False), "*fp32"),
        _compile_unit(16, (True, True, False, False)),
        _compile_unit(16, (True, True, True, False)),
        _compile_unit(1, (True, False, False, False)),
    ),
}


def _problems(tensors: dict[str, torch.Tensor]) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    qkv, state, ring_k = tensors["mixed_qkv"], tensors["state"], tensors["ring_k"]
    if qkv.dim() != 2 or state.dim() != 4 or ring_k.dim() != 4 or tensors["ring_d"].dim() != 4:
        return ["mixed_qkv must be [B, C], state [slots, HV, V, K], ring_d [slots, HV, L, V], ring_k [slots, H, L, K]"]
    batch, (slots, heads, values, keys) = qkv.shape[0], state.shape
    length, key_heads = tensors["ring_d"].shape[2], ring_k.shape[1]
    if key_heads < 1 or heads % key_heads or qkv.shape[1] != 2 * key_heads * keys + heads * values:
        return [f"C is {qkv.shape[1]}, H {key_heads}, HV {heads}; allowed: C = 2·H·K + HV·V with HV a multiple of H"]
    wanted = {
        "a": (batch, heads * keys),
        "b": (batch, heads),
        "a_log": (heads,),
        "dt_bias": (heads * keys,),
        "ring_d": (slots, heads, length, values),
        "ring_k": (slots, key_heads, length, keys),
        "ring_g": (slots, heads, length, keys),
        "write_positions": (slots,),
        "state_indices": (batch,),
    }
    found = [f"{n} is {tuple(tensors[n].shape)}; allowed: {s}" for n, s in wanted.items() if tensors[n].shape != s]
    rows = ("mixed_qkv", "a", "b")
    found += [
        f"the last axis of {n} must be contiguous"
        for n in rows
        if tensors[n].stride(1) != 1 and tensors[n].shape[1] > 1
    ]
    whole = [n for n in wanted if n not in rows and not tensors[n].is_contiguous()]
    found += [f"{n} must be contiguous" for n in whole]
    if not state[:1].is_contiguous():
        found.append("state must be contiguous within a slot")
    if state.dtype != torch.float32 or tensors["ring_g"].dtype != torch.float32:
        found.append("state and ring_g must be float32")
    return found


def _predecay_problems(tensors: dict[str, torch.Tensor], lower_bound: float | None) -> list[str]:
    """Where exp(-E) could leave its range, or a record would not belong to one value head."""
    length, heads, key_heads = tensors["ring_d"].shape[2], tensors["state"].shape[1], tensors["ring_k"].shape[1]
    found = []
    if not 2 <= length <= MOST_PREDECAYED:
        found.append(f"L is {length} with predecayed keys; allowed: 2 to {MOST_PREDECAYED}")
    if heads != key_heads:
        found.append(f"HV is {heads} and H {key_heads} with predecayed keys; allowed: HV equal to H")
    if lower_bound is None or (length - 1) * abs(lower_bound) > MOST_DECAY:
        found.append(f"lower_bound is {lower_bound} with L {length}; allowed: (L - 1)·|lower_bound| <= {MOST_DECAY:g}")
    return found


def replay_decode(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    ring_d: torch.Tensor,
    ring_k: torch.Tensor,
    ring_g: torch.Tensor,
    write_positions: torch.Tensor,
    state_indices: torch.Tensor,
    *,
    lower_bound: float | None,
    circular: bool = False,
    predecayed: bool = False,
    force_flush: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token for each request on its checkpoint and ring; the caller moves `write_positions` on afterwards.

    Args:
        mixed_qkv: [B, 2·H·K + HV·V] bf16, after the convolution; row stride free, as that of a and b.
        a, b: [B, HV·K] and [B, HV] bf16, raw.
        a_log, dt_bias: [HV] and [HV·K] fp32.
        state: [slots, HV, V, K] fp32, the checkpoints; slot stride free; written by a flush only.
        ring_d: [slots, HV, L, V] bf16, deltas.
        ring_k: [slots, H, L, K] bf16, normalised keys; bf16 or fp32 times exp(-E) where they are predecayed.
        ring_g: [slots, HV, L, K] fp32, log-decays of the tokens; E where keys are predecayed.
        write_positions: [slots] int32, records in the ring, 0 to L - 1; at L - 1 the call flushes.
        state_indices: [B] int32, distinct; -1 gives a zero row and touches nothing.
        lower_bound: of the safe gate, -5 to 0; None for the softplus gate.
        circular: a natural flush leaves the token in record 0 (position 1 is next); otherwise the state takes it (0).
        predecayed: keys are kept predecayed.
        force_flush: flush every request, its token included (0 is next).
        out: [B, 1, HV, V] bf16, contiguous; allocated when None.

    Returns:
        out.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    tensors = {"mixed_qkv": mixed_qkv, "a": a, "b": b, "a_log": a_log, "dt_bias": dt_bias, "state": state}
    tensors |= {"ring_d": ring_d, "ring_k": ring_k, "ring_g": ring_g}
    tensors |= {"write_positions": write_positions, "state_indices": state_indices}
    problems = _problems(tensors)
    if not problems and predecayed:
        problems = _predecay_problems(tensors, lower_bound)
    if problems:
        raise ValueError("kda_replay_decode_checkpoint: " + "; ".join(problems) + ".")
    out = mixed_qkv.new_empty(mixed_qkv.shape[0], 1, *state.shape[1:3]) if out is None else out
    flags = (lower_bound is not None, circular, predecayed, force_flush)
    _launch([*tensors.values(), out], lower_bound, flags)
    return out


def _launch(tensors: list[torch.Tensor], lower_bound: float | None, flags: tuple[bool, ...]) -> None:
    qkv, a, b, state, ring_d, ring_k = (tensors[i] for i in (0, 1, 2, 5, 6, 7))
    _, heads, values, keys = state.shape
    length, key_heads, circular = ring_d.shape[2], ring_k.shape[1], flags[1]
    constants, schedule = _constants((key_heads, heads), (keys, values), length, flags), _schedule(length, flags)
    blocks = triton.cdiv(values, constants["BLOCK_V"])
    grid = (1, key_heads, qkv.shape[0]) if circular else (blocks, heads, qkv.shape[0])
    _replay_decode_kernel[grid](
        *tensors,
        0.0 if lower_bound is None else lower_bound,
        keys**-0.5,
        qkv.stride(0),
        a.stride(0),
        b.stride(0),
        state.stride(0),
        **constants,
        num_warps=schedule.num_warps,
        num_stages=1,
        maxnreg=schedule.registers,
    )
