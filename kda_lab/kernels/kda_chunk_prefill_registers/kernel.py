"""KDA prefill in chunks of 64 tokens, three launches: decay, scores and inverse of all chunks at once, then the states.

Launch 1, a program a (chunk, value head), a warp a quarter of the tokens with all their channels: running sums of the
decay, token by token in registers, and tiles that they scale. It multiplies nothing, so many warps hide its memory.
Launch 2, a program a (chunk, value head): the scores, the unit lower triangular inverse, and from it -W and Uᵀ. Its
operands are ready-made tiles, so that registers hold little beside the sums and three programs fit on an SM.
Launch 3, a program a (V block, value head, sequence): S [V block, K] stays in FP32 registers, BF16 copies of it and of
the new values are the register operands of both products of the chain, and the output leaves from here, so that neither
states nor new values go through memory. One program's chain is the whole sequence; nothing else is serial.

Scores under a bounded gate: a half of the chunk has one reference, its 18th token, for 17 tokens before and 14 behind
it decay by at most e^85 and e^70, which FP32 and BF16 hold. Rows are scaled to the reference of the columns that they
meet, hence the rows of the second half twice. Without a bound no reference is safe: every pair of tokens takes its own
exponential, channel by channel, of the difference of two sums.
The inverse starts from four blocks of 16 tokens side by side and is doubled from blocks of 1 to 64: every factor is an
inverse of a part, so nothing cancels.

Measured on an H200, T 8192, one sequence, K = V = 128, bounded gate, us, launches 1 to 3: H 12: 78, 73 and 198; H 96:
547, 529 and 412; each with an inverse of one BF16 part and `WIDE` in two stages. Launches 1 and 2 as one kernel took 267
and 2107: with decayed tiles beside the sums two programs fit on an SM, and 300 bytes a thread spilled.

Imports torch and triton only. Idea: source thread (sglang PR 32890) and the chunked form of Kimi Delta Attention; code
written here.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

CHUNK = 64
LOWEST_BOUND = -5.0
LOG2_E = 1.4426950408889634
WIDTHS = (32, 64, 128)
MAX_SEQUENCES = 1024
TILES = 7
"""[C, K] tiles of a chunk between the launches, in the order -W, q·e^G, k·e^(G_last - G), then launch 2's operands:
keys and queries by rows, keys by columns, queries and keys of the second half by rows."""
# Tunables of an H200; variants are tried by changing these.
WARPS = 4
DECAY_ROWS = 2
"""Tokens of a warp in launch 1 whose operands are loaded before any of them is stored."""
SOLVE_K = 64
"""Key channels of one product of scores."""
SOLVE_REGISTERS = 168
"""Three programs of four warps an SM."""
NARROW = (64, 4, 3)
"""V rows, warps and stages of a chain while there are few: at least 64 rows make the state a register operand of wgmma."""
MANY_CHAINS = 66
WIDE = (128, 8, 3)
"""The same from `MANY_CHAINS` (sequence, value head) pairs on: they keep the SMs busy and read each packed chunk once."""
SMALL = (32, 4, 1)
"""The same where a block has 99 KB of shared memory. Compiled, never measured."""
SMALL_SHARED_MEMORY = ((12, 0), (12, 1))
BATCHED_HEADS = (3, 6, 12, 24, 48, 96)


@triton.jit
def _place(p_cu, p_index, chunk, sequences, NB: tl.constexpr, C: tl.constexpr):
    """First token of a chunk's number and how many follow in its sequence: none behind the last chunk or in padding."""
    n, before, total = 0, 0, (tl.load(p_cu + 1) - tl.load(p_cu) + C - 1) // C
    if NB > 1:
        o_n = tl.arange(0, NB)
        m_n = o_n < sequences
        b_count = tl.load(p_cu + o_n + 1, mask=m_n, other=0) - tl.load(p_cu + o_n, mask=m_n, other=0)
        b_count = (b_count + C - 1) // C
        total = tl.sum(b_count, axis=0)
        n = tl.sum(((tl.cumsum(b_count, axis=0) <= chunk) & m_n).to(tl.int32), axis=0)
        before = tl.sum(tl.where(o_n < n, b_count, 0), axis=0)
    m = chunk < total
    first = tl.load(p_cu + n, mask=m, other=0) + (chunk - before) * C
    live = tl.load(p_cu + n + 1, mask=m, other=0) - first
    return first, tl.where(tl.load(p_index + n, mask=m, other=-1) < 0, 0, live)


