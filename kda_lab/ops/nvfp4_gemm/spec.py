"""Signature of `nvfp4.gemm`: a W4A4 matrix product on packed E2M1 codes with E4M3 block scales."""

from __future__ import annotations

from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec(
    name="nvfp4.gemm",
    tensors=("x_fp4", "weight", "x_sf", "weight_sf", "alpha"),
    scalars=("out_dtype",),
    outputs=("out",),
    dtypes=("out_dtype",),
    fallback=("flashinfer_mm_fp4", "nvfp4_gemm_portable"),
    refusal="unsupported NVFP4 GEMM call",
)
"""y[m, n] = alpha · sum_k a(m, k) · sfa(m, k // 16) · w(n, k) · sfw(n, k // 16), rounded once at the store.

x_fp4     [M, K/2] uint8, row-major; the low nibble holds the even k
weight    [K/2, N] uint8, strides (1, K/2): the transposed view of row-major [N, K/2]
x_sf      [ceil128(M), ceil4(K/16)] uint8 or float8_e4m3fn; a container whose bytes lie in the 128x4 swizzle
weight_sf [ceil4(K/16), ceil128(N)], the transposed view of such a container over the N rows
alpha     [1] float32: 1 / (g_x · g_w), what both quantisers multiplied by; a checkpoint's input_scale · weight_scale_2
out_dtype bfloat16, or float32 for verification
out       [M, N] out_dtype, row-major

Layouts follow FlashInfer's `mm_fp4`; source thread: sglang, KDA NVFP4 GEMM for Qwen3.x on SM120.
"""
