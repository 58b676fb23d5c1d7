"""QSA block scores: one program scores a chunk of a row's compressed keys straight from their pages.

The index heads are the rows of one 16-row tensor-core tile, so each key is loaded once for all of them. Products are
BF16 with FP32 accumulation; ReLU, the sum over heads and the scale follow in registers. Rows end where their live
length says, read on the device: chunks behind it load nothing and write -inf. Memory bound; one launch, no state.

Imports torch and triton only. Formula: source thread sglang PR 36845 and the indexer it feeds; code written here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

INDEX_DIM = 128
PAGE_ENTRIES = 16
BLOCK_H = 16
MAX_BATCH = 4096
MAX_SCORES = 1 << 20
SCALE = INDEX_DIM**-0.5


@dataclass(frozen=True)
class Schedule:
    """How a launch is cut: a program scores `tiles` tiles of `block_n` keys one after another."""

    block_n: int
    tiles: int
    num_warps: int
    num_stages: int


# (most scores B x N of a launch, schedule); the first entry that fits is used. Small launches get small tiles, so that
# 132 SMs have work; large ones loop over tiles with loads in flight. Not measured yet.
SCHEDULES = (
    (8192, Schedule(32, 1, num_warps=2, num_stages=2)),
    (65536, Schedule(64, 1, num_warps=4, num_stages=2)),
    (524288, Schedule(128, 1, num_warps=4, num_stages=2)),
    (MAX_BATCH * MAX_SCORES, Schedule(128, 4, num_warps=4, num_stages=3)),
)


def schedule_for(scores: int) -> Schedule:
    """The schedule of a launch with this many scores, B x N; host-visible facts only."""
    return next(schedule for most, schedule in SCHEDULES if scores <= most)


@triton.jit(do_not_specialize=["heads"])
def _paged_scores_kernel(
    p_q,
    p_keys,
    p_pages,
    p_lengths,
    p_scores,
    heads,
    N,
    scale,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILES: tl.constexpr,
):
    i_n = tl.program_id(0)
    i_b = tl.program_id(1).to(tl.int64)
    # A length beyond the row's pages must not lead into the next row's.
    length = tl.minimum(tl.load(p_lengths + i_b), N)
    o_h = tl.arange(0, BLOCK_H)
    o_d = tl.arange(0, D)
    o_n = tl.arange(0, BLOCK_N)
    # Padding heads are zero, and so are their products after the ReLU.
    b_q = tl.load(p_q + (i_b * heads + o_h[:, None]) * D + o_d[None, :], mask=(o_h < heads)[:, None], other=0.0)
    for tile in range(TILES):
        n = (i_n * TILES + tile) * BLOCK_N + o_n
        m_n = n < length
        page = tl.load(p_pages + i_b * (N // PAGE) + n // PAGE, mask=m_n, other=0).to(tl.int64)
        entry = page * PAGE + n % PAGE
        b_k = tl.load(p_keys + entry[:, None] * D + o_d[None, :], mask=m_n[:, None], other=0.0)
        b_s = tl.dot(b_q, tl.trans(b_k))  # [BLOCK_H, BLOCK_N]
        b_s = tl.sum(tl.maximum(b_s, 0.0), axis=0) * scale
        tl.store(p_scores + i_b * N + n, tl.where(m_n, b_s, -float("inf")), mask=n < N)


def _compile_unit(schedule: Schedule) -> dict[str, object]:
    pointers = {"p_q": "*bf16", "p_keys": "*bf16", "p_pages": "*i32", "p_lengths": "*i32", "p_scores": "*fp32"}
    constants = {
        "D": INDEX_DIM,
        "PAGE": PAGE_ENTRIES,
        "BLOCK_H": BLOCK_H,
        "BLOCK_N": schedule.block_n,
        "TILES": schedule.tiles,
    }
    scalars = {"heads": "i32", "N": "i32", "scale": "fp32"}
    return {
        "function": "_paged_scores_kernel",
        "signature": {**pointers, **scalars, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": ("p_q", "p_keys", "p_scores", "N"),
        "num_warps": schedule.num_warps,
        "num_stages": schedule.num_stages,
    }


_BF16 = {"dtypes": ("bfloat16",), "contiguous": True, "alignment_bytes": 16}
_INT32 = {"dtypes": ("int32",), "contiguous": True, "alignment_bytes": 4}
CONTRACT = {
    "op": "qsa.block_scores",
    "kernel": "qsa_block_scores_paged",
    "entry": "block_scores",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "QSA index scores of one decode step over paged compressed keys (BF16, width 128, pages of 16)",
    "tensors": {
        "q_index": {**_BF16, "shape": ("B", "HI", INDEX_DIM)},
        "keys": {**_BF16, "shape": ("S", INDEX_DIM)},
        "pages": {**_INT32, "shape": ("B", f"N/{PAGE_ENTRIES}")},
        "lengths": {**_INT32, "shape": ("B",)},
        "scores": {
            "dtypes": ("float32",),
            "contiguous": True,
            "alignment_bytes": 16,
            "shape": ("B", "N"),
            "optional": True,
        },
    },
    "scalars": {},
    "callable": (
        {
            "axes": {
                "B": {"minimum": 1, "maximum": MAX_BATCH},
                "HI": {"minimum": 1, "maximum": BLOCK_H},
                "N": {"minimum": PAGE_ENTRIES, "maximum": MAX_SCORES, "multiple_of": PAGE_ENTRIES},
            },
            "basis": "one 16-row tile of heads; pages of 16",
        },
    ),
    "fallback": {"kind": "chain", "chain": ("qsa_block_scores_torch",)},
    "state": {"scratch_bytes": 0, "concurrency": "any: launches share nothing", "reset": "none"},
    "kernels_per_call": 1,
    "compile_units": tuple(_compile_unit(schedule) for _, schedule in SCHEDULES),
}


def _problems(q_index: torch.Tensor, keys: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    if q_index.dim() != 3 or keys.dim() != 2 or pages.dim() != 2 or lengths.dim() != 1:
        return ["q_index must be [B, HI, 128], keys [S, 128], pages [B, N/16] and lengths [B]"]
    found = []
    if q_index.shape[2] != INDEX_DIM or keys.shape[1] != INDEX_DIM or not 1 <= q_index.shape[1] <= BLOCK_H:
        found.append(f"heads and width are {tuple(q_index.shape[1:])}; allowed: 1 to {BLOCK_H} heads x {INDEX_DIM}")
    if not q_index.shape[0] == pages.shape[0] == lengths.shape[0] or not 1 <= q_index.shape[0] <= MAX_BATCH:
        found.append(f"B is {q_index.shape[0]}; allowed: 1 to {MAX_BATCH}, the same for pages and lengths")
    if not 1 <= pages.shape[1] <= MAX_SCORES // PAGE_ENTRIES:
        found.append(f"pages a row are {pages.shape[1]}; allowed: 1 to {MAX_SCORES // PAGE_ENTRIES}")
    if any(t.dtype != torch.bfloat16 for t in (q_index, keys)):
        found.append("q_index and keys must be bfloat16")
    if any(t.dtype != torch.int32 for t in (pages, lengths)):
        found.append("pages and lengths must be int32")
    if not all(t.is_contiguous() for t in (q_index, keys, pages, lengths)):
        found.append("every tensor must be contiguous")
    return found


def block_scores(
    q_index: torch.Tensor,
    keys: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scores: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scores of each row's compressed keys, -inf behind its length.

    Args:
        q_index: [B, HI, 128] bf16, contiguous, normalised and rotated.
        keys: [S, 128] bf16, contiguous, 16 entries a page; only live entries are read.
        pages: [B, N/16] int32; only those of live entries are read.
        lengths: [B] int32, 0 to N, read on the device.
        scores: [B, N] fp32, contiguous; allocated when None.

    Returns:
        scores: 128^-0.5 · sum over heads of max(0, q · k).

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    problems = _problems(q_index, keys, pages, lengths)
    if problems:
        raise ValueError("qsa_block_scores_paged: " + "; ".join(problems) + ".")
    rows, columns = pages.shape[0], pages.shape[1] * PAGE_ENTRIES
    if scores is None:
        scores = torch.empty(rows, columns, dtype=torch.float32, device=q_index.device)
    schedule = schedule_for(rows * columns)
    _paged_scores_kernel[(triton.cdiv(columns, schedule.block_n * schedule.tiles), rows)](
        q_index,
        keys,
        pages,
        lengths,
        scores,
        q_index.shape[1],
        columns,
        SCALE,
        D=INDEX_DIM,
        PAGE=PAGE_ENTRIES,
        BLOCK_H=BLOCK_H,
        BLOCK_N=schedule.block_n,
        TILES=schedule.tiles,
        num_warps=schedule.num_warps,
        num_stages=schedule.num_stages,
    )
    return scores
