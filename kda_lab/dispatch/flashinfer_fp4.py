"""FlashInfer's `mm_fp4` as a fallback of `nvfp4.gemm`: where it may run, and the call itself.

FlashInfer checks neither the extents nor the padding of the scale containers, so the same predicate that
judges exported kernels judges its calls first. Facts: FlashInfer 0.6.18, `gemm/gemm_base.py` (architectures
of the cuDNN and CUTLASS backends, which `backend="auto"` always has among its choices) and
`csrc/fp4_gemm_cutlass.cu` (N and K in steps of 32).
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from kda_lab import runtime
from kda_lab.contracts.facts import CallFacts
from kda_lab.contracts.model import Declaration
from kda_lab.contracts.predicate import check
from kda_lab.dispatch.fallback import FallbackFunction
from kda_lab.errors import Reason, UnavailableError

NAME = "flashinfer_mm_fp4"
CAPABILITIES = ((10, 0), (10, 3), (10, 7), (11, 0), (12, 0), (12, 1))
"""Where both the CUTLASS and the cuDNN backend run; there is none for SM90."""

_CODES = {"dtypes": ["uint8"], "alignment_bytes": 16}
_SCALES = {"dtypes": ["uint8", "float8_e4m3fn"], "alignment_bytes": 16}
ACCEPTS = Declaration.model_validate(
    {
        "op": "nvfp4.gemm",
        "kernel": NAME,
        "entry": "mm_fp4",
        "language": "cuda",
        "license": "Apache-2.0",
        "author": "FlashInfer",
        "task": "library function",
        "tensors": {
            "x_fp4": {**_CODES, "shape": ["M", "K/2"]},
            "weight": {**_CODES, "shape": ["K/2", "N"], "transposed": True},
            "x_sf": {**_SCALES, "shape": ["ceil128(M)", "ceil4(K/16)"]},
            "weight_sf": {**_SCALES, "shape": ["ceil4(K/16)", "ceil128(N)"], "transposed": True},
            "alpha": {"dtypes": ["float32"], "shape": [1]},
            "out": {"dtypes": ["bfloat16"], "shape": ["M", "N"], "alignment_bytes": 16, "optional": True},
        },
        "scalars": {"out_dtype": {"kind": "dtype", "allowed": ["bfloat16"]}},
        "callable": [
            {
                "axes": {
                    "M": {"minimum": 1, "maximum": 2**31 - 1},
                    "N": {"minimum": 32, "maximum": 2**31 - 1, "multiple_of": 32},
                    # 64, not 32: from there on the padded scale columns are what FlashInfer documents as K/16.
                    "K": {"minimum": 64, "maximum": 2**31 - 1, "multiple_of": 64},
                },
                "basis": "FlashInfer 0.6.18, csrc/fp4_gemm_cutlass.cu",
            }
        ],
        "fallback": {"kind": "raise"},
        "state": {
            "scratch_bytes": 0,
            "concurrency": "the library's workspace a device: one stream",
            "reset": "none",
        },
        "kernels_per_call": 1,
        "compile_units": [],
    }
)
"""What `mm_fp4` takes, in the words of a candidate's declaration; its scratch is the library's own."""


def unavailable(facts: CallFacts) -> tuple[Reason, ...]:
    """Every reason why `mm_fp4` cannot serve a call; FlashInfer is looked for, not imported."""
    reasons: list[Reason] = []
    if facts.capability not in CAPABILITIES:
        given = "None" if facts.capability is None else "{}.{}".format(*facts.capability)
        allowed = f"exactly {', '.join(f'{major}.{minor}' for major, minor in CAPABILITIES)}"
        reasons.append(Reason("device.capability", given, allowed, "FlashInfer has no FP4 GEMM for others."))
    if importlib.util.find_spec("flashinfer") is None:
        reasons.append(Reason("flashinfer", "not installed", "FlashInfer 0.6.18", "Install flashinfer-python."))
    return (*reasons, *check(ACCEPTS, facts).reasons)


def mm_fp4(
    x_fp4: torch.Tensor,
    weight: torch.Tensor,
    x_sf: torch.Tensor,
    weight_sf: torch.Tensor,
    alpha: torch.Tensor,
    *,
    out_dtype: torch.dtype,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Call `flashinfer.mm_fp4` with the arguments of `nvfp4.gemm`; scales in the 128x4 swizzle.

    The first call of a geometry may compile and tune, so make it outside a graph capture.

    Args:
        x_fp4, weight, x_sf, weight_sf, alpha: as `kda_lab.nvfp4.gemm`.
        out_dtype: bfloat16.
        out: [M, N] out_dtype, contiguous; allocated when None.

    Raises:
        UnavailableError: FlashInfer does not import here.
        Exception: whatever FlashInfer raises.
    """
    found = runtime.import_optional("flashinfer")
    if found.module is None:
        raise UnavailableError("dispatch", f"{NAME} is {found.reason}")
    function: Any = found.module.mm_fp4
    result: torch.Tensor = function(
        x_fp4, weight, x_sf, weight_sf, alpha, out_dtype, out, block_size=16, backend="auto"
    )
    return result


MM_FP4 = FallbackFunction(NAME, mm_fp4, unavailable)
"""The fallback as the dispatcher registers it."""
