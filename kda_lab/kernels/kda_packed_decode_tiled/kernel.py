"""KDA packed decode: each program reads its rows of one state once and writes them once.

The call moves 2·V·K·4 bytes of state a (request, head) and little else, so the kernel is made to keep many 16-byte
loads in flight: everything that depends on no state is loaded before it, and the normalisation, gate and write strength
are computed while the tile is on its way. Both sums over K run on the tile as it was loaded, side by side:

    S' = S · exp(g)      d = beta · (v - S' k̂)      o = S' q̂ + d · (k̂ · q̂)      S <- S' + d k̂ᵀ

which is the read after the update, without a second pass over the updated tile. FP32 arithmetic; a BF16 state is
widened on load and rounded once on store. A request with index -1 gets a zero row, and no state is touched for it.
Slots are multiplied in 64 bits: pools of many layers pass 2^31 elements.

Imports torch and triton only. Definition: Kimi Delta Attention as served (source threads sglang PR 26586 and PR 32890);
code written here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

EPSILON = 1e-6
LOG2_E = 1.4426950408889634
MAX_BATCH = 65535
WIDTHS = (16, 20, 32, 48, 60, 64, 80, 96, 100, 128, 256)
"""Extents of K and V that were tried; others are refused by the contract, not by the kernel."""
HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
LEAST_BOUND = -5.0


@dataclass(frozen=True)
class Schedule:
    """How one launch is cut."""

    block_v: int
    """Rows of the state in a tile."""
    num_warps: int
    tiles: int = 1
    """Tiles a program, one after another, each loaded while the one before is computed."""
    streamed: bool = True
    """State lines are marked to leave the cache first: nothing reads them again before the next token."""


# (most requests x value heads, schedule); the first entry that fits is used. Of eight to twenty schedules on eight rows the
# fastest on one H200: small tiles keep most loads in flight, and evicting first pays while the state is a few hundred MB.
SCHEDULES = (
    (8192, Schedule(block_v=4, num_warps=1)),
    (1 << 62, Schedule(block_v=8, num_warps=1, streamed=False)),
)


def schedule_for(heads: int) -> Schedule:
    """The schedule of a launch over `heads` = requests x value heads; host-visible facts only."""
    return next(schedule for most, schedule in SCHEDULES if heads <= most)


@triton.jit
def _vector(p, o, m, EVEN: tl.constexpr):
    """A vector in FP32, masked only where its block is wider than it."""
    if EVEN:
        return tl.load(p + o).to(tl.float32)
    return tl.load(p + o, mask=m, other=0.0).to(tl.float32)


@triton.jit
def _load_tile(p, m, EVEN: tl.constexpr, STREAMED: tl.constexpr):
    """A tile of the state in FP32."""
    if EVEN:
        if STREAMED:
            return tl.load(p, eviction_policy="evict_first").to(tl.float32)
        return tl.load(p).to(tl.float32)
    return tl.load(p, mask=m, other=0.0).to(tl.float32)


@triton.jit
def _store_tile(p, b, m, EVEN: tl.constexpr, STREAMED: tl.constexpr):
    """A tile of the state in the pool's dtype."""
    b = b.to(p.dtype.element_ty)
    if EVEN:
        if STREAMED:
            tl.store(p, b, eviction_policy="evict_first")
        else:
            tl.store(p, b)
    else:
        tl.store(p, b, mask=m)


@triton.jit
def _sigmoid(x, LOG2_E: tl.constexpr):
    # Clamped, so that exp2 stays finite: below 2^-126 the result is no different for any use here.
    return 1.0 / (1.0 + tl.exp2(tl.minimum(-x * LOG2_E, 126.0)))


@triton.jit
def _decay(b_x, a_log, lower_bound, SAFE: tl.constexpr, LOG2_E: tl.constexpr):
    """exp(g) of one head's raw gate plus bias."""
    rate = tl.exp2(a_log * LOG2_E)
    if SAFE:
        return tl.exp2(lower_bound * LOG2_E * _sigmoid(rate * b_x, LOG2_E))
    # Above 20 softplus is its argument; the exponential is kept finite there.
    soft = tl.where(b_x > 20.0, b_x, tl.log(1.0 + tl.exp2(tl.minimum(b_x, 20.0) * LOG2_E)))
    return tl.exp2(-rate * LOG2_E * soft)