@triton.jit
def _load_rows(p_rows, stride, o_token, first, live, other, ROWS: tl.constexpr):
    """Tokens `first` to `first + ROWS` of each part, a tuple of [PARTS, K]; behind the sequence's end they are `other`."""
    found = ()
    for j in tl.static_range(ROWS):
        m = o_token + (first + j) < live
        found += (tl.load(p_rows + (first + j) * stride, mask=m, other=other).to(tl.float32),)  # type: ignore[assignment]
    return found


@triton.jit
def _further(b_sum, b_a, b_bias, rate, inverse, BOUNDED: tl.constexpr):
    """Decay up to a token, from that before it, in powers of two and positive; an `a` of minus infinity adds nothing.

    `rate` is e^A_log·log2(e), `inverse` -1 / (bound·log2(e)); a bounded gate's bias is multiplied by -rate already.
    A reciprocal root is one instruction, a quotient five.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    if BOUNDED:
        b_root = tl.rsqrt(tl.exp2(b_bias - b_a * rate) * inverse + inverse)
        return b_root * b_root + b_sum
    b_x = b_a + b_bias
    # softplus(x) = x + log(1 + e^-x) for positive x: neither branch overflows.
    return rate * (tl.maximum(b_x, 0.0) + tl.log2(1.0 + tl.exp2(-tl.abs(b_x) * LOG2_E)) / LOG2_E) + b_sum


@triton.jit(do_not_specialize=("sequences", "capacity"))
def _decay_kernel(
    p_q, p_k, p_a, p_a_log, p_bias, p_cu, p_index, p_tiles, p_sums, p_last,
    inverse, scale, sequences, capacity, HV,
    GROUP: tl.constexpr, K: tl.constexpr, C: tl.constexpr, NB: tl.constexpr, BOUNDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Decayed tiles of one chunk; a token's row is a warp's, so that its norms need no other."""
    PARTS: tl.constexpr = 4
    SPAN: tl.constexpr = C // PARTS
    AHEAD: tl.constexpr = 8
    MIDDLE: tl.constexpr = 17
    TILE: tl.constexpr = C * K
    i_h = tl.program_id(0)
    i_c = tl.program_id(1)
    start, live = _place(p_cu, p_index, i_c, sequences, NB, C)
    if live > 0:
        o_p = tl.arange(0, PARTS)
        o_k = tl.arange(0, K)
        o_token = o_p[:, None] * SPAN + tl.zeros([PARTS, K], dtype=tl.int32)
        stride = HV // GROUP * K
        first = start.to(tl.int64)
        p_gate = p_a + first * (HV * K) + i_h * K + o_token * (HV * K) + o_k[None, :]
        at = first * stride + i_h // GROUP * K
        o_qk = o_token * stride + o_k[None, :]
        chunk = i_h.to(tl.int64) * capacity + i_c
        p_rows = p_tiles + chunk * (7 * TILE) + o_token * K + o_k[None, :]
        p_own = p_sums + chunk * (C + (K if BOUNDED else TILE))
        b_bias = tl.load(p_bias + i_h * K + o_k)[None, :]
        # Never zero, so that the rows behind the end do not decay.
        rate = tl.maximum(tl.exp2(tl.load(p_a_log + i_h) * 1.4426950408889634) * 1.4426950408889634, 1e-30)
        if BOUNDED:
            b_bias *= -rate

        # All sums first: a token's decay is needed relative to later ones. Loading twice costs less than keeping.
        b_part = tl.zeros([PARTS, K], dtype=tl.float32)
        b_local = b_part
        for row in range(0, SPAN, AHEAD):
            a_rows = _load_rows(p_gate, HV * K, o_token, row, live, -float("inf"), AHEAD)
            for j in tl.static_range(AHEAD):
                b_part = _further(b_part, a_rows[j], b_bias, rate, inverse, BOUNDED)
                if j == MIDDLE % SPAN:
                    b_local = tl.where(row == 0, b_part, b_local)
        b_g = tl.cumsum(b_part, axis=0) - b_part
        b_first = tl.sum(tl.where((o_p == 1)[:, None], b_g + b_local, 0.0), axis=0)
        b_second = tl.sum(tl.where((o_p == 3)[:, None], b_g + b_local, 0.0), axis=0)
        b_last = tl.sum(b_part, axis=0)
        tl.store(p_last + chunk * K + o_k, tl.exp2(-b_last))
        if BOUNDED:
            tl.store(p_own + C + o_k, tl.exp2(-b_first))
        b_reference = tl.where(o_token < C // 2, b_first[None, :], b_second[None, :])
        b_own = b_part
        for row in range(0, SPAN, ROWS):
            a_rows = _load_rows(p_gate, HV * K, o_token, row, live, -float("inf"), ROWS)
            q_rows = _load_rows(p_q + at + o_qk, stride, o_token, row, live, 0.0, ROWS)
            k_rows = _load_rows(p_k + at + o_qk, stride, o_token, row, live, 0.0, ROWS)
            for j in tl.static_range(ROWS):
                b_g = _further(b_g, a_rows[j], b_bias, rate, inverse, BOUNDED)
                b_q = q_rows[j] * (tl.rsqrt(tl.sum(q_rows[j] * q_rows[j], axis=1) + 1e-6) * scale)[:, None]
                b_k = k_rows[j] * tl.rsqrt(tl.sum(k_rows[j] * k_rows[j], axis=1) + 1e-6)[:, None]
                # A token's own key is not decayed; in FP32, since it alone decides where the decay is strong.
                b_own = tl.where(o_k[None, :] == row + j, tl.sum(b_q * b_k, axis=1)[:, None], b_own)
                p_row = p_rows + (row + j) * K
                b_e = tl.exp2(-b_g)
                tl.store(p_row + TILE, (b_q * b_e).to(tl.bfloat16))
                # Clamped, since sums of 1e12 without a bound, taken in another order, differ by thousands.
                tl.store(p_row + 2 * TILE, (b_k * tl.exp2(tl.minimum(b_g - b_last[None, :], 0.0))).to(tl.bfloat16))
                if BOUNDED:
                    b_e = tl.exp2(b_first[None, :] - b_g)
                    tl.store(p_row + 4 * TILE, (b_q * b_e).to(tl.bfloat16))
                    tl.store(p_row + 5 * TILE, (b_k * tl.exp2(b_g - b_reference)).to(tl.bfloat16))
                    # Queries above keys, in halves of the tile.
                    b_again = tl.exp2(b_second[None, :] - b_g)
                    m_second = o_token >= C // 2
                    tl.store(p_row + 6 * TILE - C // 2 * K, (b_q * b_again).to(tl.bfloat16), mask=m_second)
                    tl.store(p_row + 6 * TILE, (b_k * b_again).to(tl.bfloat16), mask=m_second)
                else:
                    tl.store(p_row + 4 * TILE, b_q.to(tl.bfloat16))
                    tl.store(p_row + 5 * TILE, b_k.to(tl.bfloat16))
                    tl.store(p_own + C + o_token * K + o_k[None, :] + (row + j) * K, b_g)
                tl.store(p_row + 3 * TILE, (b_k * b_e).to(tl.bfloat16))
        tl.store(p_own + o_token + o_k[None, :], b_own, mask=(o_k[None, :] < SPAN) & (o_token >= 0))


@triton.jit
def _bounded_scores(p_tiles, p_own, p_scores, K: tl.constexpr, C: tl.constexpr, BLOCK_K: tl.constexpr):
    """Stores the scores of the queries; those of the keys below the diagonal, [C, C], are returned."""
    HALF: tl.constexpr = C // 2
    TILE: tl.constexpr = C * K
    o_i = tl.arange(0, C)
    o_h = tl.arange(0, HALF)
    # Columns of the first half in all rows; then those of the second half, queries above keys.
    b_kk = tl.zeros([C, HALF], dtype=tl.float32)
    b_qk = tl.zeros([C, HALF], dtype=tl.float32)
    b_both = tl.zeros([C, HALF], dtype=tl.float32)
    for i_k in range(K // BLOCK_K):
        o_k = i_k * BLOCK_K + tl.arange(0, BLOCK_K)
        o_ck = o_i[:, None] * K + o_k[None, :]
        p_right = p_tiles + 5 * TILE + o_h[:, None] * K + o_k[None, :]
        b_right = tl.trans(tl.load(p_right))
        b_kk = tl.dot(tl.load(p_tiles + 3 * TILE + o_ck), b_right, acc=b_kk)
        b_qk = tl.dot(tl.load(p_tiles + 4 * TILE + o_ck), b_right, acc=b_qk)
        b_right = tl.trans(tl.load(p_right + HALF * K))
        b_both = tl.dot(tl.load(p_tiles + 6 * TILE + o_ck), b_right, acc=b_both)

    m_below = o_i[:, None] > o_h[None, :]
    m_same = o_i[:, None] == o_h[None, :]
    b_a = tl.where(m_same, tl.load(p_own + o_i)[:, None], tl.where(m_below, b_qk, 0.0))
    tl.store(p_scores + o_i[:, None] * C + o_h[None, :], b_a.to(tl.bfloat16))
    # Rows of the lower right quarter come first, then zeros for the upper right one.
    o_row = (o_i + HALF) % C
    b_a = tl.where(m_below & (o_i < HALF)[:, None], b_both, 0.0)
    b_a = tl.where(m_same, tl.load(p_own + o_row)[:, None], b_a)
    tl.store(p_scores + o_row[:, None] * C + (HALF + o_h)[None, :], b_a.to(tl.bfloat16))
    b_kk = tl.where(m_below, b_kk, 0.0)
    b_both = tl.where(o_i[:, None] > HALF + o_h[None, :], b_both, 0.0)
    return tl.reshape(tl.permute(tl.join(b_kk, b_both), (0, 2, 1)), [C, C])


@triton.jit
def _free_scores(p_tiles, p_own, p_scores, K: tl.constexpr, C: tl.constexpr):
    """The same without a bound: outer products of one channel at a time, each pair of tokens with its own decay."""
    o_i = tl.arange(0, C)
    m_below = o_i[:, None] > o_i[None, :]
    b_kk = tl.zeros([C, C], dtype=tl.float32)
    b_qk = tl.zeros([C, C], dtype=tl.float32)
    p_q = p_tiles + 4 * C * K + o_i * K
    p_k = p_tiles + 5 * C * K + o_i * K
    p_g = p_own + C + o_i * K
    for i_k in range(K):
        b_k = tl.load(p_k + i_k).to(tl.float32)
        b_g = tl.load(p_g + i_k)
        b_e = tl.exp2(tl.minimum(b_g[None, :] - b_g[:, None], 0.0)) * b_k[None, :]
        b_kk += b_k[:, None] * b_e
        b_qk += tl.load(p_q + i_k).to(tl.float32)[:, None] * b_e
    m_same = o_i[:, None] == o_i[None, :]
    b_a = tl.where(m_same, tl.load(p_own + o_i)[:, None], tl.where(m_below, b_qk, 0.0))
    tl.store(p_scores + o_i[:, None] * C + o_i[None, :], b_a.to(tl.bfloat16))
    return tl.where(m_below, b_kk, 0.0)


@triton.jit
def _halves(o_i, half):
    """[C, C] bool: row in the second half, column in the first half of the same pair of blocks of `half` tokens."""
    o_pair = o_i // (2 * half)
    m_second = (o_i // half) % 2 == 1
    return (o_pair[:, None] == o_pair[None, :]) & m_second[:, None] & (~m_second)[None, :]


@triton.jit
def _join(b_t, b_off):
    """Inverses of pairs of blocks, from those of their blocks and what is left of the diagonal in each pair."""
    b_left = tl.dot(b_t.to(tl.bfloat16), b_off.to(tl.bfloat16)).to(tl.bfloat16)
    return b_t - tl.dot(b_left, b_t.to(tl.bfloat16))


@triton.jit
def _inverse(b_lower, C: tl.constexpr):
    """Inverse of I + strictly lower [C, C]: blocks of 16 tokens side by side first, then pairs of them."""
    B: tl.constexpr = 16
    N: tl.constexpr = C // B
    o_i = tl.arange(0, C)
    o_b = tl.arange(0, B)
    o_n = tl.arange(0, N)
    m_own = o_n[:, None, None, None] == o_n[None, None, :, None]
    b_part = tl.sum(tl.where(m_own, tl.reshape(b_lower, [N, B, N, B]), 0.0), axis=2)
    b_t = tl.where((o_b[:, None] == o_b[None, :])[None], 1.0, 0.0) - tl.where(_halves(o_b, 1)[None], b_part, 0.0)
    for level in tl.static_range(1, 4):
        b_t = _join(b_t, tl.where(_halves(o_b, 1 << level)[None], b_part, 0.0))
    b_t = tl.broadcast_to(tl.reshape(b_t, [N, B, 1, B]), [N, B, N, B])
    b_t = tl.reshape(tl.where(m_own, b_t, 0.0), [C, C])
    b_t = _join(b_t, tl.where(_halves(o_i, 16), b_lower, 0.0))
    return _join(b_t, tl.where(_halves(o_i, 32), b_lower, 0.0))


@triton.jit(do_not_specialize=("sequences", "capacity"))
def _solve_kernel(
    p_v, p_beta, p_cu, p_index, p_tiles, p_sums, p_scores, p_ut,
    sequences, capacity, HV,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, NB: tl.constexpr, BOUNDED: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Scores, inverse, -W and Uᵀ of one chunk; without a bound -W's rows are scaled to the chunk's start already."""
    i_h = tl.program_id(0)
    i_c = tl.program_id(1)
    first, live = _place(p_cu, p_index, i_c, sequences, NB, C)
    if live > 0:
        o_i = tl.arange(0, C)
        o_t = (first + o_i).to(tl.int64)
        m_t = o_i < live
        chunk = i_h.to(tl.int64) * capacity + i_c
        p_mine = p_tiles + chunk * (7 * C * K)
        p_own = p_sums + chunk * (C + (K if BOUNDED else C * K))
        p_a = p_scores + chunk * (C * C)
        b_kk = _bounded_scores(p_mine, p_own, p_a, K, C, BLOCK_K) if BOUNDED else _free_scores(p_mine, p_own, p_a, K, C)
        b_beta = tl.load(p_beta + o_t * HV + i_h, mask=m_t, other=0.0)
        b_t = _inverse(b_kk * b_beta[:, None], C)
        # Loaded again, by columns: cheaper than to keep or to turn it.
        b_beta = tl.load(p_beta + o_t * HV + i_h, mask=m_t, other=0.0)
        b_t *= b_beta[None, :]
        # In two parts: a rounded diagonal would change a token's whole new value, and with it its own share of a row.
        b_high = b_t.to(tl.bfloat16)
        b_low = (b_t - b_high.to(tl.float32)).to(tl.bfloat16)
        o_k = tl.arange(0, K)
        o_ck = o_i[:, None] * K + o_k[None, :]
        b_left = tl.load(p_mine + 3 * C * K + o_ck)
        b_w = -tl.dot(b_low, b_left, acc=tl.dot(b_high, b_left))
        if BOUNDED:
            b_w *= tl.load(p_own + C + o_k)[None, :]
        tl.store(p_mine + o_ck, b_w.to(tl.bfloat16))
        o_v = tl.arange(0, V)
        p_value = p_v + o_t[:, None] * (HV * V) + (i_h * V + o_v)[None, :]
        b_vt = tl.trans(tl.load(p_value, mask=m_t[:, None], other=0.0))
        b_ut = tl.dot(b_vt, tl.trans(b_low), acc=tl.dot(b_vt, tl.trans(b_high)))
        tl.store(p_ut + chunk * (C * V) + o_v[:, None] * C + o_i[None, :], b_ut.to(tl.bfloat16))


@triton.jit(do_not_specialize=("sequences", "capacity"))
def _state_kernel(
    p_tiles, p_scores, p_ut, p_last, p_cu, p_index, p_has, p_state, p_out,
    stride_slot, sequences, capacity, HV,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, NB: tl.constexpr, BLOCK_V: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    i_v = tl.program_id(0)
    i_h = tl.program_id(1)
    i_n = tl.program_id(2)
    o_n = tl.arange(0, NB)
    m_n = o_n < i_n
    b_first = tl.load(p_cu + o_n, mask=m_n, other=0)
    b_last = tl.load(p_cu + o_n + 1, mask=m_n, other=0)
    before = tl.sum((b_last - b_first + C - 1) // C, axis=0)
    first = tl.load(p_cu + i_n)
    last = tl.load(p_cu + i_n + 1)
    chunks = (last - first + C - 1) // C
    index = tl.load(p_index + i_n).to(tl.int64)
    o_i = tl.arange(0, C)
    o_k = tl.arange(0, K)
    o_v = i_v * BLOCK_V + tl.arange(0, BLOCK_V)
    p_rows = p_out + first.to(tl.int64) * (HV * V) + o_i[:, None] * (HV * V) + (i_h * V + o_v)[None, :]
    step = tl.full([], HV * V * C, tl.int64)
    if index < 0:
        for i_c in range(chunks):
            m_t = first + i_c * C + o_i < last
            tl.store(p_rows + i_c * step, tl.zeros([C, BLOCK_V], dtype=tl.bfloat16), mask=m_t[:, None])
    elif chunks > 0:
        o_state = index * stride_slot + (i_h * V + o_v)[:, None] * K + o_k[None, :]
        b_s = tl.load(p_state + o_state, mask=(o_v < V)[:, None] & (tl.load(p_has + i_n) != 0), other=0.0)
        chunk = i_h.to(tl.int64) * capacity + before
        o_ck = o_i[:, None] * K + o_k[None, :]
        for i_c in tl.range(0, chunks, num_stages=STAGES):
            at = chunk + i_c
            p_chunk = p_tiles + at * (7 * C * K) + o_ck
            b_w = tl.load(p_chunk)
            b_u = tl.load(p_ut + at * (C * V) + o_v[:, None] * C + o_i[None, :])
            b_kg = tl.load(p_chunk + 2 * C * K)
            b_decay = tl.load(p_last + at * K + o_k)
            b_narrow = b_s.to(tl.bfloat16)
            b_new = tl.dot(b_narrow, tl.trans(b_w), acc=b_u.to(tl.float32)).to(tl.bfloat16)
            b_o = tl.dot(b_narrow, tl.trans(tl.load(p_chunk + C * K)))
            b_s = tl.dot(b_new, b_kg, acc=b_s * b_decay[None, :])
            b_a = tl.load(p_scores + at * (C * C) + o_i[:, None] * C + o_i[None, :])
            b_o = tl.dot(b_new, tl.trans(b_a), acc=b_o)
            m_t = first + i_c * C + o_i < last
            tl.store(p_rows + i_c * step, tl.trans(b_o).to(tl.bfloat16), mask=m_t[:, None])
        tl.store(p_state + o_state, b_s)


TYPES = {
    **dict.fromkeys(("p_q", "p_k", "p_v", "p_a", "p_tiles", "p_scores", "p_ut", "p_out"), "*bf16"),
    **dict.fromkeys(("p_beta", "p_a_log", "p_bias", "p_sums", "p_last", "p_state"), "*fp32"),
    **{"p_cu": "*i32", "p_index": "*i32", "p_has": "*u8", "inverse": "fp32", "scale": "fp32"},
    **dict.fromkeys(("stride_slot", "sequences", "capacity", "HV"), "i32"),
}
_DECAY = (
    "p_q",
    "p_k",
    "p_a",
    "p_a_log",
    "p_bias",
    "p_cu",
    "p_index",
    "p_tiles",
    "p_sums",
    "p_last",
    "inverse",
    "scale",
)
_SOLVE = ("p_v", "p_beta", "p_cu", "p_index", "p_tiles", "p_sums", "p_scores", "p_ut")
_STATE = ("p_tiles", "p_scores", "p_ut", "p_last", "p_cu", "p_index", "p_has", "p_state", "p_out", "stride_slot")
ARGUMENTS = {"_decay_kernel": _DECAY, "_solve_kernel": _SOLVE, "_state_kernel": _STATE}
# Loaded one by one, so that a view of any start will do.
UNALIGNED = ("p_cu", "p_index", "p_has", "p_a_log")


def _decay_constants(K: int, group: int, sequences: int, bounded: bool) -> dict[str, Any]:
    found = {"GROUP": group, "K": K, "C": CHUNK, "NB": triton.next_power_of_2(sequences)}
    return {**found, "BOUNDED": bounded, "ROWS": DECAY_ROWS}


def _solve_constants(K: int, V: int, sequences: int, bounded: bool) -> dict[str, Any]:
    found = {"K": K, "V": V, "C": CHUNK, "NB": triton.next_power_of_2(sequences)}
    return {**found, "BOUNDED": bounded, "BLOCK_K": min(K, SOLVE_K)}


def _state_constants(
    K: int, V: int, sequences: int, chains: int, capability: tuple[int, int]
) -> tuple[dict[str, Any], int]:
    """Constants of the state pass, and its warps."""
    wide = WIDE if chains >= MANY_CHAINS else NARROW
    block_v, warps, stages = SMALL if capability in SMALL_SHARED_MEMORY else wide
    constants = {"K": K, "V": V, "C": CHUNK, "NB": triton.next_power_of_2(sequences)}
    return {**constants, "BLOCK_V": min(block_v, V), "STAGES": stages}, warps


def _compile_unit(
    function: str, constants: dict[str, Any], num_warps: int, capabilities: tuple[tuple[int, int], ...] = ()
) -> dict[str, object]:
    names = (*ARGUMENTS[function], "sequences", "capacity", "HV")
    aligned = tuple(n for n in names if (TYPES[n][0] == "*" and n not in UNALIGNED) or n == "stride_slot")
    return {
        "function": function,
        "signature": {**{n: TYPES[n] for n in names}, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": aligned,
        "num_warps": num_warps,
        "num_stages": 1,
        "maxnreg": SOLVE_REGISTERS if function == "_solve_kernel" else None,
        "capabilities": capabilities,
    }


def _compile_units() -> tuple[dict[str, object], ...]:
    found = []
    for bounded in (True, False):
        found.append(_compile_unit("_decay_kernel", _decay_constants(128, 1, 1, bounded), WARPS))
        found.append(_compile_unit("_solve_kernel", _solve_constants(128, 128, 1, bounded), WARPS))
    for chains, capabilities in ((1, ((9, 0),)), (MANY_CHAINS, ((9, 0),)), (1, SMALL_SHARED_MEMORY)):
        constants, warps = _state_constants(128, 128, 1, chains, capabilities[0])
        found.append(_compile_unit("_state_kernel", constants, warps, capabilities))
    return tuple(found)


_TOKENS = {"dtypes": ("bfloat16",), "contiguous": True, "alignment_bytes": 16}
_FLOATS = {"dtypes": ("float32",), "contiguous": True, "alignment_bytes": 16}
_INDICES = {"dtypes": ("int32",), "contiguous": True, "alignment_bytes": 4}
_RANGES = {"T": {"minimum": 1, "maximum": 1 << 20}, "N": {"minimum": 1, "maximum": MAX_SEQUENCES}}
CONTRACT = {
    "op": "kda.chunk_prefill",
    "kernel": "kda_chunk_prefill_registers",
    "entry": "chunk_prefill",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "KDA prefill in chunks of 64 (K = V = 128), state in registers over the whole sequence",
    "tensors": {
        "q": {**_TOKENS, "shape": ("T", "H", 128)},
        "k": {**_TOKENS, "shape": ("T", "H", 128)},
        "v": {**_TOKENS, "shape": ("T", "HV", 128)},
        "a": {**_TOKENS, "shape": ("T", "P")},
        "beta": {**_FLOATS, "shape": ("T", "HV")},
        "a_log": {**_FLOATS, "alignment_bytes": 4, "shape": ("HV",)},
        "dt_bias": {**_FLOATS, "shape": ("P",)},
        "cu_seqlens": {**_INDICES, "shape": ("N+1",)},
        "state": {**_FLOATS, "free_leading": 1, "shape": ("S", "HV", 128, 128)},
        "state_indices": {**_INDICES, "shape": ("N",)},
        "has_state": {"dtypes": ("bool", "uint8"), "contiguous": True, "alignment_bytes": 1, "shape": ("N",)},
        "out": {**_TOKENS, "shape": ("T", "HV", 128), "optional": True},
    },
    "scalars": {"lower_bound": {"kind": "float", "minimum": LOWEST_BOUND, "maximum": -1e-6, "optional": True}},
    "callable": tuple(
        {"axes": {"H": heads, "HV": heads, "P": heads * 128, **_RANGES}, "basis": "source thread"}
        for heads in BATCHED_HEADS
    ),
    "fallback": {"kind": "chain", "chain": ("kda_chunk_prefill_torch",)},
    "state": {
        "scratch_bytes": 0,
        "concurrency": "calls on any streams may overlap; scratch is allocated a call from torch's caching allocator: "
        "7·64·K·2 + 64·64·2 + 64·V·2 + 4·(64 + 2·K) bytes a chunk of a head, without a bound 4·63·K more",
        "reset": "none is needed: no memory outlives a call",
    },
    "kernels_per_call": 3,
    "compile_units": _compile_units(),
}


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


def _problems(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor,
    cu_seqlens: torch.Tensor, state: torch.Tensor, lower_bound: float | None,
) -> list[str]:  # fmt: skip
    """What the kernels cannot take, in words; the full contract stands in contract.json."""
    if q.dim() != 3 or k.shape != q.shape or v.dim() != 3 or state.dim() != 4:
        return ["q and k must be [T, H, K], v [T, HV, V] and state [S, HV, V, K]"]
    found, (tokens, heads, K), (HV, V) = [], q.shape, v.shape[1:]
    if K not in WIDTHS or V not in WIDTHS:
        found.append(f"K and V are {K} and {V}; allowed: {', '.join(map(str, WIDTHS))}")
    if HV % heads or v.shape[0] != tokens or a.shape != (tokens, HV * K):
        found.append("v must be [T, HV, V] with HV a multiple of H, and a [T, HV·K]")
    if state.shape[1:] != (HV, V, K) or not state[:1].is_contiguous() or state.dtype != torch.float32:
        found.append("state must be float32 [S, HV, V, K] with contiguous slots")
    if any(t.dtype != torch.bfloat16 or not t.is_contiguous() for t in (q, k, v, a)):
        found.append("q, k, v and a must be contiguous bfloat16")
    if cu_seqlens.dtype != torch.int32 or not 2 <= cu_seqlens.numel() <= MAX_SEQUENCES + 1:
        found.append(f"cu_seqlens must be int32 [N + 1] with N from 1 to {MAX_SEQUENCES}")
    if lower_bound is not None and not LOWEST_BOUND <= lower_bound < 0:
        found.append(f"lower_bound is {lower_bound!r}; allowed: None, or {LOWEST_BOUND} <= lower_bound < 0")
    return found


def _scratch(chunks: int, K: int, V: int, bounded: bool, device: torch.device) -> dict[str, torch.Tensor]:
    """What the launches leave for one another, for each (head, chunk).

    tiles [TILES, C, K]; scores [C, C], Aqk; ut [V, C], Uᵀ; sums [C + K] of a bounded gate, q·k of each token and e^G of
    the first reference, else [C + C·K], q·k and -G; last [K], e^G_last.
    """
    widths = {"tiles": TILES * CHUNK * K, "scores": CHUNK * CHUNK, "ut": V * CHUNK}
    found = {n: torch.empty(chunks, width, dtype=torch.bfloat16, device=device) for n, width in widths.items()}
    widths = {"sums": CHUNK + (K if bounded else CHUNK * K), "last": K}
    return found | {n: torch.empty(chunks, width, dtype=torch.float32, device=device) for n, width in widths.items()}


def chunk_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    has_state: torch.Tensor,
    *,
    lower_bound: float | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Kimi Delta Attention over packed sequences; each sequence's slot of `state` is read and written in place.

    Args:
        q, k: [T, H, K] bf16, neither normalised nor scaled.
        v: [T, HV, V] bf16.
        a: [T, HV·K] bf16, raw gate.
        beta: [T, HV] fp32, after the sigmoid.
        a_log, dt_bias: [HV] and [HV·K] fp32.
        cu_seqlens: [N + 1] int32, from 0 to T; not checked.
        state: [S, HV, V, K] fp32, slots contiguous and any distance apart.
        state_indices: [N] int32, distinct; -1: the sequence is padding, its output is zero and no state is touched.
        has_state: [N] bool or uint8; 0: the sequence starts from zero, whatever its slot holds.
        lower_bound: of the safe gate, -5 <= lower_bound < 0; None: the softplus gate.
        out: [T, HV, V] bf16, contiguous; allocated when None.

    Returns:
        out. A sequence without tokens leaves its slot as it is.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    if problems := _problems(q, k, v, a, cu_seqlens, state, lower_bound):
        raise ValueError("kda_chunk_prefill_registers: " + "; ".join(problems) + ".")
    (tokens, heads, K), (HV, V), sequences = q.shape, v.shape[1:], cu_seqlens.numel() - 1
    out = torch.empty_like(v) if out is None else out
    # Each sequence has at most one partial chunk, so no length is read on the host.
    capacity = tokens // CHUNK + sequences
    sizes, bounded = (sequences, capacity, HV), lower_bound is not None
    inverse = 0.0 if lower_bound is None else -1.0 / (lower_bound * LOG2_E)
    between = _scratch(HV * capacity, K, V, bounded, q.device)
    _decay_kernel[(HV, capacity)](
        *(q, k, a, a_log, dt_bias, cu_seqlens, state_indices),
        *(*(between[name] for name in ("tiles", "sums", "last")), inverse, K**-0.5, *sizes),
        **_decay_constants(K, HV // heads, sequences, bounded),
        num_warps=WARPS,
        num_stages=1,
    )
    _solve_kernel[(HV, capacity)](
        *(v, beta, cu_seqlens, state_indices),
        *(*(between[name] for name in ("tiles", "sums", "scores", "ut")), *sizes),
        **_solve_constants(K, V, sequences, bounded),
        num_warps=WARPS,
        num_stages=1,
        maxnreg=SOLVE_REGISTERS,
    )
    constants, warps = _state_constants(K, V, sequences, HV * sequences, _capability(q.device))
    _state_kernel[(V // constants["BLOCK_V"], HV, sequences)](
        *(between[name] for name in ("tiles", "scores", "ut", "last")),
        *(cu_seqlens, state_indices, has_state.view(torch.uint8), state, out, state.stride(0), *sizes),
        **constants,
        num_warps=warps,
        num_stages=1,
    )
    return out
