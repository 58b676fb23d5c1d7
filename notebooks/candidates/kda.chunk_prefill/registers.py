"""KDA prefill in chunks of 64 tokens, two launches: all chunks at once, then one serial pass with the state in registers.

Launch 1, a program a (chunk, value head): decay and its running sum, the two 64x64 score matrices, the unit lower
triangular inverse, and from them what the state pass needs, packed for it: -W, q̂·e^G, k̂·e^(G_last - G), Aqk, Uᵀ, e^G_last.
Scores: rows and columns of a pair of blocks are decayed to the boundary between its halves, so that every exponent is
at most 0 and a pair costs one exponential an element; blocks of 32 and 16 tokens, and inside the 16 the middle token is
the reference where the gate is bounded (largest exponent 8·5), else the halving goes down to single tokens. The inverse
is doubled from blocks of 1 to 64: every factor is an inverse of a part, so nothing cancels.
Launch 2, a program a (V block, value head, sequence): S [V block, K] stays in FP32 registers, BF16 copies of it and of
the new values are the register operands of both products of the chain, and the output leaves from here, so that neither
states nor new values go through memory. One program's chain is the whole sequence; nothing else is serial.

Predicted on an H200 (4.3 TB/s, 790 TFLOP/s), T 8192, H 12, K = V = 128: launch 1 moves 212 MB (49 us) and multiplies
17 GFLOP dense; launch 2 takes 128 steps of two dependent products, 0.5 us each: 64 us. H 96: 1.7 GB (395 us) and 1.1 GB
(256 us).

Imports torch and triton only. Idea: source thread (sglang PR 32890) and the chunked form of Kimi Delta Attention; code
written here.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

CHUNK = 64
MIDPOINT = 16
"""Tokens of the smallest block under a bounded gate; its middle token is the reference of its exponents."""
LOWEST_BOUND = -5.0
LOG2_E = 1.4426950408889634
L2_EPSILON = 1e-6
WIDTHS = (32, 64, 128)
MAX_SEQUENCES = 1024
# Tunables of an H200; variants are tried by changing these.
INTRA_WARPS = 4
BLOCK_K = 32
"""Key channels that launch 1 decays at a time: at 64 and four warps the decayed tiles spill inside the loop."""
SOLVE_TF32 = False
"""Whether the inverse's products take TF32 operands instead of BF16 ones."""
NARROW = (64, 4, 3)
"""V rows, warps and stages of a chain while there are few: at least 64 rows make the state a register operand of wgmma."""
MANY_CHAINS = 66
WIDE = (128, 8, 2)
"""The same from `MANY_CHAINS` (sequence, value head) pairs on: they keep the SMs busy and read each packed chunk once."""
SMALL = (32, 4, 1)
"""The same where a block has 99 KB of shared memory. Compiled, never measured."""
SMALL_SHARED_MEMORY = ((12, 0), (12, 1))
BATCHED_HEADS = (3, 6, 12, 24, 48, 96)


@triton.jit
def _sequence_of(p_cu, chunk, sequences, NB: tl.constexpr, C: tl.constexpr):
    """Sequence of a chunk's number, its number within the sequence, and how many chunks there are in all."""
    o_n = tl.arange(0, NB)
    m_n = o_n < sequences
    b_first = tl.load(p_cu + o_n, mask=m_n, other=0)
    b_last = tl.load(p_cu + o_n + 1, mask=m_n, other=0)
    b_count = (b_last - b_first + C - 1) // C
    b_end = tl.cumsum(b_count, axis=0)
    total = tl.sum(b_count, axis=0)
    n = tl.sum(((b_end <= chunk) & m_n).to(tl.int32), axis=0)
    before = tl.sum(tl.where(o_n < n, b_count, 0), axis=0)
    return n, chunk - before, total


