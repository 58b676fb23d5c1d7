"""QSA top-k blocks: one program a row bisects the ordered-integer image of its scores, then writes ids in order.

The k-th largest key is found by its value: three thresholds a pass quarter the interval between the least and the
largest key, and a pass that finds a threshold with exactly k keys ends the search. All keys of a row decide in every
pass, so no buffer of candidates can overflow, however many scores are equal. Rows of up to 16384 columns are loaded
once and stay in registers; longer ones are read again in each pass, from L1 and L2. Ids come out ascending and ties go
to the lower id: positions are prefix sums, so the bits are the same in every launch. Nothing is kept between calls.

Imports torch and triton only. Idea: source thread sglang PR 36845, stage between scores and expansion; code written here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

RESIDENT_COLUMNS = 16384
"""Longest row that one program holds in registers: 16 keys a thread."""
BLOCK_N = 4096
MAX_COLUMNS = 1 << 20
"""Counts of three thresholds travel in one 64-bit integer, 21 bits each."""
MAX_K = 2048


@triton.jit
def _load_keys(p_scores, o_n, n):
    """int32 keys of the columns `o_n` that order as the scores do: -0 as 0, NaN as -inf, dead columns lowest."""
    b_bits = tl.load(p_scores + o_n, mask=o_n < n, other=0.0).to(tl.int32, bitcast=True)
    # On bits, since a comparison of floats may take a subnormal number for zero.
    b_magnitude = b_bits & 0x7FFFFFFF
    b_bits = tl.where(b_magnitude > 0x7F800000, -0x800000, b_bits)
    b_bits = tl.where(b_magnitude == 0, 0, b_bits)
    b_key = b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)
    return tl.where(o_n < n, b_key, -0x80000000)


@triton.jit
def _three_counts(b_key, q1, q2, q3):
    """How many keys reach each of three thresholds, 21 bits each in one int64."""
    b_1 = (b_key >= q1).to(tl.int64)
    b_2 = (b_key >= q2).to(tl.int64)
    b_3 = (b_key >= q3).to(tl.int64)
    return b_1 + (b_2 << 21) + (b_3 << 42)


@triton.jit
def _write_ids(p_blocks, b_key, o_n, n, k, threshold, need, above, equal):
    """Store the chosen ids of one tile behind those of the tiles before it.

    A chosen column's place is the number of keys above the threshold before it, and of those at the threshold as many
    as are wanted.
    """
    m_above = (b_key > threshold) & (o_n < n)
    m_equal = (b_key == threshold) & (o_n < n)
    # Both counts in one scan: a tile has at most 16384 columns.
    b_one = (m_above.to(tl.int32) << 16) + m_equal.to(tl.int32)
    b_scan = tl.cumsum(b_one, axis=0)
    b_before = b_scan - b_one
    b_equal = equal + (b_before & 0xFFFF)
    b_place = above + (b_before >> 16) + tl.minimum(b_equal, need)
    tl.store(p_blocks + b_place, o_n, mask=(m_above | (m_equal & (b_equal < need))) & (b_place < k))
    b_total = tl.sum(b_one, axis=0)
    return above + (b_total >> 16), equal + (b_total & 0xFFFF)


@triton.jit
def _bisected_kernel(
    p_scores,
    p_lengths,
    p_blocks,
    columns,
    k,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RESIDENT: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    p_row = p_scores + i_b * columns
    p_out = p_blocks + i_b * k
    n = tl.minimum(tl.maximum(tl.load(p_lengths + i_b), 0), columns)
    o_n = tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, BLOCK_K)
    tl.store(p_out + o_k, tl.full([BLOCK_K], -1, dtype=tl.int32), mask=(o_k >= n) & (o_k < k))
    # Dead columns have the least int32 as their key, so a row that is chosen whole has it as its threshold.
    threshold = tl.full([], -0x80000000, dtype=tl.int32)
    need = n * 0
    if RESIDENT:
        b_key = _load_keys(p_row, o_n, n)
    if n > k:
        if RESIDENT:
            low = tl.min(tl.where(o_n < n, b_key, 0x7FFFFFFF), axis=0).to(tl.int64)
            high = tl.max(b_key, axis=0).to(tl.int64)
        else:
            b_low = tl.full([BLOCK_N], 0x7FFFFFFF, dtype=tl.int32)
            b_high = tl.full([BLOCK_N], -0x80000000, dtype=tl.int32)
            for first in range(0, n, BLOCK_N):
                b_key = _load_keys(p_row, first + o_n, n)
                b_low = tl.minimum(b_low, tl.where(first + o_n < n, b_key, 0x7FFFFFFF))
                b_high = tl.maximum(b_high, b_key)
            low = tl.min(b_low, axis=0).to(tl.int64)
            high = tl.max(b_high, axis=0).to(tl.int64)
        # At least k keys reach `low`; fewer than k reach `high` + 1.
        while low < high:
            span = high - low
            q1 = low + (span + 3) // 4
            q2 = low + (span + 1) // 2
            q3 = low + (span * 3 + 3) // 4
            if RESIDENT:
                counts = tl.sum(_three_counts(b_key, q1.to(tl.int32), q2.to(tl.int32), q3.to(tl.int32)), axis=0)
            else:
                b_counts = tl.zeros([BLOCK_N], dtype=tl.int64)
                for first in range(0, n, BLOCK_N):
                    b_key = _load_keys(p_row, first + o_n, n)
                    b_counts += _three_counts(b_key, q1.to(tl.int32), q2.to(tl.int32), q3.to(tl.int32))
                counts = tl.sum(b_counts, axis=0)
            c1 = counts & 0x1FFFFF
            c2 = (counts >> 21) & 0x1FFFFF
            c3 = counts >> 42
            new_low = tl.where(c3 >= k, q3, tl.where(c2 >= k, q2, tl.where(c1 >= k, q1, low)))
            new_high = tl.where(c3 >= k, high, tl.where(c2 >= k, q3 - 1, tl.where(c1 >= k, q2 - 1, q1 - 1)))
            # A threshold that exactly k keys reach parts the row without ties.
            exact = tl.where(c3 == k, q3, tl.where(c2 == k, q2, q1))
            is_exact = (c1 == k) | (c2 == k) | (c3 == k)
            low = tl.where(is_exact, exact, new_low)
            high = tl.where(is_exact, exact, new_high)
        threshold = low.to(tl.int32)
        if RESIDENT:
            above_all = tl.sum((b_key > threshold).to(tl.int32), axis=0)
        else:
            b_above = tl.zeros([BLOCK_N], dtype=tl.int32)
            for first in range(0, n, BLOCK_N):
                b_above += (_load_keys(p_row, first + o_n, n) > threshold).to(tl.int32)
            above_all = tl.sum(b_above, axis=0)
        need = k - above_all
    above = n * 0
    equal = n * 0
    if RESIDENT:
        above, equal = _write_ids(p_out, b_key, o_n, n, k, threshold, need, above, equal)
    else:
        for first in range(0, n, BLOCK_N):
            b_key = _load_keys(p_row, first + o_n, n)
            above, equal = _write_ids(p_out, b_key, first + o_n, n, k, threshold, need, above, equal)


def _launch_constants(columns: int, k: int) -> dict[str, int | bool]:
    """Tile and form of a launch, by host-visible facts only."""
    resident = columns <= RESIDENT_COLUMNS
    block_n = max(128, 1 << (columns - 1).bit_length()) if resident else BLOCK_N
    return {"BLOCK_N": block_n, "BLOCK_K": 1 << (k - 1).bit_length(), "RESIDENT": resident}


def _warps(columns: int) -> int:
    return 4 if columns <= 512 else 16 if columns <= 4096 else 32


def _compile_unit(columns: int) -> dict[str, object]:
    constants = _launch_constants(columns, 512)
    arguments = {"p_scores": "*fp32", "p_lengths": "*i32", "p_blocks": "*i32", "columns": "i32", "k": "i32"}
    return {
        "function": "_bisected_kernel",
        "signature": {**arguments, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": ("p_scores", "p_lengths", "p_blocks", "columns", "k"),
        "num_warps": _warps(columns),
        "num_stages": 2,
    }


CONTRACT = {
    "op": "qsa.topk_blocks",
    "kernel": "qsa_topk_blocks_bisected",
    "entry": "topk_blocks",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "QSA block selection: top 512 of up to 65536 compressed keys a row",
    "tensors": {
        "scores": {"dtypes": ("float32",), "shape": ("B", "N"), "alignment_bytes": 4},
        "lengths": {"dtypes": ("int32",), "shape": ("B",), "alignment_bytes": 4},
        "blocks": {"dtypes": ("int32",), "shape": ("B", "K"), "alignment_bytes": 4, "optional": True},
    },
    "scalars": {"k": {"kind": "int", "minimum": 1, "maximum": MAX_K}},
    "callable": (
        {
            "axes": {"B": {"minimum": 1, "maximum": 65535}, "N": {"minimum": 1, "maximum": MAX_COLUMNS}},
            "basis": "counts of 21 bits",
        },
    ),
    "fallback": {"kind": "chain", "chain": ("qsa_topk_blocks_torch",)},
    "state": {"scratch_bytes": 0, "concurrency": "any: nothing is shared between calls", "reset": "none"},
    "kernels_per_call": 1,
    "compile_units": tuple(_compile_unit(columns) for columns in (512, 4096, RESIDENT_COLUMNS, 65536)),
}


def _problems(scores: torch.Tensor, lengths: torch.Tensor, k: int, blocks: torch.Tensor | None) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    if scores.dim() != 2 or scores.dtype != torch.float32 or not scores.is_contiguous():
        return ["scores must be contiguous float32 [B, N]"]
    found = []
    rows, columns = scores.shape
    if rows < 1 or not 1 <= columns <= MAX_COLUMNS:
        found.append(f"scores is {rows} x {columns}; allowed: 1 row or more of 1 to {MAX_COLUMNS} columns")
    if lengths.shape != (rows,) or lengths.dtype != torch.int32 or not lengths.is_contiguous():
        found.append(f"lengths must be contiguous int32 [{rows}]")
    if not 1 <= k <= MAX_K:
        found.append(f"k is {k}; allowed: 1 to {MAX_K}")
    if blocks is not None and (blocks.shape != (rows, k) or blocks.dtype != torch.int32 or not blocks.is_contiguous()):
        found.append(f"blocks must be contiguous int32 [{rows}, {k}]")
    return found


def topk_blocks(
    scores: torch.Tensor, lengths: torch.Tensor, *, k: int = 512, blocks: torch.Tensor | None = None
) -> torch.Tensor:
    """The ids of the k largest scores of each row, ascending, -1 behind them; ties go to the lower id.

    Args:
        scores: [B, N] fp32, contiguous; columns at or behind a row's length are not used. A NaN counts as -inf.
        lengths: [B] int32, read on the device; below 0 counts as 0, above N as N.
        k: ids a row, 1 to 2048.
        blocks: [B, k] int32, contiguous; allocated when None.

    Returns:
        blocks.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    problems = _problems(scores, lengths, k, blocks)
    if problems:
        raise ValueError("qsa_topk_blocks_bisected: " + "; ".join(problems) + ".")
    rows, columns = scores.shape
    if blocks is None:
        blocks = torch.empty(rows, k, dtype=torch.int32, device=scores.device)
    constants = _launch_constants(columns, k)
    _bisected_kernel[(rows,)](scores, lengths, blocks, columns, k, **constants, num_warps=_warps(columns))
    return blocks
