"""The public door of NVFP4 (W4A4): the matrix product of packed E2M1 operands with E4M3 block scales.

Importing it loads torch and this package's production column, no Triton and no FlashInfer: what serves a
call is imported when a call first selects it.
"""

from __future__ import annotations

import torch

from kda_lab.dispatch.dispatcher import DISPATCHER
from kda_lab.dispatch.explanation import Explanation
from kda_lab.dispatch.statistics import Statistics
from kda_lab.ops.nvfp4_gemm.spec import SPEC

__all__ = ["explain_gemm", "gemm", "prepare", "reset_statistics", "statistics"]


def gemm(
    x_fp4: torch.Tensor,
    weight: torch.Tensor,
    x_sf: torch.Tensor,
    weight_sf: torch.Tensor,
    alpha: torch.Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Multiply two NVFP4 matrices: activations [M, K] by the transpose of a weight [N, K].

    out[m, n] = alpha · sum_k a(m, k) · sfa(m, k // 16) · w(n, k) · sfw(n, k // 16), where a and w are the
    values of the E2M1 codes and sfa, sfw their E4M3 scales, one for 16 consecutive k.

    Axes:      M rows of activations, N output features, K inputs, a multiple of 16. The contracts of the
               exported kernels say which extents are served; the rest goes down the fallback chain.
    Args:
        x_fp4:     [M, K/2] uint8, contiguous, two codes a byte, the low nibble for the even k; not written.
        weight:    [K/2, N] uint8, strides (1, K/2): the transpose of row-major [N, K/2]; not written.
        x_sf:      [ceil128(M), ceil4(K/16)] uint8 or float8_e4m3fn, contiguous; a container whose bytes lie in
                   the 128x4 swizzle. Padding should hold zero: no kernel of ours lets it through, FlashInfer's may. Not written.
        weight_sf: [ceil4(K/16), ceil128(N)], strides (1, ceil4(K/16)): the transpose of such a container over
                   the N rows; not written.
        alpha:     [1] float32 on the device of x_fp4: 1 / (g_x · g_w), what the two quantisers multiplied by; a
                   checkpoint's input_scale · weight_scale_2. Not written, and read by the device only, so that
                   a captured graph sees its changes.
        out_dtype: bfloat16, or float32 for verification.
        out:       [M, N] out_dtype, contiguous; allocated when None. It must share no memory with an input: that
                   is the caller's duty and is not checked; where it does, the result is undefined.
        kernel:    name of an exported kernel to force, judged by its callable shapes.
    Returns:   out.
    Raises:    ContractError, opening with "unsupported NVFP4 GEMM call" and one reason per wrong field of
               each kernel and fallback; ParameterError for an unknown kernel; KernelLoadError when a kernel's
               files disagree with its contract. Nothing launched, out untouched. Fallbacks, in order:
               FlashInfer's mm_fp4 where it runs, then the exported portable kernel.
    Numerics:  code times scale is exact; sums in fp32; alpha in fp32; one rounding at the store. Oracle:
               ops.nvfp4_gemm.oracle. Gates: see the kernel's contract; a fallback function has none here.
    Work:      reads N·K/2 + ceil128(N)·ceil4(K/16) + M·K/2 + ceil128(M)·ceil4(K/16) + 4 bytes, writes
               2·M·N bytes (4·M·N for float32); 2·M·N·K FLOPs.
    Launch:    current stream; no device read on the host. Safe in graph capture after one call of the same
               geometry and out_dtype outside it, which imports, compiles and allocates; `prepare` says where less
               is enough. State and concurrency: see the contract's `state`. Not differentiable.
    Source:    formula, layouts and contract: source thread (sglang PR 36865). Code: written here.
    """
    tensors = (x_fp4, weight, x_sf, weight_sf, alpha)
    return DISPATCHER.call(SPEC, tensors, {"out_dtype": out_dtype}, {"out": out}, kernel)


def explain_gemm(
    x_fp4: torch.Tensor,
    weight: torch.Tensor,
    x_sf: torch.Tensor,
    weight_sf: torch.Tensor,
    alpha: torch.Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    kernel: str | None = None,
) -> Explanation:
    """Which kernel or fallback `gemm` would run for these arguments, and why not the others.

    Takes the arguments of `gemm`. Print the result. Nothing is launched, imported or counted.

    Raises:
        ParameterError: the forced kernel is not known.
        KernelLoadError: a contract is broken.
    """
    tensors = (x_fp4, weight, x_sf, weight_sf, alpha)
    return DISPATCHER.explain(SPEC, tensors, {"out_dtype": out_dtype}, {"out": out}, kernel)


def prepare() -> tuple[str, ...]:
    """Import every exported NVFP4 GEMM kernel now and check its hashes; returns their names.

    It compiles nothing and imports no fallback function, so a graph capture needs more: one call of `gemm` on the
    same device outside of it. For a kernel in CUDA C++ (nvfp4_gemm_streamed) one call of the same class of M, 1 to 8
    or 9 to 16, is enough, whatever N, K and out_dtype; without one, its first call inside a capture raises a
    RuntimeError that says so. What Triton or a library serves needs one call of the same geometry and out_dtype, since
    those compile or tune for each.

    Raises:
        KernelLoadError: a kernel's files disagree with its contract, or its fallback with the op's.
    """
    return DISPATCHER.prepare(SPEC)


def statistics() -> Statistics:
    """Hits, fallbacks and refusals of this process since its start or the last reset, all ops."""
    return DISPATCHER.statistics()


def reset_statistics() -> None:
    """Put every count back to zero."""
    DISPATCHER.reset_statistics()
