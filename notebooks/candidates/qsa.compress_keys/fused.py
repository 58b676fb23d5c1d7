"""QSA compressed keys: mean, norm, rotation and ring bookkeeping of a step in one launch.

Two kinds of programs share it. Token programs take a few tokens each; one that completes a group finds the group's
members among the tokens just before it or, where an earlier step left them, in the old ring. Request programs write
the new ring, one request each: they look for the request's last token of the step and keep the old places that no
token fills. Nothing is read that another program writes, so there is no order to wait for, and no state.

Arithmetic: FP32, the mean rounded to BF16 as the definition says, one rounding at the store.
Imports torch and triton only. Definition: source thread sglang PR 36845 and the indexer it feeds; code written here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

INDEX_DIM = 128
RATIO = 4
BLOCK_T = 4
BLOCK_SCAN = 1024
MAX_TOKENS = 1 << 20
MAX_REQUESTS = 1 << 16
EPS = 1e-6


@triton.jit
def _member(
    p_k,
    p_requests,
    p_positions,
    p_slots,
    p_ring,
    o_t,
    back,
    m_t,
    request,
    position,
    o_d,
    RATIO: tl.constexpr,
    D: tl.constexpr,
):
    """Where the raw key `back` tokens before each token lies: pointers and masks into the step and into the ring."""
    t = o_t - back
    m_step = m_t & (t >= 0)
    m_step = m_step & (tl.load(p_requests + t, mask=m_step, other=-1) == request)
    m_step = m_step & (tl.load(p_positions + t, mask=m_step, other=-1) == position - back)
    m_step = m_step & (tl.load(p_slots + t, mask=m_step, other=0) > 0)
    m_ring = m_t & (m_step == 0)
    # Groups are aligned, so the member `back` before the last lies in place r - 1 - back.
    o_ring = (request.to(tl.int64) * RATIO + (RATIO - 1 - back)) * D
    p_step = p_k + t.to(tl.int64)[:, None] * D + o_d[None, :]
    return p_step, m_step, p_ring + o_ring[:, None] + o_d[None, :], m_ring


@triton.jit(do_not_specialize=["T", "token_programs"])
def _compress_kernel(
    p_k,
    p_requests,
    p_positions,
    p_slots,
    p_ring,
    p_weight,
    p_cos_sin,
    p_entries,
    p_entry_slots,
    p_new_ring,
    eps,
    T,
    token_programs,
    RATIO: tl.constexpr,
    D: tl.constexpr,
    W: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_SCAN: tl.constexpr,
):
    i_p = tl.program_id(0)
    o_d = tl.arange(0, D)
    if i_p < token_programs:
        HALF: tl.constexpr = W // 2
        # The channel that each one turns with; those behind the rotary width turn with none.
        o_p = tl.where(o_d < HALF, o_d + HALF, tl.where(o_d < W, o_d - HALF, o_d))
        o_t = i_p * BLOCK_T + tl.arange(0, BLOCK_T)
        m_t = o_t < T
        request = tl.load(p_requests + o_t, mask=m_t, other=0)
        position = tl.load(p_positions + o_t, mask=m_t, other=0)
        slot = tl.load(p_slots + o_t, mask=m_t, other=0)
        m_c = m_t & (slot > 0) & ((position + 1) % RATIO == 0)
        b_x = tl.zeros([BLOCK_T, D], dtype=tl.float32)
        b_y = tl.zeros([BLOCK_T, D], dtype=tl.float32)
        for member in tl.static_range(RATIO):
            p_step, m_step, p_old, m_old = _member(
                p_k,
                p_requests,
                p_positions,
                p_slots,
                p_ring,
                o_t,
                RATIO - 1 - member,
                m_c,
                request,
                position,
                o_d,
                RATIO,
                D,
            )
            shift = (o_p - o_d)[None, :]
            b_x += tl.load(p_step, mask=m_step[:, None], other=0.0).to(tl.float32)
            b_x += tl.load(p_old, mask=m_old[:, None], other=0.0).to(tl.float32)
            b_y += tl.load(p_step + shift, mask=m_step[:, None], other=0.0).to(tl.float32)
            b_y += tl.load(p_old + shift, mask=m_old[:, None], other=0.0).to(tl.float32)
        b_x = (b_x * (1.0 / RATIO)).to(tl.bfloat16).to(tl.float32)
        b_y = (b_y * (1.0 / RATIO)).to(tl.bfloat16).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(b_x * b_x, axis=1) * (1.0 / D) + eps)
        b_x = b_x * scale[:, None] * (tl.load(p_weight + o_d).to(tl.float32) + 1.0)[None, :]
        b_y = b_y * scale[:, None] * (tl.load(p_weight + o_p).to(tl.float32) + 1.0)[None, :]
        o_table = (position - (RATIO - 1)).to(tl.int64)[:, None] * W + (o_d % HALF)[None, :]
        m_table = m_c[:, None] & (o_d < W)[None, :]
        cos = tl.load(p_cos_sin + o_table, mask=m_table, other=1.0)
        sin = tl.load(p_cos_sin + o_table + HALF, mask=m_table, other=0.0)
        sin = tl.where((o_d < HALF)[None, :], -sin, sin)
        b_out = tl.where(m_c[:, None], b_x * cos + b_y * sin, 0.0)
        tl.store(
            p_entries + o_t.to(tl.int64)[:, None] * D + o_d[None, :],
            b_out.to(p_entries.dtype.element_ty),
            mask=m_t[:, None],
        )
        tl.store(p_entry_slots + o_t, tl.where(m_c, (slot - (RATIO - 1)) // RATIO, 0), mask=m_t)
    else:
        i_r = i_p - token_programs
        o_s = tl.arange(0, BLOCK_SCAN)
        b_last = tl.full([BLOCK_SCAN], -1, dtype=tl.int32)
        for start in range(0, T, BLOCK_SCAN):
            t = start + o_s
            m_s = t < T
            mine = tl.load(p_requests + t, mask=m_s, other=-1) == i_r
            mine = mine & (tl.load(p_slots + t, mask=m_s, other=0) > 0)
            b_last = tl.where(mine, t, b_last)
        last = tl.max(b_last, axis=0)
        top = tl.load(p_positions + last, mask=last >= 0, other=0)
        # How far before the request's last token the newest token of each place lies.
        o_r = tl.arange(0, RATIO)
        back = (top % RATIO + RATIO - o_r) % RATIO
        t = last - back
        m_r = t >= 0
        m_r = m_r & (tl.load(p_requests + t, mask=m_r, other=-1) == i_r)
        m_r = m_r & (tl.load(p_positions + t, mask=m_r, other=-1) == top - back)
        m_r = m_r & (tl.load(p_slots + t, mask=m_r, other=0) > 0)
        o_ring = (i_r.to(tl.int64) * RATIO + o_r)[:, None] * D + o_d[None, :]
        b_new = tl.load(p_k + t.to(tl.int64)[:, None] * D + o_d[None, :], mask=m_r[:, None], other=0.0)
        b_old = tl.load(p_ring + o_ring, mask=(m_r == 0)[:, None], other=0.0)
        tl.store(p_new_ring + o_ring, tl.where(m_r[:, None], b_new, b_old))


def _compile_unit(rotary: int) -> dict[str, object]:
    pointers = {"p_k": "*bf16", "p_requests": "*i32", "p_positions": "*i32", "p_slots": "*i64", "p_ring": "*bf16"}
    pointers |= {"p_weight": "*bf16", "p_cos_sin": "*fp32"}
    pointers |= {"p_entries": "*bf16", "p_entry_slots": "*i64", "p_new_ring": "*bf16"}
    constants = {"RATIO": RATIO, "D": INDEX_DIM, "W": rotary, "BLOCK_T": BLOCK_T, "BLOCK_SCAN": BLOCK_SCAN}
    scalars = {"eps": "fp32", "T": "i32", "token_programs": "i32"}
    return {
        "function": "_compress_kernel",
        "signature": {**pointers, **scalars, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": ("p_k", "p_ring", "p_weight", "p_cos_sin", "p_entries", "p_new_ring"),
        "num_warps": 4,
        "num_stages": 2,
    }


_BF16 = {"dtypes": ("bfloat16",), "contiguous": True, "alignment_bytes": 16}
_INT32 = {"dtypes": ("int32",), "shape": ("T",), "contiguous": True, "alignment_bytes": 4}
_INT64 = {"dtypes": ("int64",), "shape": ("T",), "contiguous": True, "alignment_bytes": 8}
CONTRACT = {
    "op": "qsa.compress_keys",
    "kernel": "qsa_compress_keys_fused",
    "entry": "compress_keys",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "QSA compressed index keys of one step: ring bookkeeping, mean, norm and rotation (BF16, width 128, r 4)",
    "tensors": {
        "k_raw": {**_BF16, "shape": ("T", INDEX_DIM)},
        "requests": _INT32,
        "positions": _INT32,
        "slots": _INT64,
        "ring": {**_BF16, "shape": ("R", RATIO, INDEX_DIM)},
        "weight": {**_BF16, "shape": (INDEX_DIM,)},
        "cos_sin": {"dtypes": ("float32",), "shape": ("P", "W"), "contiguous": True, "alignment_bytes": 16},
        "entries": {**_BF16, "shape": ("T", INDEX_DIM), "optional": True},
        "entry_slots": {**_INT64, "optional": True},
        "new_ring": {**_BF16, "shape": ("R", RATIO, INDEX_DIM), "optional": True},
    },
    "scalars": {"eps": {"kind": "float", "minimum": 0.0, "optional": True}},
    "callable": (
        {
            "axes": {
                "T": {"minimum": 1, "maximum": MAX_TOKENS},
                "R": {"minimum": 1, "maximum": MAX_REQUESTS},
                "W": (32, 64, 128),
            },
            "basis": "any step; rotary widths that were compiled",
        },
    ),
    "fallback": {"kind": "chain", "chain": ("qsa_compress_keys_torch",)},
    "state": {"scratch_bytes": 0, "concurrency": "any: launches share nothing", "reset": "none"},
    "kernels_per_call": 1,
    "compile_units": tuple(_compile_unit(rotary) for rotary in (32, 64, 128)),
}


def _problems(
    tokens: tuple[torch.Tensor, ...], ring: torch.Tensor, weight: torch.Tensor, table: torch.Tensor
) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    k_raw, requests, positions, slots = tokens
    if k_raw.dim() != 2 or ring.dim() != 3 or table.dim() != 2:
        return ["k_raw must be [T, 128], ring [R, 4, 128] and cos_sin [P, W]"]
    found = []
    if k_raw.shape[1] != INDEX_DIM or ring.shape[1:] != (RATIO, INDEX_DIM) or weight.shape != (INDEX_DIM,):
        found.append(
            f"ring is {tuple(ring.shape)}; allowed: [R, {RATIO}, {INDEX_DIM}], k_raw and weight {INDEX_DIM} wide"
        )
    if not 1 <= k_raw.shape[0] <= MAX_TOKENS or any(t.shape != k_raw.shape[:1] for t in tokens[1:]):
        found.append(f"T is {k_raw.shape[0]}; allowed: 1 to {MAX_TOKENS}, the same for requests, positions and slots")
    if table.shape[1] not in (32, 64, 128):
        found.append(f"W is {table.shape[1]}; allowed: 32, 64, 128")
    if any(t.dtype != torch.bfloat16 for t in (k_raw, ring, weight)) or table.dtype != torch.float32:
        found.append("k_raw, ring and weight must be bfloat16, cos_sin float32")
    if requests.dtype != torch.int32 or positions.dtype != torch.int32 or slots.dtype != torch.int64:
        found.append("requests and positions must be int32, slots int64")
    if not all(t.is_contiguous() for t in (*tokens, ring, weight, table)):
        found.append("every tensor must be contiguous")
    return found


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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The compressed key of every group that this step completes, where it goes, and the ring afterwards.

    Args:
        k_raw: [T, 128] bf16, raw index keys; a request's tokens adjacent, at ascending consecutive positions.
        requests: [T] int32, 0 to R-1.
        positions: [T] int32.
        slots: [T] int64, raw KV slots; 0 marks padding, which changes nothing.
        ring: [R, 4, 128] bf16, pending raw keys: position p in place p % 4; not written.
        weight: [128] bf16, the norm's weight less one.
        cos_sin: [P, W] fp32, W/2 cosines and W/2 sines of each position; W 32, 64 or 128.
        eps: of the norm; 1e-6 when None.
        entries, entry_slots, new_ring: [T, 128] bf16, [T] int64, [R, 4, 128] bf16; allocated when None. No overlap
            with an input: the old ring is read while the new one is written.

    Returns:
        entries, entry_slots (both 0 where a token completes nothing) and new_ring.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    problems = _problems((k_raw, requests, positions, slots), ring, weight, cos_sin)
    if problems:
        raise ValueError("qsa_compress_keys_fused: " + "; ".join(problems) + ".")
    entries = torch.empty_like(k_raw) if entries is None else entries
    entry_slots = torch.empty_like(slots) if entry_slots is None else entry_slots
    new_ring = torch.empty_like(ring) if new_ring is None else new_ring
    token_programs = triton.cdiv(k_raw.shape[0], BLOCK_T)
    _compress_kernel[(token_programs + ring.shape[0],)](
        k_raw,
        requests,
        positions,
        slots,
        ring,
        weight,
        cos_sin,
        entries,
        entry_slots,
        new_ring,
        EPS if eps is None else eps,
        k_raw.shape[0],
        token_programs,
        RATIO=RATIO,
        D=INDEX_DIM,
        W=cos_sin.shape[1],
        BLOCK_T=BLOCK_T,
        BLOCK_SCAN=BLOCK_SCAN,
        num_warps=4,
        num_stages=2,
    )
    return entries, entry_slots, new_ring