# Extents of the rows and heads: one binary serves them all.
@triton.jit(do_not_specialize=["H", "HV", "b_stride"])
def _packed_decode_kernel(
    p_qkv,
    p_a,
    p_b,
    p_a_log,
    p_dt_bias,
    p_state,
    p_indices,
    p_out,
    lower_bound,
    scale,
    H,
    GROUP,
    qkv_stride,
    a_stride,
    b_stride,
    slot_stride,
    HV,
    V: tl.constexpr,
    K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILES: tl.constexpr,
    SAFE: tl.constexpr,
    STREAMED: tl.constexpr,
    EPSILON: tl.constexpr,
    LOG2_E: tl.constexpr,
):
    i_v, i_hv, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i_h = i_hv // GROUP
    EVEN_K: tl.constexpr = BLOCK_K == K
    EVEN_V: tl.constexpr = V % (BLOCK_V * TILES) == 0
    EVEN: tl.constexpr = EVEN_K and EVEN_V
    index = tl.load(p_indices + i_b)
    o_k = tl.arange(0, BLOCK_K)
    o_v = i_v * (BLOCK_V * TILES) + tl.arange(0, BLOCK_V)
    m_k = o_k < K
    m_v = o_v < V
    p_out += (i_b * HV + i_hv) * V
    # Ahead of the branch, so that these loads do not wait for the index.
    p_row = p_qkv + i_b * qkv_stride
    b_q = _vector(p_row + i_h * K, o_k, m_k, EVEN_K)
    b_k = _vector(p_row + (H + i_h) * K, o_k, m_k, EVEN_K)
    p_v = p_row + 2 * H * K + i_hv * V
    b_v_next = _vector(p_v, o_v, m_v, EVEN_V)
    b_a = _vector(p_a + i_b * a_stride + i_hv * K, o_k, m_k, EVEN_K)
    b_bias = _vector(p_dt_bias + i_hv * K, o_k, m_k, EVEN_K)
    strength = tl.load(p_b + i_b * b_stride + i_hv).to(tl.float32)
    rate = tl.load(p_a_log + i_hv)
    if index >= 0:
        # 64 bits before the product: a pool of many layers has more than 2^31 elements.
        p_head = p_state + index.to(tl.int64) * slot_stride + i_hv * (V * K)
        p_tile = p_head + o_v[:, None] * K + o_k[None, :]
        b_next = _load_tile(p_tile, m_v[:, None] & m_k[None, :], EVEN, STREAMED)
        beta = _sigmoid(strength, LOG2_E)
        b_decay = _decay(b_a + b_bias, rate, lower_bound, SAFE, LOG2_E)
        b_q = b_q * (tl.rsqrt(tl.sum(b_q * b_q, axis=0) + EPSILON) * scale)
        b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, axis=0) + EPSILON)
        overlap = tl.sum(b_k * b_q, axis=0)
        for i_t in tl.static_range(TILES):
            b_state, p_now, b_v = b_next, p_tile, b_v_next
            o_now, m_now = o_v, m_v
            if i_t + 1 < TILES:
                o_v += BLOCK_V
                m_v = o_v < V
                p_tile += BLOCK_V * K
                b_next = _load_tile(p_tile, m_v[:, None] & m_k[None, :], EVEN, STREAMED)
                b_v_next = _vector(p_v, o_v, m_v, EVEN_V)
            b_state = b_state * b_decay[None, :]
            b_delta = beta * (b_v - tl.sum(b_state * b_k[None, :], axis=1))
            b_out = tl.sum(b_state * b_q[None, :], axis=1) + b_delta * overlap
            b_state += b_delta[:, None] * b_k[None, :]
            _store_tile(p_now, b_state, m_now[:, None] & m_k[None, :], EVEN, STREAMED)
            tl.store(p_out + o_now, b_out.to(p_out.dtype.element_ty), mask=m_now)
    else:
        for i_t in tl.static_range(TILES):
            o_now = o_v + i_t * BLOCK_V
            tl.store(p_out + o_now, tl.zeros([BLOCK_V], dtype=p_out.dtype.element_ty), mask=o_now < V)


