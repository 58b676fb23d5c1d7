"""Shapes of `nvfp4.gemm`: names, the tables of the source thread, and benchmark rows made of them."""

from __future__ import annotations

from collections.abc import Sequence

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.nvfp4_gemm.spec import SPEC
from kda_lab.ops.protocol import Row

MODEL_SHAPES = {
    "4b_gate_up": (2560, 18432),
    "4b_down": (9216, 2560),
    "9b_gate_up": (4096, 24576),
    "9b_down": (12288, 4096),
    "27b_gate_up": (5120, 34816),
    "27b_down": (17408, 5120),
    "lm_head": (5120, 248320),
}
"""Name to (K, N): linear layers of Qwen3.5 4B and 9B, and of Qwen3.8 27B."""
TINY_SHAPES = {
    "tiny_a": (512, 256),
    "tiny_b": (2560, 320),
    "tiny_c": (576, 48),
    "tiny_d": (64, 16),
    "tiny_e": (96, 32),
    "tiny_f": (128, 40),
}
"""Name to (K, N): small enough for a CPU. In tiny_e K is no multiple of 64, in tiny_f N is none of 16."""
SHAPES = {**MODEL_SHAPES, **TINY_SHAPES}
QWEN35 = ("4b_gate_up", "4b_down", "9b_gate_up", "9b_down")
QWEN38 = ("27b_gate_up", "27b_down", "lm_head")
PREFILL = 4369
"""Tokens of the prefill that the source thread captured."""
DISPATCHED = (
    *((M, MODEL_SHAPES[name][1], MODEL_SHAPES[name][0]) for name in QWEN35 for M in (1, 2, 4, 8)),
    (9, 5120, 17408),
)
"""(M, N, K) of the 17 calls that the source thread's kernel serves in production."""
KINDS = ("random", "fp32", "exact", "any_scale")
"""random: BF16 out, weight scales 2^-4 to 2^4. fp32: the same with FP32 out. exact: power-of-two scales and FP32 out,
so that every order of summation gives the same bits. any_scale: BF16 out, every E4M3 scale from 2^-9 to 448."""
OUT_DTYPES = {"random": "bfloat16", "fp32": "float32", "exact": "float32", "any_scale": "bfloat16"}


def rows(
    shapes: Sequence[str] = QWEN35, batches: Sequence[int] = (1, 2, 4, 8, 9), kinds: Sequence[str] = ("random",)
) -> list[Row]:
    """Benchmark rows, one for each shape, batch and kind, in that order: `4b_down-M8-random`.

    Args:
        shapes: keys of `SHAPES`.
        batches: M, tokens a call.
        kinds: of `KINDS`.

    Raises:
        ParameterError: an unknown shape or kind, or a batch below 1.
    """
    return [_row(shape, M, kind) for shape in shapes for M in batches for kind in kinds]


def published() -> list[Row]:
    """The 29 calls that the source thread's low-level API accepts: 20 of Qwen3.5, 6 decode and 3 prefill of 27B."""
    return [*rows(QWEN35), *rows(QWEN38, (1, 9)), *rows(QWEN38, (PREFILL,))]


def _row(shape: str, M: int, kind: str) -> Row:
    reasons = []
    if shape not in SHAPES:
        reasons.append(Reason("shape", repr(shape), ", ".join(map(repr, SHAPES))))
    if isinstance(M, bool) or not isinstance(M, int) or M < 1:
        reasons.append(Reason("batch", repr(M), "1 or more"))
    if kind not in KINDS:
        reasons.append(Reason("kind", repr(kind), ", ".join(map(repr, KINDS))))
    if reasons:
        raise ParameterError(SPEC.name, reasons)
    K, N = SHAPES[shape]
    return Row(SPEC.name, f"{shape}-M{M}-{kind}", {"M": M, "N": N, "K": K, "kind": kind})
