"""FlashInfer's `fp4_quantize` as one more activation quantiser, where it computes anything.

Its module loads on older GPUs, but the device code is compiled for SM100 and above only: below, an empty kernel is
launched and the returned buffers hold whatever was in memory, without an error. So the capability is asked here.
"""

from __future__ import annotations

import torch

from kda_lab import runtime
from kda_lab.errors import ParameterError, Reason, UnavailableError
from kda_lab.ops.nvfp4.containers import BLOCK, Activation
from kda_lab.ops.nvfp4.layouts import ATOM_COLUMNS, ATOM_ROWS, round_up
from kda_lab.ops.nvfp4.quantise import require_global_scale

MINIMUM_CAPABILITY = (10, 0)


def why_not(device: torch.device | str) -> str:
    """Why FlashInfer cannot quantise on a device, `unavailable, because …`; empty where it can."""
    capability = runtime.capability(device)
    if capability is None:
        return f"unavailable, because {device} is no CUDA device"
    if capability < MINIMUM_CAPABILITY:
        given = ".".join(map(str, capability))
        return (
            f"unavailable, because on compute capability {given} fp4_quantize launches an empty kernel and returns "
            "uninitialised memory without an error; its code needs 10.0 or above"
        )
    return runtime.import_optional("flashinfer").reason


def quantise(x: torch.Tensor, global_scale: torch.Tensor) -> Activation:
    """Quantise activations with FlashInfer, scales in the 128x4 swizzle.

    The result agrees with the canonical quantiser by `quantise.agreement`, not bit by bit.

    Args:
        x: [M, K] bf16 or fp16 on a CUDA device, contiguous, K % 16 == 0.
        global_scale: [1] FP32 on x's device.

    Returns:
        (x_fp4 [M, K/2] uint8, x_sf [ceil128(M), ceil4(K/16)] uint8).

    Raises:
        UnavailableError: the device or the installation cannot do it; the text says why.
        ParameterError: x or global_scale lies outside the above.
    """
    # The capability comes first: on a GPU that computes nothing no argument is right.
    reason = why_not(x.device)
    if reason:
        raise UnavailableError("nvfp4", f"flashinfer fp4_quantize is {reason}. Use nvfp4.quantise_triton.")
    if x.dtype not in (torch.bfloat16, torch.float16) or x.dim() != 2 or x.shape[1] % BLOCK or not x.is_contiguous():
        given = f"{tuple(x.shape)} {x.dtype}, strides {x.stride()}"
        allowed = "[M, K] torch.bfloat16 or torch.float16, contiguous, K % 16 == 0"
        raise ParameterError("nvfp4", [Reason("x", repr(given), allowed)])
    scale = require_global_scale(global_scale)
    flashinfer = runtime.import_optional("flashinfer").module
    if flashinfer is None:
        raise UnavailableError("nvfp4", "flashinfer vanished between two imports. Start a fresh process.")
    packed, scales = flashinfer.fp4_quantize(x, scale, sf_vec_size=BLOCK, is_sf_swizzled_layout=True)
    shape = round_up(x.shape[0], ATOM_ROWS), round_up(x.shape[1] // BLOCK, ATOM_COLUMNS)
    return Activation(packed, scales.view(torch.uint8).view(shape))
