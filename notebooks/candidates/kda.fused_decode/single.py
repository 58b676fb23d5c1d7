"""KDA fused decode: convolution, gate, recurrence, output norm and gate of one token in one launch.

A program owns one head of one request: its channels of the convolution window, its state and its output row, so that
the norm over V needs no other program. It walks its state tile by tile, each tile loaded while the one before is
computed, and keeps the outputs of all tiles in FP32 until the norm. The convolution is rounded to BF16 before the
recurrence, as the separate kernels round it. The window is shifted after a barrier: threads of other warps hold copies
of the same channels, and must have read them.

The step is that of the packed kernel: both sums over K run on the decayed tile side by side,

    S' = S · exp(g)      d = beta · (v - S' k̂)      o = S' q̂ + d · (k̂ · q̂)      S <- S' + d k̂ᵀ

A request with index -1 gets a zero row, and neither window nor state is touched for it. Slots are multiplied in 64 bits.

Imports torch and triton only. Definition: Kimi Delta Attention as served (source threads sglang PR 32890 and PR 36304);
code written here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

EPSILON = 1e-6
"""Of the norms of q and k."""
LOG2_E = 1.4426950408889634
MAX_BATCH = 65535
WIDTHS = (16, 20, 32, 48, 64, 80, 96, 128)
"""Extents of K = V that were tried; others are refused by the contract, not by the kernel."""
HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
LEAST_BOUND = -5.0


@dataclass(frozen=True)
class Schedule:
    """How one launch is cut."""

    block_v: int
    """Rows of the state in a tile."""
    num_warps: int
    streamed: bool = True
    """State lines are marked to leave the cache first: nothing reads them again before the next token."""


# (most requests x heads, schedule); the first entry that fits is used. For one H200 (SM90, 132 SMs): with few heads a
# program has an SM for itself and loads half of its state at once. The fastest of eight on five rows.
SCHEDULES = (
    (132, Schedule(block_v=64, num_warps=8)),
    (1 << 62, Schedule(block_v=32, num_warps=4)),
)


def schedule_for(heads: int) -> Schedule:
    """The schedule of a launch over `heads` = requests x heads; host-visible facts only."""
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


@triton.jit
def _convolve(p_x, p_window, p_weight, o, m, channels, EVEN: tl.constexpr, LOG2_E: tl.constexpr):
    """SiLU of the weighted window and token of some channels, rounded to BF16; and the last three raw values."""
    b_0 = _vector(p_window, o, m, EVEN)
    b_1 = _vector(p_window + channels, o, m, EVEN)
    b_2 = _vector(p_window + 2 * channels, o, m, EVEN)
    b_x = _vector(p_x, o, m, EVEN)
    b_y = b_0 * _vector(p_weight, o, m, EVEN)
    b_y += b_1 * _vector(p_weight + channels, o, m, EVEN)
    b_y += b_2 * _vector(p_weight + 2 * channels, o, m, EVEN)
    b_y += b_x * _vector(p_weight + 3 * channels, o, m, EVEN)
    b_y = b_y * _sigmoid(b_y, LOG2_E)
    return b_y.to(tl.bfloat16).to(tl.float32), b_1, b_2, b_x


@triton.jit
def _shift(p_window, o, m, channels, b_1, b_2, b_x):
    """The window after the token; the values are BF16 ones, so nothing is rounded."""
    tl.store(p_window + o, b_1.to(p_window.dtype.element_ty), mask=m)
    tl.store(p_window + channels + o, b_2.to(p_window.dtype.element_ty), mask=m)
    tl.store(p_window + 2 * channels + o, b_x.to(p_window.dtype.element_ty), mask=m)


# Extents of the rows and heads: one binary serves them all.
@triton.jit(do_not_specialize=["HV", "b_stride"])
def _fused_decode_kernel(
    p_x,
    p_window,
    p_weight,
    p_a,
    p_b,
    p_a_log,
    p_dt_bias,
    p_gate,
    p_norm,
    p_state,
    p_indices,
    p_out,
    lower_bound,
    epsilon,
    scale,
    x_stride,
    window_stride,
    a_stride,
    b_stride,
    gate_stride,
    slot_stride,
    HV,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILES: tl.constexpr,
    SAFE: tl.constexpr,
    STREAMED: tl.constexpr,
    EPSILON: tl.constexpr,
    LOG2_E: tl.constexpr,
):
    i_hv, i_b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    EVEN_K: tl.constexpr = BLOCK_K == V
    EVEN: tl.constexpr = EVEN_K and BLOCK_V * TILES == V
    index = tl.load(p_indices + i_b).to(tl.int64)
    seg = HV * V
    channels = 3 * seg
    o_k = tl.arange(0, BLOCK_K)
    m_k = o_k < V
    o_v = tl.arange(0, BLOCK_V)
    m_v = o_v < V
    o_t = tl.arange(0, TILES)[:, None]
    o_row = o_t * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]
    m_row = o_row < V
    p_out += i_b * seg + i_hv * V
    # Ahead of the branch, so that these loads do not wait for the index.
    b_a = _vector(p_a + i_b * a_stride + i_hv * V, o_k, m_k, EVEN_K)
    b_bias = _vector(p_dt_bias + i_hv * V, o_k, m_k, EVEN_K)
    strength = tl.load(p_b + i_b * b_stride + i_hv).to(tl.float32)
    rate = tl.load(p_a_log + i_hv)
    b_gate = tl.load(p_gate + i_b * gate_stride + i_hv * V + o_row, mask=m_row, other=0.0).to(tl.float32)
    b_norm = tl.load(p_norm + o_row, mask=m_row, other=0.0)
    p_x += i_b * x_stride + i_hv * V
    p_weight += i_hv * V
    if index >= 0:
        # 64 bits before the product: a pool of many layers has more than 2^31 elements.
        p_tile = p_state + index * slot_stride + i_hv * (V * V) + o_v[:, None] * V + o_k[None, :]
        p_window += index * window_stride + i_hv * V
        b_next = _load_tile(p_tile, m_v[:, None] & m_k[None, :], EVEN, STREAMED)
        b_q, b_q1, b_q2, b_q3 = _convolve(p_x, p_window, p_weight, o_k, m_k, channels, EVEN_K, LOG2_E)
        p_kx, p_kw, p_kc = p_x + seg, p_window + seg, p_weight + seg
        b_k, b_k1, b_k2, b_k3 = _convolve(p_kx, p_kw, p_kc, o_k, m_k, channels, EVEN_K, LOG2_E)
        p_vx, p_vw, p_vc = p_x + 2 * seg, p_window + 2 * seg, p_weight + 2 * seg
        b_v_next, b_v1, b_v2, b_v3 = _convolve(p_vx, p_vw, p_vc, o_v, m_v, channels, EVEN, LOG2_E)
        beta = _sigmoid(strength, LOG2_E)
        b_decay = _decay(b_a + b_bias, rate, lower_bound, SAFE, LOG2_E)
        b_q = b_q * (tl.rsqrt(tl.sum(b_q * b_q, axis=0) + EPSILON) * scale)
        b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, axis=0) + EPSILON)
        overlap = tl.sum(b_k * b_q, axis=0)
        b_all = tl.zeros([TILES, BLOCK_V], dtype=tl.float32)
        # Every warp has read its copies of the first channels; those of later tiles are other ones.
        tl.debug_barrier()
        _shift(p_window, o_k, m_k, channels, b_q1, b_q2, b_q3)
        _shift(p_kw, o_k, m_k, channels, b_k1, b_k2, b_k3)
        for i_t in tl.static_range(TILES):
            b_state, p_now, b_v = b_next, p_tile, b_v_next
            o_now, m_now, b_w1, b_w2, b_w3 = o_v, m_v, b_v1, b_v2, b_v3
            if i_t + 1 < TILES:
                o_v += BLOCK_V
                m_v = o_v < V
                p_tile += BLOCK_V * V
                b_next = _load_tile(p_tile, m_v[:, None] & m_k[None, :], EVEN, STREAMED)
                b_v_next, b_v1, b_v2, b_v3 = _convolve(p_vx, p_vw, p_vc, o_v, m_v, channels, EVEN, LOG2_E)
            b_state = b_state * b_decay[None, :]
            b_delta = beta * (b_v - tl.sum(b_state * b_k[None, :], axis=1))
            b_out = tl.sum(b_state * b_q[None, :], axis=1) + b_delta * overlap
            b_state += b_delta[:, None] * b_k[None, :]
            _store_tile(p_now, b_state, m_now[:, None] & m_k[None, :], EVEN, STREAMED)
            b_all = tl.where(o_t == i_t, b_out[None, :], b_all)
            if i_t > 0:
                tl.debug_barrier()
            _shift(p_vw, o_now, m_now, channels, b_w1, b_w2, b_w3)
        root = tl.rsqrt(tl.sum(tl.sum(b_all * b_all, axis=1), axis=0) * (1.0 / V) + epsilon)
        b_all = b_all * root * b_norm * _sigmoid(b_gate, LOG2_E)
        tl.store(p_out + o_row, b_all.to(p_out.dtype.element_ty), mask=m_row)
    else:
        tl.store(p_out + o_row, tl.zeros([TILES, BLOCK_V], dtype=p_out.dtype.element_ty), mask=m_row)


def _compile_unit(schedule: Schedule, safe: bool) -> dict[str, object]:
    pointers = {"p_x": "*bf16", "p_window": "*bf16", "p_weight": "*fp32", "p_a": "*bf16", "p_b": "*bf16"}
    pointers |= {"p_a_log": "*fp32", "p_dt_bias": "*fp32", "p_gate": "*bf16", "p_norm": "*fp32"}
    pointers |= {"p_state": "*fp32", "p_indices": "*i32", "p_out": "*bf16"}
    strides = ("x_stride", "window_stride", "a_stride", "b_stride", "gate_stride", "slot_stride")
    scalars = {"lower_bound": "fp32", "epsilon": "fp32", "scale": "fp32", **dict.fromkeys((*strides, "HV"), "i32")}
    tiles = 128 // schedule.block_v
    constants = {"V": 128, "BLOCK_V": schedule.block_v, "BLOCK_K": 128, "TILES": tiles, "SAFE": safe}
    constants |= {"STREAMED": schedule.streamed, "EPSILON": EPSILON, "LOG2_E": LOG2_E}
    aligned = [n for n in pointers if n not in ("p_b", "p_a_log", "p_indices")]
    return {
        "function": "_fused_decode_kernel",
        "signature": {**pointers, **scalars, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": (*aligned, *(n for n in strides if n != "b_stride")),
        "num_warps": schedule.num_warps,
        "num_stages": 2,
    }


_BF16 = {"dtypes": ("bfloat16",), "free_leading": 1, "alignment_bytes": 2}
_FP32 = {"dtypes": ("float32",), "contiguous": True, "alignment_bytes": 4}
CONTRACT = {
    "op": "kda.fused_decode",
    "kernel": "kda_fused_decode_single",
    "entry": "fused_decode",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "Kimi Delta Attention, one raw token a request: convolution, recurrence, output norm and gate in one launch",
    "tensors": {
        "mixed_qkv": {**_BF16, "shape": ("B", "C")},
        "conv_state": {**_BF16, "shape": ("S", 3, "C")},
        "conv_weight": {**_FP32, "shape": (4, "C")},
        "a": {**_BF16, "shape": ("B", "P")},
        "b": {**_BF16, "shape": ("B", "HV")},
        "a_log": {**_FP32, "shape": ("HV",)},
        "dt_bias": {**_FP32, "shape": ("P",)},
        "gate": {**_BF16, "shape": ("B", "P")},
        "norm_weight": {**_FP32, "shape": ("V",)},
        "state": {
            "dtypes": ("float32", "bfloat16"),
            "shape": ("S", "HV", "V", "V"),
            "free_leading": 1,
            "alignment_bytes": 16,
        },
        "state_indices": {"dtypes": ("int32",), "shape": ("B",), "contiguous": True, "alignment_bytes": 4},
        "out": {"dtypes": ("bfloat16",), "shape": ("B", "P"), "alignment_bytes": 2, "optional": True},
    },
    "scalars": {
        "lower_bound": {"kind": "float", "minimum": LEAST_BOUND, "maximum": -1e-6, "optional": True},
        "epsilon": {"kind": "float", "minimum": 0.0, "maximum": 1.0},
    },
    "callable": (
        {
            "axes": {"B": {"minimum": 1, "maximum": MAX_BATCH}, "HV": HEADS, "V": WIDTHS},
            "basis": "heads and widths that were tried; the entry checks that P = HV·V and C = 3P",
        },
    ),
    "fallback": {"kind": "chain", "chain": ("kda_fused_decode_torch",)},
    "state": {
        "scratch_bytes": 0,
        "concurrency": "launches on distinct slots may overlap; the caller's pools are the only memory written",
        "reset": "none",
    },
    "kernels_per_call": 1,
    "compile_units": tuple(_compile_unit(s, safe) for _, s in SCHEDULES for safe in (True, False)),
}
Tensors = tuple[torch.Tensor, ...]


def _problems(rows: Tensors, weights: Tensors, pools: Tensors, indices: torch.Tensor) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json.

    rows: mixed_qkv, a, b, gate. weights: conv_weight, a_log, dt_bias, norm_weight. pools: conv_state, state.
    """
    window, state = pools
    if state.dim() != 4 or window.dim() != 3 or any(t.dim() != 2 for t in rows) or indices.dim() != 1:
        return ["rows must be [B, …], conv_state [slots, 3, 3P], state [slots, HV, V, V], state_indices [B]"]
    found = []
    slots, HV, V, K = state.shape
    P = HV * V
    if K != V or tuple(window.shape) != (slots, 3, 3 * P):
        found.append(f"state is {tuple(state.shape)} and conv_state {tuple(window.shape)}; allowed: K = V, 3 x 3P")
    if [t.shape[1] for t in rows] != [3 * P, P, HV, P]:
        found.append(f"mixed_qkv must be {3 * P} wide, a and gate {P}, b {HV}")
    if [tuple(t.shape) for t in weights] != [(4, 3 * P), (HV,), (P,), (V,)]:
        found.append(f"conv_weight must be [4, {3 * P}], a_log [{HV}], dt_bias [{P}], norm_weight [{V}]")
    if any(t.shape[0] != indices.shape[0] for t in rows) or not 1 <= indices.shape[0] <= MAX_BATCH:
        found.append(f"B is {indices.shape[0]}; allowed: 1 to {MAX_BATCH}, the same for all rows")
    if any(t.dtype != torch.bfloat16 for t in (*rows, window)) or any(t.dtype != torch.float32 for t in weights):
        found.append("rows and conv_state must be bfloat16, weights float32")
    if state.dtype not in (torch.float32, torch.bfloat16) or indices.dtype != torch.int32:
        found.append("state must be float32 or bfloat16, state_indices int32")
    loose = any(t.stride(1) != 1 and t.shape[1] > 1 for t in rows)
    if loose or not (state[:1].is_contiguous() and window[:1].is_contiguous()):
        found.append("rows and slots must be contiguous; their strides are free")
    if not all(t.is_contiguous() for t in (*weights, indices)):
        found.append("weights and state_indices must be contiguous")
    return found