@triton.jit
def _log2_decay(b_a, rate, lower_log2, BOUNDED: tl.constexpr):
    """Decay of a token in powers of two: `rate` is e^A_log, `lower_log2` the bound times log2(e)."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    if BOUNDED:
        return lower_log2 / (1.0 + tl.exp2(-b_a * rate * LOG2_E))
    # softplus(x) = x + log(1 + e^-x) for positive x: neither branch overflows.
    b_far = tl.log2(1.0 + tl.exp2(-tl.abs(b_a) * LOG2_E))
    return -rate * (tl.maximum(b_a, 0.0) * LOG2_E + b_far)


@triton.jit
def _span(p_spans, b_high, b_low, C: tl.constexpr):
    """For each row the decays summed between its reference and itself, [C, BLOCK_K], from those of each token.

    Products of a table of zeros and ones with two BF16 parts of each decay: exact to 2^-17 of it, and never the
    difference of two long sums.
    """
    o_c = tl.arange(0, C)
    b_ones = tl.load(p_spans + o_c[:, None] * C + o_c[None, :])
    return tl.dot(b_ones, b_low, acc=tl.dot(b_ones, b_high))


@triton.jit
def _inverse_norm(p_rows, m_t, K: tl.constexpr, EPSILON: tl.constexpr):
    """1 / sqrt(sum x² + eps) of the rows [C] at the pointers; rows that are masked count as zero."""
    b_x = tl.load(p_rows[:, None] + tl.arange(0, K)[None, :], mask=m_t[:, None], other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(b_x * b_x, axis=1) + EPSILON)


@triton.jit
def _product(b_left, b_right, TF32: tl.constexpr):
    if TF32:
        return tl.dot(b_left, b_right, input_precision="tf32")
    return tl.dot(b_left.to(tl.bfloat16), b_right.to(tl.bfloat16))


@triton.jit
def _halves(o_i, half):
    """[C, C] bool: row in the second half, column in the first half of the same pair of blocks of `half` tokens."""
    o_pair = o_i // (2 * half)
    m_second = (o_i // half) % 2 == 1
    return (o_pair[:, None] == o_pair[None, :]) & m_second[:, None] & (~m_second)[None, :]


@triton.jit
def _inverse(b_lower, o_i, C: tl.constexpr, LEVELS: tl.constexpr, TF32: tl.constexpr):
    """Inverse of I + strictly lower [C, C]: inverses of blocks of 1, 2, 4, … tokens, each from the two before it."""
    b_t = tl.where(o_i[:, None] == o_i[None, :], 1.0, 0.0) - tl.where(_halves(o_i, 1), b_lower, 0.0)
    for level in tl.static_range(1, LEVELS):
        b_off = tl.where(_halves(o_i, 1 << level), b_lower, 0.0)
        b_t -= _product(_product(b_t, b_off, TF32), b_t, TF32)
    return b_t


@triton.jit(do_not_specialize=("sequences", "capacity"))
def _intra_kernel(
    p_q,
    p_k,
    p_v,
    p_a,
    p_beta,
    p_a_log,
    p_bias,
    p_cu,
    p_index,
    p_w,
    p_qg,
    p_kg,
    p_scores,
    p_ut,
    p_last,
    p_spans,
    lower_log2,
    scale,
    sequences,
    capacity,
    HV,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    NB: tl.constexpr,
    BOUNDED: tl.constexpr,
    SPLITS: tl.constexpr,
    LEVELS: tl.constexpr,
    MIDPOINT: tl.constexpr,
    EPSILON: tl.constexpr,
    TF32: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i_h = tl.program_id(0)
    i_c = tl.program_id(1)
    n, within, total = _sequence_of(p_cu, i_c, sequences, NB, C)
    if i_c < total:
        first = tl.load(p_cu + n)
        last = tl.load(p_cu + n + 1)
        if tl.load(p_index + n) >= 0:
            o_i = tl.arange(0, C)
            o_t = (first + within * C + o_i).to(tl.int64)
            m_t = o_t < last
            p_qk = o_t * (HV // GROUP * K) + i_h // GROUP * K
            b_k_norm = _inverse_norm(p_k + p_qk, m_t, K, EPSILON)
            b_q_norm = _inverse_norm(p_q + p_qk, m_t, K, EPSILON) * scale
            b_beta = tl.load(p_beta + o_t * HV + i_h, mask=m_t, other=0.0)
            rate = tl.exp2(tl.load(p_a_log + i_h) * 1.4426950408889634)
            chunk = i_h.to(tl.int64) * capacity + i_c
            p_rows = chunk * (C * K) + o_i * K

            b_kk = tl.zeros([C, C], dtype=tl.float32)
            b_qk = tl.zeros([C, C], dtype=tl.float32)
            b_own = tl.zeros([C], dtype=tl.float32)
            for i_k in range(K // BLOCK_K):
                o_k = i_k * BLOCK_K + tl.arange(0, BLOCK_K)
                m_row = m_t[:, None]
                b_bias = tl.load(p_bias + i_h * K + o_k)
                b_a = tl.load(p_a + o_t[:, None] * (HV * K) + (i_h * K + o_k)[None, :], mask=m_row, other=0.0)
                # Rows behind the sequence's end neither decay nor add: their keys, values, beta and decay are zero.
                b_g = _log2_decay(b_a.to(tl.float32) + b_bias[None, :], rate, lower_log2, BOUNDED)
                b_g = tl.where(m_row, b_g, 0.0)
                b_high = b_g.to(tl.bfloat16)
                b_low = (b_g - b_high.to(tl.float32)).to(tl.bfloat16)
                b_k = tl.load(p_k + p_qk[:, None] + o_k[None, :], mask=m_row, other=0.0).to(tl.float32)
                b_k *= b_k_norm[:, None]
                b_q = tl.load(p_q + p_qk[:, None] + o_k[None, :], mask=m_row, other=0.0).to(tl.float32)
                b_q *= b_q_norm[:, None]

                for split in tl.static_range(SPLITS):
                    half = (C // 2) >> split
                    b_e = tl.exp2(_span(p_spans + split * C * C, b_high, b_low, C))
                    b_left = (b_k * b_e).to(tl.bfloat16)
                    b_right = tl.trans(b_left)
                    m_pair = _halves(o_i, half)
                    b_kk += tl.where(m_pair, tl.dot(b_left, b_right), 0.0)
                    b_qk += tl.where(m_pair, tl.dot((b_q * b_e).to(tl.bfloat16), b_right), 0.0)
                if SPLITS < LEVELS:
                    b_e = _span(p_spans + LEVELS * C * C, b_high, b_low, C)
                    b_right = tl.trans((b_k * tl.exp2(-b_e)).to(tl.bfloat16))
                    b_e = tl.exp2(b_e)
                    m_block = (o_i // MIDPOINT)[:, None] == (o_i // MIDPOINT)[None, :]
                    m_lower = m_block & (o_i[:, None] > o_i[None, :])
                    b_kk += tl.where(m_lower, tl.dot((b_k * b_e).to(tl.bfloat16), b_right), 0.0)
                    b_qk += tl.where(m_lower, tl.dot((b_q * b_e).to(tl.bfloat16), b_right), 0.0)
                # A token's own key is not decayed; in FP32, since it alone decides where the decay is strong.
                b_own += tl.sum(b_q * b_k, axis=1)

                o_ck = p_rows[:, None] + o_k[None, :]
                b_e = tl.exp2(_span(p_spans + (LEVELS + 1) * C * C, b_high, b_low, C))
                tl.store(p_kg + o_ck, (b_k * b_e).to(tl.bfloat16))
                b_e = tl.exp2(_span(p_spans + (LEVELS + 2) * C * C, b_high, b_low, C))
                tl.store(p_qg + o_ck, (b_q * b_e).to(tl.bfloat16))
                # The inverse multiplies this below, in place.
                tl.store(p_w + o_ck, (b_k * b_e * -b_beta[:, None]).to(tl.bfloat16))
                o_last = tl.broadcast_to((chunk * K + o_k)[None, :], [C, BLOCK_K])
                tl.store(p_last + o_last, b_e, mask=tl.broadcast_to((o_i == C - 1)[:, None], [C, BLOCK_K]))

            b_qk += tl.where(o_i[:, None] == o_i[None, :], b_own[:, None], 0.0)
            tl.store(p_scores + (chunk * C + o_i)[:, None] * C + o_i[None, :], b_qk.to(tl.bfloat16))
            b_t = _inverse(b_kk * b_beta[:, None], o_i, C, LEVELS, TF32).to(tl.bfloat16)
            # Other threads of this program wrote what is loaded here.
            tl.debug_barrier()
            o_ck = p_rows[:, None] + tl.arange(0, K)[None, :]
            b_w = tl.dot(b_t, tl.load(p_w + o_ck)).to(tl.bfloat16)
            tl.debug_barrier()
            tl.store(p_w + o_ck, b_w)
            o_v = tl.arange(0, V)
            o_tv = o_t[:, None] * (HV * V) + (i_h * V + o_v)[None, :]
            b_v = tl.load(p_v + o_tv, mask=m_t[:, None], other=0.0).to(tl.float32)
            b_ut = tl.dot(tl.trans((b_v * b_beta[:, None]).to(tl.bfloat16)), tl.trans(b_t))
            o_ut = chunk * (C * V) + o_v[:, None] * C + o_i[None, :]
            tl.store(p_ut + o_ut, b_ut.to(tl.bfloat16))


@triton.jit(do_not_specialize=("sequences", "capacity"))
def _state_kernel(
    p_w,
    p_qg,
    p_kg,
    p_scores,
    p_ut,
    p_last,
    p_cu,
    p_index,
    p_has,
    p_state,
    p_out,
    stride_slot,
    sequences,
    capacity,
    HV,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    NB: tl.constexpr,
    BLOCK_V: tl.constexpr,
    STAGES: tl.constexpr,
):
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
            b_zero = tl.zeros([C, BLOCK_V], dtype=tl.bfloat16)
            tl.store(p_rows + i_c * step, b_zero, mask=m_t[:, None])
    elif chunks > 0:
        o_state = index * stride_slot + (i_h * V + o_v)[:, None] * K + o_k[None, :]
        has = tl.load(p_has + i_n) != 0
        b_s = tl.load(p_state + o_state, mask=(o_v < V)[:, None] & has, other=0.0)
        chunk = i_h.to(tl.int64) * capacity + before
        o_ck = o_i[:, None] * K + o_k[None, :]
        o_cc = o_i[:, None] * C + o_i[None, :]
        o_vc = o_v[:, None] * C + o_i[None, :]
        for i_c in tl.range(0, chunks, num_stages=STAGES):
            at = chunk + i_c
            b_w = tl.load(p_w + at * (C * K) + o_ck)
            b_u = tl.load(p_ut + at * (C * V) + o_vc)
            b_kg = tl.load(p_kg + at * (C * K) + o_ck)
            b_decay = tl.load(p_last + at * K + o_k)
            b_narrow = b_s.to(tl.bfloat16)
            b_new = tl.dot(b_narrow, tl.trans(b_w), acc=b_u.to(tl.float32)).to(tl.bfloat16)
            b_qg = tl.load(p_qg + at * (C * K) + o_ck)
            b_o = tl.dot(b_narrow, tl.trans(b_qg))
            b_s = tl.dot(b_new, b_kg, acc=b_s * b_decay[None, :])
            b_a = tl.load(p_scores + at * (C * C) + o_cc)
            b_o = tl.dot(b_new, tl.trans(b_a), acc=b_o)
            m_t = first + i_c * C + o_i < last
            tl.store(p_rows + i_c * step, tl.trans(b_o).to(tl.bfloat16), mask=m_t[:, None])
        tl.store(p_state + o_state, b_s)


INTRA_POINTERS = {
    **dict.fromkeys(("p_q", "p_k", "p_v", "p_a"), "*bf16"),
    **dict.fromkeys(("p_beta", "p_a_log", "p_bias"), "*fp32"),
    **dict.fromkeys(("p_cu", "p_index"), "*i32"),
    **dict.fromkeys(("p_w", "p_qg", "p_kg", "p_scores", "p_ut"), "*bf16"),
    "p_last": "*fp32",
    "p_spans": "*bf16",
}
STATE_POINTERS = {
    **dict.fromkeys(("p_w", "p_qg", "p_kg", "p_scores", "p_ut"), "*bf16"),
    "p_last": "*fp32",
    **dict.fromkeys(("p_cu", "p_index"), "*i32"),
    "p_has": "*u8",
    "p_state": "*fp32",
    "p_out": "*bf16",
}
# Loaded one by one, so that a view of any start will do.
UNALIGNED = ("p_cu", "p_index", "p_has", "p_a_log")


def _intra_constants(K: int, V: int, group: int, sequences: int, bounded: bool) -> dict[str, Any]:
    levels = CHUNK.bit_length() - 1
    return {
        "GROUP": group,
        "K": K,
        "V": V,
        "C": CHUNK,
        "NB": triton.next_power_of_2(sequences),
        "BOUNDED": bounded,
        "SPLITS": levels - (MIDPOINT.bit_length() - 1) if bounded else levels,
        "LEVELS": levels,
        "MIDPOINT": MIDPOINT,
        "EPSILON": L2_EPSILON,
        "TF32": SOLVE_TF32,
        "BLOCK_K": min(K, BLOCK_K),
    }


def _state_constants(
    K: int, V: int, sequences: int, chains: int, capability: tuple[int, int]
) -> tuple[dict[str, Any], int]:
    """Constants of the state pass, and its warps."""
    wide = WIDE if chains >= MANY_CHAINS else NARROW
    block_v, warps, stages = SMALL if capability in SMALL_SHARED_MEMORY else wide
    constants = {"K": K, "V": V, "C": CHUNK, "NB": triton.next_power_of_2(sequences)}
    return {**constants, "BLOCK_V": min(block_v, V), "STAGES": stages}, warps


def _compile_unit(
    function: str, constants: dict[str, Any], num_warps: int, capabilities: tuple[tuple[int, int], ...]
) -> dict[str, object]:
    if function == "_intra_kernel":
        numbers = {"lower_log2": "fp32", "scale": "fp32", "sequences": "i32", "capacity": "i32", "HV": "i32"}
        pointers = INTRA_POINTERS
    else:
        numbers = {"stride_slot": "i32", "sequences": "i32", "capacity": "i32", "HV": "i32"}
        pointers = STATE_POINTERS
    return {
        "function": function,
        "signature": {**pointers, **numbers, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": tuple(
            n for n in (*pointers, "stride_slot") if n not in UNALIGNED and n in {*pointers, *numbers}
        ),
        "num_warps": num_warps,
        "num_stages": 1,
        "capabilities": capabilities,
    }


def _compile_units() -> tuple[dict[str, object], ...]:
    found = []
    for bounded in (True, False):
        found.append(_compile_unit("_intra_kernel", _intra_constants(128, 128, 1, 1, bounded), INTRA_WARPS, ()))
    for chains, capabilities in ((1, ((9, 0),)), (MANY_CHAINS, ((9, 0),)), (1, SMALL_SHARED_MEMORY)):
        constants, warps = _state_constants(128, 128, 1, chains, capabilities[0])
        found.append(_compile_unit("_state_kernel", constants, warps, capabilities))
    return tuple(found)


_TOKENS = {"dtypes": ("bfloat16",), "contiguous": True, "alignment_bytes": 16}
_FLOATS = {"dtypes": ("float32",), "contiguous": True, "alignment_bytes": 16}
_INDICES = {"dtypes": ("int32",), "contiguous": True, "alignment_bytes": 4}
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
        {
            "axes": {
                "H": heads,
                "HV": heads,
                "P": heads * 128,
                "T": {"minimum": 1, "maximum": 1 << 20},
                "N": {"minimum": 1, "maximum": MAX_SEQUENCES},
            },
            "basis": "source thread",
        }
        for heads in BATCHED_HEADS
    ),
    "fallback": {"kind": "chain", "chain": ("kda_chunk_prefill_torch",)},
    "state": {
        "scratch_bytes": (CHUNK.bit_length() + 2) * CHUNK * CHUNK * 2,
        "concurrency": "calls on any streams may overlap; scratch is allocated a call from torch's caching allocator",
        "reset": "none is needed: only a table of constants outlives a call",
    },
    "kernels_per_call": 2,
    "compile_units": _compile_units(),
}


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


_SPANS: dict[tuple[str, int | None], torch.Tensor] = {}


def _spans(device: torch.device) -> torch.Tensor:
    """[LEVELS + 3, C, C] bf16 of zeros and ones: which tokens lie between each row and its reference; made once.

    References: the boundary between the halves of blocks of 64, 32, … 2 tokens; the middle of the 16 (negative where
    the row is before it); the chunk's end; its start.
    """
    key = (device.type, device.index)
    found = _SPANS.get(key)
    if found is not None:
        return found
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "kda_chunk_prefill_registers: the first call on this device is inside a graph capture; allowed: after one "
            "eager call, which makes a table of constants. Call chunk_prefill once before the capture."
        )
    at = torch.arange(CHUNK)
    references = [at // (2 * half) * (2 * half) + half - 1 for half in _halving(CHUNK // 2)]
    references += [
        at // MIDPOINT * MIDPOINT + MIDPOINT // 2 - 1,
        torch.full_like(at, CHUNK - 1),
        torch.full_like(at, -1),
    ]
    tables = []
    for n, reference in enumerate(references):
        later = (at > reference[:, None]) & (at <= at[:, None])
        earlier = (at > at[:, None]) & (at <= reference[:, None])
        tables.append(later.float() + earlier.float() * (-1.0 if n == len(references) - 3 else 1.0))
    return _SPANS.setdefault(key, torch.stack(tables).to(torch.bfloat16).to(device))


def _halving(half: int) -> list[int]:
    return [half >> n for n in range(half.bit_length())]


def _problems(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state: torch.Tensor,
    lower_bound: float | None,
) -> list[str]:
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


def _scratch(chunks: int, K: int, V: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """What launch 1 leaves for launch 2: -W, q̂·e^G, k̂·e^(G_last - G), Aqk, Uᵀ and e^G_last of each (head, chunk)."""
    widths, rows = (K, K, K, CHUNK, V), chunks * CHUNK
    tiles = (torch.empty(rows, width, dtype=torch.bfloat16, device=device) for width in widths)
    return (*tiles, torch.empty(chunks, K, dtype=torch.float32, device=device))


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
        a_log: [HV] fp32.
        dt_bias: [HV·K] fp32.
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
        RuntimeError: first call on a device inside a graph capture.
    """
    problems = _problems(q, k, v, a, cu_seqlens, state, lower_bound)
    if problems:
        raise ValueError("kda_chunk_prefill_registers: " + "; ".join(problems) + ".")
    (tokens, heads, K), (HV, V), sequences = q.shape, v.shape[1:], cu_seqlens.numel() - 1
    out = torch.empty_like(v) if out is None else out
    # Each sequence has at most one partial chunk, so no length is read on the host.
    capacity = tokens // CHUNK + sequences
    sizes = (sequences, capacity, HV)
    packed = _scratch(HV * capacity, K, V, q.device)
    constants = _intra_constants(K, V, HV // heads, sequences, lower_bound is not None)
    _intra_kernel[(HV, capacity)](
        *(q, k, v, a, beta, a_log, dt_bias, cu_seqlens, state_indices),
        *packed,
        _spans(q.device),
        (lower_bound or 0.0) * LOG2_E,
        K**-0.5,
        *sizes,
        **constants,
        num_warps=INTRA_WARPS,
        num_stages=1,
    )
    constants, warps = _state_constants(K, V, sequences, HV * sequences, _capability(q.device))
    _state_kernel[(V // constants["BLOCK_V"], HV, sequences)](
        *packed,
        *(cu_seqlens, state_indices, has_state.view(torch.uint8), state, out),
        state.stride(0),
        *sizes,
        **constants,
        num_warps=warps,
        num_stages=1,
    )
    return out
