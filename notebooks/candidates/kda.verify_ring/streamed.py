"""KDA verification of T draft tokens in one launch: convolution, gates and recurrence, with a ring of what was seen.

One program owns a block of value channels of one head of one request: its part of the state is read once and stays in
registers over all T tokens; it is not written. Instead each token's key and value (after the convolution, before
normalisation), log-decay and write strength go into a ring, from which the state of any accepted prefix can be made
again. The next token's inputs are loaded before the present one is worked on. Both reductions of a token read the
decayed state, since S q = S' q + d (k·q): they do not wait for each other. Requests without a slot load nothing and
store zeros. FP32 throughout; the convolution is rounded to BF16 before the recurrence.

`kda.verify_snapshots/streamed.py` holds the same device code with SNAPSHOTS in the place of RING: their outputs have
the same bits. Imports torch and triton only. Idea: source thread (sglang PR 36821); code written here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_V = 64
"""Value channels a program."""
NUM_WARPS = 4
LANE = 16
"""Key channels a lane: 4, 8 or 16."""
MAX_REGISTERS = 160
"""Of a thread; None leaves it to the compiler."""
MAX_TOKENS = 16
MAX_BATCH = 4096
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
    return 1.0 / (1.0 + tl.exp2(x * -1.4426950408889634))


@triton.jit
def _log_decay(x, rate, lower_bound, SAFE: tl.constexpr):
    """lower_bound · sigmoid(rate · x), or -rate · softplus(x)."""
    if SAFE:
        g = lower_bound * _sigmoid(rate * x)
    else:
        soft = tl.log(1.0 + tl.exp2(x * 1.4426950408889634))
        g = -rate * tl.where(x > 20.0, x, soft)
    return g


@triton.jit
def _convolved(x0, x1, x2, x3, w0, w1, w2, w3):
    """SiLU of four weighted tokens, rounded to BF16 as the chain of separate kernels rounds it."""
    total = w0 * x0.to(tl.float32) + w1 * x1.to(tl.float32) + w2 * x2.to(tl.float32) + w3 * x3.to(tl.float32)
    return (total * _sigmoid(total)).to(tl.bfloat16).to(tl.float32)


@triton.jit
def _store_window(p_window, stride_row, x1, x2, x3, mask):
    """The last three raw tokens of some channels, oldest first."""
    tl.store(p_window, x1, mask=mask)
    tl.store(p_window + stride_row, x2, mask=mask)
    tl.store(p_window + 2 * stride_row, x3, mask=mask)


@triton.jit
def _verify_kernel(
    p_qkv,
    p_conv,
    p_weight,
    p_a,
    p_b,
    p_a_log,
    p_dt,
    p_state,
    p_index,
    p_out,
    p_windows,
    p_snapshots,
    p_ring_k,
    p_ring_v,
    p_ring_g,
    p_ring_beta,
    stride_qkv_b,
    stride_qkv_t,
    stride_conv,
    stride_a_b,
    stride_a_t,
    stride_b_b,
    stride_b_t,
    stride_state,
    lower_bound,
    scale,
    T: tl.constexpr,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    LANE: tl.constexpr,
    SAFE: tl.constexpr,
    SNAPSHOTS: tl.constexpr,
    RING: tl.constexpr,
):
    i_v = tl.program_id(0)
    i_h = tl.program_id(1)
    i_b = tl.program_id(2).to(tl.int64)
    C: tl.constexpr = 2 * H * K + HV * V
    GROUP: tl.constexpr = HV // H
    slot = tl.load(p_index + i_b).to(tl.int64)
    live = slot >= 0
    slot = tl.where(live, slot, 0)
    o_k = tl.arange(0, BLOCK_K)
    o_v = i_v * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k = o_k < K
    m_v = o_v < V
    m_kl = m_k & live
    m_vl = m_v & live
    m_tile = m_v[:, None] & m_k[None, :]
    o_tile = o_v[:, None] * K + o_k[None, :]
    b_s = tl.load(p_state + slot * stride_state + i_h * V * K + o_tile, mask=m_tile & live, other=0.0)
    _spread(p_state, o_tile, i_v < 0, LANE)

    # Channels of this head's q, k and v in a row of mixed_qkv; q and k are stored by one program a query head.
    i_q = i_h // GROUP
    c_q = i_q * K + o_k
    c_k = H * K + c_q
    c_v = 2 * H * K + i_h * V + o_v
    first = (i_v == 0) & (i_h % GROUP == 0)
    m_own = m_k & first
    p_row = p_qkv + i_b * stride_qkv_b
    p_past = p_conv + slot * stride_conv
    q0 = tl.load(p_past + c_q, mask=m_kl, other=0.0)
    q1 = tl.load(p_past + C + c_q, mask=m_kl, other=0.0)
    q2 = tl.load(p_past + 2 * C + c_q, mask=m_kl, other=0.0)
    q3 = tl.load(p_row + c_q, mask=m_kl, other=0.0)
    k0 = tl.load(p_past + c_k, mask=m_kl, other=0.0)
    k1 = tl.load(p_past + C + c_k, mask=m_kl, other=0.0)
    k2 = tl.load(p_past + 2 * C + c_k, mask=m_kl, other=0.0)
    k3 = tl.load(p_row + c_k, mask=m_kl, other=0.0)
    v0 = tl.load(p_past + c_v, mask=m_vl, other=0.0)
    v1 = tl.load(p_past + C + c_v, mask=m_vl, other=0.0)
    v2 = tl.load(p_past + 2 * C + c_v, mask=m_vl, other=0.0)
    v3 = tl.load(p_row + c_v, mask=m_vl, other=0.0)
    b_a = tl.load(p_a + i_b * stride_a_b + i_h * K + o_k, mask=m_kl, other=0.0)
    b_b = tl.load(p_b + i_b * stride_b_b + i_h, mask=live, other=0.0)
    rate = tl.exp2(tl.load(p_a_log + i_h) * 1.4426950408889634)
    b_dt = tl.load(p_dt + i_h * K + o_k, mask=m_k, other=0.0)

    for t in tl.static_range(T):
        next_q = q3
        next_k = k3
        next_v = v3
        next_a = b_a
        next_b = b_b
        if t + 1 < T:
            p_next = p_row + (t + 1) * stride_qkv_t
            next_q = tl.load(p_next + c_q, mask=m_kl, other=0.0)
            next_k = tl.load(p_next + c_k, mask=m_kl, other=0.0)
            next_v = tl.load(p_next + c_v, mask=m_vl, other=0.0)
            p_gate = p_a + i_b * stride_a_b + (t + 1) * stride_a_t + i_h * K
            next_a = tl.load(p_gate + o_k, mask=m_kl, other=0.0)
            next_b = tl.load(p_b + i_b * stride_b_b + (t + 1) * stride_b_t + i_h, mask=live, other=0.0)
        # Read again for each token: L1 holds them, and registers that keep them would halve the programs of an SM.
        wq0 = tl.load(p_weight + c_q, mask=m_k, other=0.0).to(tl.float32)
        wq1 = tl.load(p_weight + C + c_q, mask=m_k, other=0.0).to(tl.float32)
        wq2 = tl.load(p_weight + 2 * C + c_q, mask=m_k, other=0.0).to(tl.float32)
        wq3 = tl.load(p_weight + 3 * C + c_q, mask=m_k, other=0.0).to(tl.float32)
        wk0 = tl.load(p_weight + c_k, mask=m_k, other=0.0).to(tl.float32)
        wk1 = tl.load(p_weight + C + c_k, mask=m_k, other=0.0).to(tl.float32)
        wk2 = tl.load(p_weight + 2 * C + c_k, mask=m_k, other=0.0).to(tl.float32)
        wk3 = tl.load(p_weight + 3 * C + c_k, mask=m_k, other=0.0).to(tl.float32)
        wv0 = tl.load(p_weight + c_v, mask=m_v, other=0.0).to(tl.float32)
        wv1 = tl.load(p_weight + C + c_v, mask=m_v, other=0.0).to(tl.float32)
        wv2 = tl.load(p_weight + 2 * C + c_v, mask=m_v, other=0.0).to(tl.float32)
        wv3 = tl.load(p_weight + 3 * C + c_v, mask=m_v, other=0.0).to(tl.float32)
        b_q = _convolved(q0, q1, q2, q3, wq0, wq1, wq2, wq3)
        b_k = _convolved(k0, k1, k2, k3, wk0, wk1, wk2, wk3)
        b_v = _convolved(v0, v1, v2, v3, wv0, wv1, wv2, wv3)
        b_g = _log_decay(b_a.to(tl.float32) + b_dt, rate, lower_bound, SAFE)
        beta = _sigmoid(b_b.to(tl.float32))
        n_q = b_q * (tl.rsqrt(tl.sum(b_q * b_q, axis=0) + 1e-6) * scale)
        n_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, axis=0) + 1e-6)
        b_s = b_s * tl.exp2(b_g * 1.4426950408889634)[None, :]
        b_d = beta * (b_v - tl.sum(b_s * n_k[None, :], axis=1))
        b_o = tl.sum(b_s * n_q[None, :], axis=1) + b_d * tl.sum(n_k * n_q, axis=0)
        b_s = b_s + b_d[:, None] * n_k[None, :]

        row = i_b * T + t
        head = row * HV + i_h
        tl.store(p_out + head * V + o_v, b_o.to(tl.bfloat16), mask=m_v)
        p_window = p_windows + row * 3 * C
        _store_window(p_window + c_q, C, q1, q2, q3, m_own)
        _store_window(p_window + c_k, C, k1, k2, k3, m_own)
        _store_window(p_window + c_v, C, v1, v2, v3, m_v)
        if SNAPSHOTS:
            tl.store(p_snapshots + head * V * K + o_tile, b_s, mask=m_tile)
        if RING:
            tl.store(p_ring_k + (row * H + i_q) * K + o_k, b_k.to(tl.bfloat16), mask=m_own)
            tl.store(p_ring_v + head * V + o_v, b_v.to(tl.bfloat16), mask=m_v)
            tl.store(p_ring_g + head * K + o_k, tl.where(live, b_g, 0.0), mask=m_k & (i_v == 0))
            tl.store(p_ring_beta + head, tl.where(live, beta, 0.0), mask=i_v == 0)
        q0, q1, q2, q3 = q1, q2, q3, next_q
        k0, k1, k2, k3 = k1, k2, k3, next_k
        v0, v1, v2, v3 = v1, v2, v3, next_v
        b_a = next_a
        b_b = next_b


POINTERS = {
    **dict.fromkeys(("p_qkv", "p_conv"), "*bf16"),
    "p_weight": "*fp32",
    **dict.fromkeys(("p_a", "p_b"), "*bf16"),
    **dict.fromkeys(("p_a_log", "p_dt", "p_state"), "*fp32"),
    "p_index": "*i32",
    **dict.fromkeys(("p_out", "p_windows"), "*bf16"),
    "p_snapshots": "*fp32",
    **dict.fromkeys(("p_ring_k", "p_ring_v"), "*bf16"),
    **dict.fromkeys(("p_ring_g", "p_ring_beta"), "*fp32"),
}
STRIDES = (
    "stride_qkv_b",
    "stride_qkv_t",
    "stride_conv",
    "stride_a_b",
    "stride_a_t",
    "stride_b_b",
    "stride_b_t",
    "stride_state",
)
ALIGNED = (*(s for s in STRIDES if not s.startswith("stride_b_")), *POINTERS)


def _constants(tokens: int, heads: tuple[int, int], widths: tuple[int, int], safe: bool) -> dict[str, int | bool]:
    return {
        "T": tokens,
        "H": heads[0],
        "HV": heads[1],
        "K": widths[0],
        "V": widths[1],
        "BLOCK_K": triton.next_power_of_2(widths[0]),
        "BLOCK_V": min(BLOCK_V, triton.next_power_of_2(widths[1])),
        "LANE": LANE,
        "SAFE": safe,
        "SNAPSHOTS": False,
        "RING": True,
    }


def _compile_unit(tokens: int, heads: int) -> dict[str, object]:
    constants = _constants(tokens, (heads, heads), (128, 128), True)
    numbers = {**dict.fromkeys(STRIDES, "i32"), "lower_bound": "fp32", "scale": "fp32"}
    return {
        "function": "_verify_kernel",
        "signature": {**POINTERS, **numbers, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": ALIGNED,
        "num_warps": NUM_WARPS,
        "num_stages": 1,
        "maxnreg": MAX_REGISTERS,
    }


_BF16 = {"dtypes": ("bfloat16",), "contiguous": True, "alignment_bytes": 16}
_ROWS = {**_BF16, "free_leading": 2}
_FP32 = {"dtypes": ("float32",), "contiguous": True, "alignment_bytes": 16}
_OUT = {"optional": True}
CONTRACT = {
    "op": "kda.verify_ring",
    "kernel": "kda_verify_ring_streamed",
    "entry": "verify_ring",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "KDA verification of draft tokens with a ring in the place of state snapshots (BF16, FP32 state)",
    "tensors": {
        "mixed_qkv": {**_ROWS, "shape": ("B", "T", "C")},
        "conv_state": {**_BF16, "free_leading": 1, "shape": ("S", 3, "C")},
        "conv_weight": {**_FP32, "dtypes": ("bfloat16", "float32"), "shape": (4, "C")},
        "a": {**_ROWS, "shape": ("B", "T", "G")},
        "b": {**_ROWS, "shape": ("B", "T", "HV"), "alignment_bytes": 2},
        "a_log": {**_FP32, "shape": ("HV",), "alignment_bytes": 4},
        "dt_bias": {**_FP32, "shape": ("G",)},
        "state": {**_FP32, "free_leading": 1, "shape": ("S", "HV", "V", "K")},
        "state_indices": {"dtypes": ("int32",), "shape": ("B",), "alignment_bytes": 4},
        "out": {**_BF16, **_OUT, "shape": ("B", "T", "HV", "V")},
        "windows": {**_BF16, **_OUT, "shape": ("B", "T", 3, "C")},
        "ring_k": {**_BF16, **_OUT, "shape": ("B", "T", "H", "K")},
        "ring_v": {**_BF16, **_OUT, "shape": ("B", "T", "HV", "V")},
        "ring_g": {**_FP32, **_OUT, "shape": ("B", "T", "HV", "K")},
        "ring_beta": {**_FP32, **_OUT, "shape": ("B", "T", "HV"), "alignment_bytes": 4},
    },
    "scalars": {"lower_bound": {"kind": "float", "minimum": -5.0, "maximum": -1e-6, "optional": True}},
    "callable": (
        {
            "axes": {
                "B": {"minimum": 1, "maximum": MAX_BATCH},
                "T": {"minimum": 1, "maximum": MAX_TOKENS},
                "K": WIDTHS,
                "V": WIDTHS,
            },
            "basis": "widths of the source thread; C is 2·H·K + HV·V, G is HV·K, with HV a multiple of H",
        },
    ),
    "range_axis": "B",
    "fallback": {"kind": "chain", "chain": ("kda_verify_ring_torch",)},
    "state": {"scratch_bytes": 0, "concurrency": "any: launches share nothing", "reset": "none"},
    "kernels_per_call": 1,
    "compile_units": tuple(_compile_unit(tokens, heads) for tokens, heads in ((4, 12), (8, 12), (4, 96))),
}


def _extents(mixed_qkv: torch.Tensor, state: torch.Tensor) -> tuple[int, int, int, int, int, int]:
    """B, T, H, HV, K, V; H is what is left of a row of mixed_qkv."""
    batch, tokens, width = mixed_qkv.shape
    _, value_heads, values, keys = state.shape
    return batch, tokens, (width - value_heads * values) // (2 * keys), value_heads, keys, values


def _problems(tensors: dict[str, torch.Tensor]) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    qkv, state = tensors["mixed_qkv"], tensors["state"]
    if qkv.dim() != 3 or state.dim() != 4:
        return ["mixed_qkv must be [B, T, C] and state [slots, HV, V, K]"]
    batch, tokens, heads, value_heads, keys, values = _extents(qkv, state)
    width, slots = qkv.shape[2], state.shape[0]
    if heads < 1 or 2 * heads * keys + value_heads * values != width or value_heads % heads:
        return [
            f"C is {width} with HV {value_heads}, V {values}, K {keys}; allowed: 2·H·K + HV·V with HV a multiple of H"
        ]
    wanted = {
        "conv_state": (slots, 3, width),
        "conv_weight": (4, width),
        "a": (batch, tokens, value_heads * keys),
        "b": (batch, tokens, value_heads),
        "a_log": (value_heads,),
        "dt_bias": (value_heads * keys,),
        "state_indices": (batch,),
    }
    found = [f"{n} is {tuple(tensors[n].shape)}; allowed: {s}" for n, s in wanted.items() if tensors[n].shape != s]
    if not 1 <= tokens <= MAX_TOKENS:
        found.append(f"T is {tokens}; allowed: 1 to {MAX_TOKENS}")
    if not (state[:1].is_contiguous() and tensors["conv_state"][:1].is_contiguous()):
        found.append("state and conv_state must be contiguous within a slot")
    rows, pools = ("mixed_qkv", "a", "b"), ("state", "conv_state")
    loose = [n for n in rows if tensors[n].stride(-1) != 1 and tensors[n].shape[-1] > 1]
    found += [f"the last axis of {n} must be contiguous" for n in loose]
    whole = [n for n in tensors if n not in (*rows, *pools) and not tensors[n].is_contiguous()]
    return found + [f"{n} must be contiguous" for n in whole]


def verify_ring(
    mixed_qkv: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    *,
    lower_bound: float | None,
    out: torch.Tensor | None = None,
    windows: torch.Tensor | None = None,
    ring_k: torch.Tensor | None = None,
    ring_v: torch.Tensor | None = None,
    ring_g: torch.Tensor | None = None,
    ring_beta: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run T draft tokens a request from its state, which stays as it is; keep what a fold of a prefix needs.

    Args:
        mixed_qkv: [B, T, C] bf16, raw: q, k and v heads; row and token strides free.
        conv_state: [slots, 3, C] bf16, the tokens before, oldest first; slot stride free.
        conv_weight: [4, C] bf16 or fp32.
        a: [B, T, HV·K] bf16, raw gate.
        b: [B, T, HV] bf16, raw write strength.
        a_log, dt_bias: [HV] and [HV·K] fp32.
        state: [slots, HV, V, K] fp32; slot stride free.
        state_indices: [B] int32; -1 is padding, whose outputs are zero.
        lower_bound: of the safe gate; None takes the softplus gate.
        out: [B, T, HV, V] bf16.
        windows: [B, T, 3, C] bf16, the convolution's window after each token.
        ring_k, ring_v, ring_g, ring_beta: [B, T, H, K] bf16, [B, T, HV, V] bf16, [B, T, HV, K] and [B, T, HV] fp32.

    Returns:
        out, windows, ring_k, ring_v, ring_g and ring_beta; each is allocated when None.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    tensors = {"mixed_qkv": mixed_qkv, "conv_state": conv_state, "conv_weight": conv_weight, "a": a, "b": b}
    tensors |= {"a_log": a_log, "dt_bias": dt_bias, "state": state, "state_indices": state_indices}
    problems = _problems(tensors)
    if problems:
        raise ValueError("kda_verify_ring_streamed: " + "; ".join(problems) + ".")
    batch, tokens, heads, value_heads, keys, values = _extents(mixed_qkv, state)
    fp32 = {"dtype": torch.float32, "device": state.device}
    shape = (batch, tokens, value_heads)
    out = mixed_qkv.new_empty(*shape, values) if out is None else out
    windows = mixed_qkv.new_empty(batch, tokens, 3, mixed_qkv.shape[2]) if windows is None else windows
    ring_k = mixed_qkv.new_empty(batch, tokens, heads, keys) if ring_k is None else ring_k
    ring_v = mixed_qkv.new_empty(*shape, values) if ring_v is None else ring_v
    ring_g = torch.empty(*shape, keys, **fp32) if ring_g is None else ring_g
    ring_beta = torch.empty(*shape, **fp32) if ring_beta is None else ring_beta
    _launch(tensors, lower_bound, (out, windows, None, ring_k, ring_v, ring_g, ring_beta))
    return out, windows, ring_k, ring_v, ring_g, ring_beta


def _launch(
    tensors: dict[str, torch.Tensor], lower_bound: float | None, outputs: tuple[torch.Tensor | None, ...]
) -> None:
    qkv, a, b, state = tensors["mixed_qkv"], tensors["a"], tensors["b"], tensors["state"]
    batch, tokens, heads, value_heads, keys, values = _extents(qkv, state)
    constants = _constants(tokens, (heads, value_heads), (keys, values), lower_bound is not None)
    _verify_kernel[(triton.cdiv(values, constants["BLOCK_V"]), value_heads, batch)](
        *tensors.values(),
        *outputs,
        qkv.stride(0),
        qkv.stride(1),
        tensors["conv_state"].stride(0),
        a.stride(0),
        a.stride(1),
        b.stride(0),
        b.stride(1),
        state.stride(0),
        0.0 if lower_bound is None else lower_bound,
        keys**-0.5,
        **constants,
        num_warps=NUM_WARPS,
        num_stages=1,
        maxnreg=MAX_REGISTERS,
    )
