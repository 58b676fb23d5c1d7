"""Toy kernels, re-exported."""

from toyserve.kernels.fused_gate import fused_gate
from toyserve.kernels.page_indices import page_indices_kernel

__all__ = ["fused_gate", "page_indices_kernel"]
