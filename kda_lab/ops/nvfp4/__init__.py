"""The NVFP4 number format: E2M1 codes in blocks of 16, an E4M3 scale a block, one FP32 scale a tensor.

Not an op: `nvfp4.gemm` and whatever reads or writes the format build on it. Modules: `e2m1` and `e4m3` (numbers),
`layouts` (where a scale byte lies), `containers` (operands as a GEMM takes them), `quantise` (the canonical
quantiser and its inverse), `quantise_triton` and `flashinfer_quantise` (the same on a GPU), `modelopt` (checkpoints).
"""
