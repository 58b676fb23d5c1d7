"""A candidate of the exporter's tests: packed decode, one program a (row, query head), as simple as it can be."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CONTRACT = {
    "op": "qsa.packed_decode",
    "kernel": "toy_decode",
    "entry": "packed_decode",
    "language": "triton",
    "license": "Apache-2.0",
    "author": "the kda_lab authors",
    "task": "a toy for tests",
    "tensors": {
        "q": {"dtypes": ["bfloat16"], "shape": ["B", "HQ", 256]},
        "k": {"dtypes": ["bfloat16"], "shape": ["N", "HKV", 256]},
        "v": {"dtypes": ["bfloat16"], "shape": ["N", "HKV", 256]},
        "cu_seqlens_q": {"dtypes": ["int32"], "shape": ["B+1"]},
        "cu_seqlens_k": {"dtypes": ["int32"], "shape": ["B+1"]},
    },
    "scalars": {
        "max_seqlen_k": {"kind": "int", "minimum": 1, "maximum": 2055},
        "softmax_scale": {"kind": "float", "optional": True},
        "max_seqlen_q": {"kind": "int", "allowed": [1]},
    },
    "callable": [{"axes": {"B": {"minimum": 1, "maximum": 128}, "HQ": 12, "HKV": 1}}],
    "fallback": {"kind": "raise"},
    "state": {"scratch_bytes": 0, "concurrency": "any", "reset": "none needed"},
    "kernels_per_call": 1,
    "compile_units": [
        {
            "function": "_toy_kernel",
            "signature": {
                "p_q": "*bf16",
                "p_k": "*bf16",
                "p_v": "*bf16",
                "p_ends": "*i32",
                "p_out": "*bf16",
                "scale": "fp32",
            },
            "constants": {"GROUP": 12, "HQ": 12, "D": 256, "BLOCK": 32},
            "divisible_by_16": ["p_q", "p_k", "p_v", "p_out"],
        }
    ],
}


@triton.jit
def _toy_kernel(
    p_q, p_k, p_v, p_ends, p_out, scale, GROUP: tl.constexpr, HQ: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
):
    i_b = tl.program_id(0)
    i_h = tl.program_id(1)
    start = tl.load(p_ends + i_b)
    end = tl.load(p_ends + i_b + 1)
    o_d = tl.arange(0, D)
    b_q = tl.load(p_q + (i_b * HQ + i_h) * D + o_d).to(tl.float32) * scale
    top = -float("inf")
    total = 0.0
    b_acc = tl.zeros([D], dtype=tl.float32)
    for first in range(start, end, BLOCK):
        o_n = first + tl.arange(0, BLOCK)
        m_n = o_n < end
        o_kv = (o_n * (HQ // GROUP) + i_h // GROUP)[:, None] * D + o_d[None, :]
        b_k = tl.load(p_k + o_kv, mask=m_n[:, None], other=0.0).to(tl.float32)
        b_s = tl.where(m_n, tl.sum(b_k * b_q[None, :], axis=1), -float("inf"))
        highest = tl.maximum(top, tl.max(b_s, axis=0))
        b_p = tl.exp(b_s - highest)
        b_v = tl.load(p_v + o_kv, mask=m_n[:, None], other=0.0).to(tl.float32)
        b_acc = b_acc * tl.exp(top - highest) + tl.sum(b_p[:, None] * b_v, axis=0)
        total = total * tl.exp(top - highest) + tl.sum(b_p, axis=0)
        top = highest
    b_out = b_acc / tl.where(total > 0.0, total, 1.0)
    tl.store(p_out + (i_b * HQ + i_h) * D + o_d, b_out.to(tl.bfloat16))


def packed_decode(q, k, v, cu_seqlens_q, cu_seqlens_k, *, max_seqlen_k, softmax_scale=None, max_seqlen_q=1, out=None):
    out = torch.empty_like(q) if out is None else out
    heads = q.shape[1]
    scale = 0.0625 if softmax_scale is None else softmax_scale
    _toy_kernel[(q.shape[0], heads)](
        q, k, v, cu_seqlens_k, out, scale, GROUP=heads // k.shape[1], HQ=heads, D=256, BLOCK=32
    )
    return out