def _more_problems(a: torch.Tensor, lower_bound: float | None, out: torch.Tensor | None) -> list[str]:
    """The same for what is no tensor of the step; `out` has the shape of the raw gate."""
    found = []
    if lower_bound is not None and not LEAST_BOUND <= lower_bound < 0:
        found.append(f"lower_bound is {lower_bound}; allowed: None, or {LEAST_BOUND} <= lower_bound < 0")
    if out is not None and (out.shape != a.shape or out.dtype != a.dtype or not out.is_contiguous()):
        found.append(f"out is {tuple(out.shape)}; allowed: contiguous {tuple(a.shape)}, bfloat16")
    return found


def fused_decode(
    mixed_qkv: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    gate: torch.Tensor,
    norm_weight: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    *,
    lower_bound: float | None = None,
    epsilon: float = 1e-5,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One raw token of Kimi Delta Attention for each request, from the projections to the output projection; P = HV·V.

    Args:
        mixed_qkv: [B, 3P] bf16, raw: q, k and v of all heads; any row stride.
        conv_state: [slots, 3, 3P] bf16, the last three raw tokens, oldest first, any slot stride; shifted in place.
        conv_weight: [4, 3P] fp32; row 3 belongs to the present token.
        a, b: [B, P] and [B, HV] bf16, raw gate and write strength; any row stride.
        a_log, dt_bias: [HV] and [P] fp32.
        gate: [B, P] bf16, raw output gate; any row stride.
        norm_weight: [V] fp32.
        state: [slots, HV, V, V] fp32 or bf16, any slot stride; updated in place.
        state_indices: [B] int32, distinct; -1 gives a zero row and touches no pool.
        lower_bound: of the safe gate, -5 <= lower_bound < 0; None for the softplus gate.
        epsilon: of the output norm.
        out: [B, P] bf16, contiguous; allocated when None.

    Returns:
        out.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    rows, weights = (mixed_qkv, a, b, gate), (conv_weight, a_log, dt_bias, norm_weight)
    problems = _problems(rows, weights, (conv_state, state), state_indices)
    problems = problems or _more_problems(a, lower_bound, out)
    if problems:
        raise ValueError("kda_fused_decode_single: " + "; ".join(problems) + ".")
    out = a.new_empty(a.shape) if out is None else out
    _, HV, V, _ = state.shape
    schedule = schedule_for(state_indices.shape[0] * HV)
    block_v = min(schedule.block_v, triton.next_power_of_2(V))
    _fused_decode_kernel[(HV, state_indices.shape[0])](
        *(mixed_qkv, conv_state, conv_weight, a, b, a_log, dt_bias, gate, norm_weight, state, state_indices, out),
        0.0 if lower_bound is None else lower_bound,
        epsilon,
        V**-0.5,
        *(t.stride(0) for t in (mixed_qkv, conv_state, a, b, gate, state)),
        HV,
        V=V,
        BLOCK_V=block_v,
        BLOCK_K=triton.next_power_of_2(V),
        TILES=triton.next_power_of_2(V) // block_v,
        SAFE=lower_bound is not None,
        STREAMED=schedule.streamed,
        EPSILON=EPSILON,
        LOG2_E=LOG2_E,
        num_warps=schedule.num_warps,
        num_stages=2,
    )
    return out