def _compile_unit(schedule: Schedule, safe: bool) -> dict[str, object]:
    pointers = {"p_qkv": "*bf16", "p_a": "*bf16", "p_b": "*bf16", "p_a_log": "*fp32", "p_dt_bias": "*fp32"}
    pointers |= {"p_state": "*fp32", "p_indices": "*i32", "p_out": "*bf16"}
    scalars = {"lower_bound": "fp32", "scale": "fp32"}
    scalars |= dict.fromkeys(("H", "GROUP", "qkv_stride", "a_stride", "b_stride", "slot_stride", "HV"), "i32")
    constants = {"V": 128, "K": 128, "BLOCK_V": schedule.block_v, "BLOCK_K": 128, "TILES": schedule.tiles, "SAFE": safe}
    constants |= {"STREAMED": schedule.streamed, "EPSILON": EPSILON, "LOG2_E": LOG2_E}
    return {
        "function": "_packed_decode_kernel",
        "signature": {**pointers, **scalars, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": ("p_qkv", "p_a", "p_dt_bias", "p_state", "p_out", "qkv_stride", "a_stride", "slot_stride"),
        "num_warps": schedule.num_warps,
        "num_stages": 2,
    }


_BF16 = {"dtypes": ("bfloat16",), "free_leading": 1, "alignment_bytes": 2}
_FP32 = {"dtypes": ("float32",), "contiguous": True, "alignment_bytes": 4}
CONTRACT = {
    "op": "kda.packed_decode",
    "kernel": "kda_packed_decode_tiled",
    "entry": "packed_decode",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "Kimi Delta Attention, one decode token a request on a pool of states (BF16 in and out, FP32 or BF16 state)",
    "tensors": {
        "mixed_qkv": {**_BF16, "shape": ("B", "C")},
        "a": {**_BF16, "shape": ("B", "G")},
        "b": {**_BF16, "shape": ("B", "HV")},
        "a_log": {**_FP32, "shape": ("HV",)},
        "dt_bias": {**_FP32, "shape": ("G",)},
        "state": {
            "dtypes": ("float32", "bfloat16"),
            "shape": ("S", "HV", "V", "K"),
            "free_leading": 1,
            "alignment_bytes": 16,
        },
        "state_indices": {"dtypes": ("int32",), "shape": ("B",), "contiguous": True, "alignment_bytes": 4},
        "out": {"dtypes": ("bfloat16",), "shape": ("B", 1, "HV", "V"), "alignment_bytes": 2, "optional": True},
    },
    "scalars": {"lower_bound": {"kind": "float", "minimum": LEAST_BOUND, "maximum": -1e-6, "optional": True}},
    "callable": (
        {
            "axes": {"B": {"minimum": 1, "maximum": MAX_BATCH}, "HV": HEADS, "V": WIDTHS, "K": WIDTHS},
            "basis": "heads and widths that were tried; the entry checks that C = 2HK + HV·V and G = HV·K",
        },
    ),
    "fallback": {"kind": "chain", "chain": ("kda_packed_decode_torch",)},
    "state": {
        "scratch_bytes": 0,
        "concurrency": "launches on distinct slots may overlap; the caller's state pool is the only memory written",
        "reset": "none",
    },
    "kernels_per_call": 1,
    "compile_units": tuple(_compile_unit(s, safe) for _, s in SCHEDULES for safe in (True, False)),
}


def _problems(
    rows: tuple[torch.Tensor, ...], weights: tuple[torch.Tensor, ...], state: torch.Tensor, indices: torch.Tensor
) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    mixed_qkv, a, b = rows
    if state.dim() != 4 or any(t.dim() != 2 for t in rows) or indices.dim() != 1:
        return ["mixed_qkv, a and b must be [B, …], state [slots, HV, V, K], state_indices [B]"]
    found = []
    _, HV, V, K = state.shape
    keys = mixed_qkv.shape[1] - HV * V
    if keys <= 0 or keys % (2 * K) or HV % (keys // (2 * K)):
        found.append(f"mixed_qkv is {mixed_qkv.shape[1]} wide; allowed: 2·H·{K} + {HV * V} with H dividing {HV}")
    if a.shape[1] != HV * K or b.shape[1] != HV or [tuple(t.shape) for t in weights] != [(HV,), (HV * K,)]:
        found.append(f"a and dt_bias must be {HV * K} wide, b and a_log {HV}")
    if any(t.shape[0] != indices.shape[0] for t in rows) or not 1 <= indices.shape[0] <= MAX_BATCH:
        found.append(f"B is {indices.shape[0]}; allowed: 1 to {MAX_BATCH}, the same for mixed_qkv, a and b")
    if any(t.dtype != torch.bfloat16 for t in rows) or any(t.dtype != torch.float32 for t in weights):
        found.append("mixed_qkv, a and b must be bfloat16, a_log and dt_bias float32")
    if state.dtype not in (torch.float32, torch.bfloat16) or indices.dtype != torch.int32:
        found.append("state must be float32 or bfloat16, state_indices int32")
    if any(t.stride(1) != 1 and t.shape[1] > 1 for t in rows) or not state[:1].is_contiguous():
        found.append("rows of mixed_qkv, a, b and the heads of a slot must be contiguous")
    if not all(t.is_contiguous() for t in (*weights, indices)):
        found.append("a_log, dt_bias and state_indices must be contiguous")
    return found


def _more_problems(
    state: torch.Tensor, indices: torch.Tensor, lower_bound: float | None, out: torch.Tensor | None
) -> list[str]:
    """The same for what is no tensor of the step; the tensors are sound."""
    found, shape = [], (indices.shape[0], 1, *state.shape[1:3])
    if lower_bound is not None and not LEAST_BOUND <= lower_bound < 0:
        found.append(f"lower_bound is {lower_bound}; allowed: None, or {LEAST_BOUND} <= lower_bound < 0")
    if out is not None and (tuple(out.shape) != shape or out.dtype != torch.bfloat16 or not out.is_contiguous()):
        found.append(f"out is {tuple(out.shape)}; allowed: contiguous {shape}, bfloat16")
    return found


def packed_decode(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    *,
    lower_bound: float | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token of Kimi Delta Attention for each request, on the states that `state_indices` names.

    Args:
        mixed_qkv: [B, 2·H·K + HV·V] bf16 after the convolution: q heads, k heads, v heads; any row stride.
        a: [B, HV·K] bf16, raw gate; any row stride.
        b: [B, HV] bf16, raw write strength; any row stride.
        a_log: [HV] fp32.
        dt_bias: [HV·K] fp32.
        state: [slots, HV, V, K] fp32 or bf16, any slot stride; updated in place.
        state_indices: [B] int32, distinct; -1 gives a zero row and touches no state.
        lower_bound: of the safe gate, -5 <= lower_bound < 0; None for the softplus gate.
        out: [B, 1, HV, V] bf16, contiguous; allocated when None.

    Returns:
        out.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    problems = _problems((mixed_qkv, a, b), (a_log, dt_bias), state, state_indices)
    problems = problems or _more_problems(state, state_indices, lower_bound, out)
    if problems:
        raise ValueError("kda_packed_decode_tiled: " + "; ".join(problems) + ".")
    batch, (_, HV, V, K) = state_indices.shape[0], state.shape
    out = mixed_qkv.new_empty(batch, 1, HV, V) if out is None else out
    H = (mixed_qkv.shape[1] - HV * V) // (2 * K)
    schedule = schedule_for(batch * HV)
    block_v = min(schedule.block_v, triton.next_power_of_2(V))
    tiles = min(schedule.tiles, triton.cdiv(V, block_v))
    _packed_decode_kernel[(triton.cdiv(V, block_v * tiles), HV, batch)](
        mixed_qkv,
        a,
        b,
        a_log,
        dt_bias,
        state,
        state_indices,
        out,
        0.0 if lower_bound is None else lower_bound,
        K**-0.5,
        H,
        HV // H,
        *(t.stride(0) for t in (mixed_qkv, a, b, state)),
        HV,
        V=V,
        K=K,
        BLOCK_V=block_v,
        BLOCK_K=triton.next_power_of_2(K),
        TILES=tiles,
        SAFE=lower_bound is not None,
        STREAMED=schedule.streamed,
        EPSILON=EPSILON,
        LOG2_E=LOG2_E,
        num_warps=schedule.num_warps,
        num_stages=2,
    )
    return out
