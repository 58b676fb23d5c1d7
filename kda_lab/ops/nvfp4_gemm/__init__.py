"""NVFP4 GEMM: a product of packed E2M1 codes with E4M3 block scales (W4A4), rounded once."""
