"""QSA block expansion: one program a row; a block's place is the prefix sum of the valid tokens before it.

One program serves one row whatever the number of rows. Valid tokens come first wherever -1 stands among the blocks:
each block adds its 0 to `ratio` tokens below the length, the tail follows, -1 fills the rest. Every element of the
output is stored once. Nothing is kept between calls.

Imports torch and triton only. Idea: source thread sglang PR 36845, stage between selection and compaction; code
written here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MAX_K = 4096
MAX_RATIO = 16
NUM_WARPS = 8


@triton.jit
def _scanned_kernel(
    p_blocks,
    p_lengths,
    p_positions,
    p_tokens,
    k,
    width,
    RATIO: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    p_row = p_tokens + i_b * width
    o_k = tl.arange(0, BLOCK_K)
    length = tl.load(p_lengths + i_b).to(tl.int64)
    position = tl.load(p_positions + i_b).to(tl.int64)
    # 64 bits: a wild block id times the ratio must not come back as a small token.
    b_block = tl.load(p_blocks + i_b * k + o_k, mask=o_k < k, other=-1).to(tl.int64)
    b_first = b_block * RATIO
    b_count = tl.minimum(tl.maximum(length - b_first, 0), RATIO)
    b_count = tl.where(b_block >= 0, b_count, 0).to(tl.int32)
    b_start = tl.cumsum(b_count, axis=0) - b_count
    total = tl.sum(b_count, axis=0)
    o_r = tl.arange(0, BLOCK_R)
    m_kr = o_r[None, :] < b_count[:, None]
    tl.store(p_row + b_start[:, None] + o_r[None, :], (b_first[:, None] + o_r[None, :]).to(tl.int32), mask=m_kr)

    tail = tl.maximum(position + 1, 0) // RATIO * RATIO
    tail_count = tl.minimum(tl.maximum(tl.minimum(position + 1, length) - tail, 0), RATIO - 1).to(tl.int32)
    tl.store(p_row + total + o_r, (tail + o_r).to(tl.int32), mask=o_r < tail_count)
    o_w = tl.arange(0, BLOCK_W)
    b_none = tl.full([BLOCK_W], -1, dtype=tl.int32)
    tl.store(p_row + o_w, b_none, mask=(o_w >= total + tail_count) & (o_w < width))


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _launch_constants(k: int, ratio: int) -> dict[str, int]:
    width = k * ratio + ratio - 1
    return {
        "RATIO": ratio,
        "BLOCK_R": _power_of_two(ratio),
        "BLOCK_K": _power_of_two(k),
        "BLOCK_W": _power_of_two(width),
    }


def _compile_unit(k: int, ratio: int) -> dict[str, object]:
    constants = _launch_constants(k, ratio)
    pointers = dict.fromkeys(("p_blocks", "p_lengths", "p_positions", "p_tokens"), "*i32")
    return {
        "function": "_scanned_kernel",
        "signature": {**pointers, "k": "i32", "width": "i32", **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": (*pointers, "k"),
        "num_warps": NUM_WARPS,
        "num_stages": 2,
    }


_ROW = {"dtypes": ("int32",), "shape": ("B",), "alignment_bytes": 4}
CONTRACT = {
    "op": "qsa.expand_blocks",
    "kernel": "qsa_expand_blocks_scanned",
    "entry": "expand_blocks",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "QSA block expansion: 512 blocks of 4 tokens and a tail of up to 3",
    "tensors": {
        "blocks": {"dtypes": ("int32",), "shape": ("B", "K"), "alignment_bytes": 4},
        "lengths": _ROW,
        "positions": _ROW,
        "tokens": {"dtypes": ("int32",), "shape": ("B", "W"), "alignment_bytes": 4, "optional": True},
    },
    "scalars": {"ratio": {"kind": "int", "minimum": 1, "maximum": MAX_RATIO}},
    "callable": (
        {
            "axes": {"B": {"minimum": 1, "maximum": 1 << 20}, "K": {"minimum": 1, "maximum": MAX_K}},
            "basis": "one program a row",
        },
    ),
    "fallback": {"kind": "chain", "chain": ("qsa_expand_blocks_torch",)},
    "state": {"scratch_bytes": 0, "concurrency": "any: nothing is shared between calls", "reset": "none"},
    "kernels_per_call": 1,
    "compile_units": (_compile_unit(512, 4), _compile_unit(2048, 4)),
}


def _problems(
    blocks: torch.Tensor, lengths: torch.Tensor, positions: torch.Tensor, ratio: int, tokens: torch.Tensor | None
) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    if blocks.dim() != 2 or blocks.dtype != torch.int32 or not blocks.is_contiguous():
        return ["blocks must be contiguous int32 [B, k]"]
    found = []
    rows, k = blocks.shape
    if rows < 1 or not 1 <= k <= MAX_K:
        found.append(f"blocks is {rows} x {k}; allowed: 1 row or more of 1 to {MAX_K} blocks")
    if not 1 <= ratio <= MAX_RATIO:
        found.append(f"ratio is {ratio}; allowed: 1 to {MAX_RATIO}")
    for name, given in (("lengths", lengths), ("positions", positions)):
        if given.shape != (rows,) or given.dtype != torch.int32 or not given.is_contiguous():
            found.append(f"{name} must be contiguous int32 [{rows}]")
    wanted = (rows, k * ratio + ratio - 1)
    if tokens is not None and (tokens.shape != wanted or tokens.dtype != torch.int32 or not tokens.is_contiguous()):
        found.append(f"tokens must be contiguous int32 {list(wanted)}")
    return found


def expand_blocks(
    blocks: torch.Tensor,
    lengths: torch.Tensor,
    positions: torch.Tensor,
    *,
    ratio: int = 4,
    tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """The tokens of each row's blocks, then those of its incomplete tail, then -1.

    Args:
        blocks: [B, k] int32, contiguous, read on the device; a negative id is no block.
        lengths: [B] int32: no token at or behind it is named.
        positions: [B] int32: the tail is ratio · ((position + 1) // ratio) to position.
        ratio: tokens a block, 1 to 16.
        tokens: [B, k · ratio + ratio - 1] int32, contiguous; allocated when None.

    Returns:
        tokens.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    problems = _problems(blocks, lengths, positions, ratio, tokens)
    if problems:
        raise ValueError("qsa_expand_blocks_scanned: " + "; ".join(problems) + ".")
    rows, k = blocks.shape
    width = k * ratio + ratio - 1
    if tokens is None:
        tokens = torch.empty(rows, width, dtype=torch.int32, device=blocks.device)
    constants = _launch_constants(k, ratio)
    _scanned_kernel[(rows,)](blocks, lengths, positions, tokens, k, width, **constants, num_warps=NUM_WARPS)
    return tokens
