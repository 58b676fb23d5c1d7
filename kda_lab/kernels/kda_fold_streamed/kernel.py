"""KDA fold: the state after the accepted tokens of each request, from the ring that verification left, all layers at once.

One program owns a block of value channels of one head of one request in one layer: it reads its part of the state once,
runs the accepted tokens over it and writes it back. The next token's row of the ring is loaded before the present one
is worked on. Without accepted tokens, or without a slot, nothing is read and nothing is written, so the bits stay.
A layer is one more axis of the grid and nothing else: its states have the bits of a launch of that layer alone.
Offsets are multiplied in 64 bits, since pools of many layers pass 2^31 elements. FP32 throughout.

Imports torch and triton only. Idea: source threads (sglang PR 33630 and PR 36821); code written here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK_V = 16
"""Value channels a program."""
NUM_WARPS = 1
LANE = 16
"""Key channels a lane: 4, 8 or 16."""
MAX_REGISTERS = 128
"""Of a thread; None leaves it to the compiler."""
MAX_BATCH = 4096
MAX_LAYERS = 256
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
def _fold_kernel(
    p_ring_k,
    p_ring_v,
    p_ring_g,
    p_ring_beta,
    p_state,
    p_index,
    p_accepted,
    stride_layer,
    stride_state,
    B,
    T,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    LANE: tl.constexpr,
):
    i_v = tl.program_id(0) % ((V + BLOCK_V - 1) // BLOCK_V)
    i_h = tl.program_id(0) // ((V + BLOCK_V - 1) // BLOCK_V)
    i_b = tl.program_id(1)
    i_layer = tl.program_id(2).to(tl.int64)
    slot = tl.load(p_index + i_b).to(tl.int64)
    accepted = tl.minimum(tl.load(p_accepted + i_b), T)
    if (slot >= 0) & (accepted > 0):
        o_k = tl.arange(0, BLOCK_K)
        o_v = i_v * BLOCK_V + tl.arange(0, BLOCK_V)
        m_k = o_k < K
        m_v = o_v < V
        m_tile = m_v[:, None] & m_k[None, :]
        o_tile = o_v[:, None] * K + o_k[None, :]
        p_head = p_state + i_layer * stride_layer + slot * stride_state + i_h * V * K
        b_s = tl.load(p_head + o_tile, mask=m_tile, other=0.0)
        _spread(p_state, o_tile, i_v < 0, LANE)
        row = (i_layer * B + i_b) * T
        p_k = p_ring_k + (row * H + i_h // (HV // H)) * K + o_k
        p_v = p_ring_v + (row * HV + i_h) * V + o_v
        p_g = p_ring_g + (row * HV + i_h) * K + o_k
        p_beta = p_ring_beta + row * HV + i_h
        next_k = tl.load(p_k, mask=m_k, other=0.0)
        next_v = tl.load(p_v, mask=m_v, other=0.0)
        next_g = tl.load(p_g, mask=m_k, other=0.0)
        next_beta = tl.load(p_beta)
        for t in range(0, accepted):
            b_k = next_k.to(tl.float32)
            b_v = next_v.to(tl.float32)
            b_g = next_g
            beta = next_beta
            # The row behind the last accepted token may hold anything.
            more = t + 1 < accepted
            p_k += H * K
            p_v += HV * V
            p_g += HV * K
            p_beta += HV
            next_k = tl.load(p_k, mask=m_k & more, other=0.0)
            next_v = tl.load(p_v, mask=m_v & more, other=0.0)
            next_g = tl.load(p_g, mask=m_k & more, other=0.0)
            next_beta = tl.load(p_beta, mask=more, other=0.0)
            n_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, axis=0) + 1e-6)
            b_s = b_s * tl.exp2(b_g * 1.4426950408889634)[None, :]
            b_d = beta * (b_v - tl.sum(b_s * n_k[None, :], axis=1))
            b_s = b_s + b_d[:, None] * n_k[None, :]
        tl.store(p_head + o_tile, b_s, mask=m_tile)


POINTERS = {
    **dict.fromkeys(("p_ring_k", "p_ring_v"), "*bf16"),
    **dict.fromkeys(("p_ring_g", "p_ring_beta", "p_state"), "*fp32"),
    **dict.fromkeys(("p_index", "p_accepted"), "*i32"),
}
NUMBERS = {"stride_layer": "i64", "stride_state": "i64", "B": "i32", "T": "i32"}


def _constants(heads: tuple[int, int], widths: tuple[int, int]) -> dict[str, int]:
    return {
        "H": heads[0],
        "HV": heads[1],
        "K": widths[0],
        "V": widths[1],
        "BLOCK_K": triton.next_power_of_2(widths[0]),
        "BLOCK_V": min(BLOCK_V, triton.next_power_of_2(widths[1])),
        "LANE": LANE,
    }


def _compile_unit(heads: int) -> dict[str, object]:
    constants = _constants((heads, heads), (128, 128))
    return {
        "function": "_fold_kernel",
        "signature": {**POINTERS, **NUMBERS, **dict.fromkeys(constants, "constexpr")},
        "constants": constants,
        "divisible_by_16": ("p_ring_k", "p_ring_v", "p_ring_g", "p_state", "stride_layer", "stride_state"),
        "num_warps": NUM_WARPS,
        "num_stages": 1,
        "maxnreg": MAX_REGISTERS,
    }


_BF16 = {"dtypes": ("bfloat16",), "contiguous": True, "alignment_bytes": 16}
_FP32 = {"dtypes": ("float32",), "contiguous": True, "alignment_bytes": 16}
_INT32 = {"dtypes": ("int32",), "shape": ("B",), "alignment_bytes": 4}
CONTRACT = {
    "op": "kda.fold",
    "kernel": "kda_fold_streamed",
    "entry": "fold",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "KDA states after the accepted draft tokens, all layers in one launch (FP32 state, BF16 ring)",
    "tensors": {
        "ring_k": {**_BF16, "shape": ("Y", "B", "T", "H", "K")},
        "ring_v": {**_BF16, "shape": ("Y", "B", "T", "HV", "V")},
        "ring_g": {**_FP32, "shape": ("Y", "B", "T", "HV", "K")},
        "ring_beta": {**_FP32, "alignment_bytes": 4, "shape": ("Y", "B", "T", "HV")},
        "state": {**_FP32, "free_leading": 2, "shape": ("Y", "S", "HV", "V", "K")},
        "state_indices": _INT32,
        "accepted": _INT32,
    },
    "scalars": {},
    "callable": (
        {
            "axes": {
                "Y": {"minimum": 1, "maximum": MAX_LAYERS},
                "B": {"minimum": 1, "maximum": MAX_BATCH},
                "T": {"minimum": 1, "maximum": 64},
                "K": WIDTHS,
                "V": WIDTHS,
            },
            "basis": "widths of the source thread; Y layers, HV a multiple of H",
        },
    ),
    "range_axis": "B",
    "fallback": {"kind": "chain", "chain": ("kda_fold_torch",)},
    "state": {"scratch_bytes": 0, "concurrency": "any on distinct slots", "reset": "none"},
    "kernels_per_call": 1,
    "compile_units": tuple(_compile_unit(heads) for heads in (12, 24, 96)),
}


def _problems(ring: tuple[torch.Tensor, ...], state: torch.Tensor, rows: tuple[torch.Tensor, ...]) -> list[str]:
    """What the kernel cannot take, in words; the full contract stands in contract.json."""
    ring_k, ring_v, ring_g, ring_beta = ring
    if state.dim() != 5 or ring_k.dim() != 5:
        return ["state must be [layers, slots, HV, V, K] and ring_k [layers, B, T, H, K]"]
    layers, _, heads, values, keys = state.shape
    batch, tokens, key_heads = ring_k.shape[1:4]
    if key_heads < 1 or heads % key_heads:
        return [f"HV is {heads} with H {key_heads}; allowed: a multiple of H"]
    wanted = (
        ("ring_k", ring_k, (layers, batch, tokens, key_heads, keys)),
        ("ring_v", ring_v, (layers, batch, tokens, heads, values)),
        ("ring_g", ring_g, (layers, batch, tokens, heads, keys)),
        ("ring_beta", ring_beta, (layers, batch, tokens, heads)),
        ("state_indices", rows[0], (batch,)),
        ("accepted", rows[1], (batch,)),
    )
    found = [f"{n} is {tuple(t.shape)}; allowed: {s}" for n, t, s in wanted if t.shape != s]
    found += [f"{n} must be contiguous" for n, t, _ in wanted if not t.is_contiguous()]
    if not state[:1, :1].is_contiguous():
        found.append("state must be contiguous within a slot")
    if state.dtype != torch.float32 or ring_k.dtype != torch.bfloat16 or ring_v.dtype != torch.bfloat16:
        found.append("state must be float32, ring_k and ring_v bfloat16")
    return found


def fold(
    ring_k: torch.Tensor,
    ring_v: torch.Tensor,
    ring_g: torch.Tensor,
    ring_beta: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
    accepted: torch.Tensor,
) -> torch.Tensor:
    """Run each request's accepted tokens over its state, in place, in every layer.

    Args:
        ring_k: [layers, B, T, H, K] bf16, after the convolution, before normalisation.
        ring_v: [layers, B, T, HV, V] bf16.
        ring_g: [layers, B, T, HV, K] fp32, log-decay.
        ring_beta: [layers, B, T, HV] fp32, write strength.
        state: [layers, slots, HV, V, K] fp32, contiguous within a slot; updated in place.
        state_indices: [B] int32, distinct slots; -1 is padding.
        accepted: [B] int32, tokens to run, 0 to T; with 0 the state keeps its bits. More than T counts as T.

    Returns:
        state.

    Raises:
        ValueError: the call is outside the contract; nothing was launched.
    """
    problems = _problems((ring_k, ring_v, ring_g, ring_beta), state, (state_indices, accepted))
    if problems:
        raise ValueError("kda_fold_streamed: " + "; ".join(problems) + ".")
    layers, _, heads, values, keys = state.shape
    batch, tokens, key_heads = ring_k.shape[1:4]
    constants = _constants((key_heads, heads), (keys, values))
    _fold_kernel[(triton.cdiv(values, constants["BLOCK_V"]) * heads, batch, layers)](
        ring_k,
        ring_v,
        ring_g,
        ring_beta,
        state,
        state_indices,
        accepted,
        state.stride(0),
        state.stride(1),
        batch,
        tokens,
        **constants,
        num_warps=NUM_WARPS,
        num_stages=1,
        maxnreg=MAX_REGISTERS,
    )
    return state
