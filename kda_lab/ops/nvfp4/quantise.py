"""The canonical NVFP4 quantiser in IEEE FP32, its inverse, and the rule by which another quantiser agrees with it.

A block of 16 values has amax a; its scale byte is E4M3(a · g / 6) for the tensor's global scale g, and its codes are
E2M1(x · g / scale). The order of the multiplications decides the last bit: `strict` is the canonical one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.nvfp4 import e2m1, e4m3
from kda_lab.ops.nvfp4.containers import BLOCK, require_pair

Order = Literal["strict", "fast"]
ORDERS: tuple[Order, ...] = ("strict", "fast")
RANGE = e4m3.MAXIMUM * e2m1.MAXIMUM
"""Largest value of a tensor whose global scale is 1: 448 · 6 = 2688."""
SIXTH = 1.0 / 6.0
FLOAT_MAXIMUM = torch.finfo(torch.float32).max
SMALLEST_AMAX = 1e-30
"""Below it the global scale and its reciprocal would leave FP32's normal range."""
CODE_STEPS, CODE_SHARE, SCALE_STEPS = 1, 1e-3, 1


@dataclass(frozen=True)
class Quantised:
    """A quantised tensor: `packed` [R, K/2] uint8 and `scales` [R, K/16] uint8, both row-major and unswizzled."""

    packed: torch.Tensor
    scales: torch.Tensor


@dataclass(frozen=True)
class Agreement:
    """How far two quantisers are apart on the same tensor."""

    code_steps: int
    """Largest distance of two codes, in codes; -0 and 0 are the same."""
    code_share: float
    """Share of the compared codes that differ."""
    scale_steps: int
    """Largest distance of two scale bytes, in E4M3 steps."""
    compared: int
    """Codes compared: those in blocks where both scales are above zero, since any code times zero is zero."""

    @property
    def holds(self) -> bool:
        """Codes at most one apart on at most 0.1 % of the elements, scales at most one step apart."""
        near = self.code_steps <= CODE_STEPS and self.scale_steps <= SCALE_STEPS
        return near and self.code_share <= CODE_SHARE


def quantise(x: torch.Tensor, global_scale: torch.Tensor | float, order: Order = "strict") -> Quantised:
    """Quantise rows to NVFP4.

    `strict`: sf = a · (g · (1/6)); codes = E2M1(x · min(1 / (sf8 · (1/g)), FLT_MAX)).
    `fast`: sf = g · (a · (1/6)); codes = E2M1(x · 1 / (sf8 · (1/g))), and all-zero blocks times 0. It models the
    order of the hardware kernels with true reciprocals where they use approximate ones, so it predicts how they
    treat edge cases, not each of their bits.

    A block whose scale rounds to zero dequantises to zero whatever its codes; fast gives it ±6 codes. A block's
    amax ignores NaN, whose code is 7; a block of NaN only has the scale NaN (0x7F).

    Args:
        x: [R, K] bf16, fp16 or fp32, K % 16 == 0.
        global_scale: g > 0, one FP32 element on x's device or the CPU, or a float; usually `global_scale_of(x)`.
            Its value is checked where reading it needs no device.
        order: `strict` or `fast`.

    Returns:
        Packed codes and linear scales on x's device.

    Raises:
        ParameterError: a shape, dtype or value lies outside the above; all reasons at once.
    """
    _require_input(x, order)
    g = require_global_scale(global_scale).to(x.device)
    blocks = x.float().unflatten(1, (-1, BLOCK))
    amax = _block_amax(blocks)
    sf = amax * (g * SIXTH) if order == "strict" else g * (amax * SIXTH)
    scales = e4m3.encode(sf)
    outscale = 1.0 / (e4m3.decode(scales) * (1.0 / g))
    outscale = outscale.clamp(max=FLOAT_MAXIMUM) if order == "strict" else outscale.masked_fill(amax == 0, 0.0)
    codes = e2m1.encode((blocks * outscale.unsqueeze(2)).flatten(1))
    return Quantised(e2m1.pack(codes), scales)


def dequantise(packed: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Values of a quantised tensor: code · scale / g, exact in FP32 for g = 1.

    Args:
        packed: [R, K/2] uint8.
        scales: [R, K/16] uint8 or float8_e4m3fn, linear.
        global_scale: g, as `quantise` took it.

    Returns:
        [R, K] FP32.

    Raises:
        ParameterError: shapes do not fit each other, or a dtype is another one.
    """
    require_pair(packed, scales)
    values = e2m1.decode(e2m1.unpack(packed)).unflatten(1, (-1, BLOCK)) * e4m3.decode(scales).unsqueeze(2)
    return values.flatten(1) / require_global_scale(global_scale).to(packed.device)


def global_scale_of(x: torch.Tensor) -> torch.Tensor:
    """The scale that maps a tensor's amax to the largest NVFP4 value: 2688 / amax, and 1 for zeros.

    Args:
        x: any shape with at least one element, floating point, finite.

    Returns:
        [1] FP32 on x's device; nothing is read back.

    Raises:
        ParameterError: x is empty or not floating point.
    """
    if not x.is_floating_point() or not x.numel():
        given = f"{tuple(x.shape)} {x.dtype}"
        raise ParameterError("nvfp4", [Reason("x", repr(given), "a floating-point tensor that is not empty")])
    amax = x.abs().amax().float().view(1)
    return torch.where(amax == 0, torch.ones_like(amax), RANGE / amax.clamp(min=SMALLEST_AMAX))


def agreement(a: Quantised, b: Quantised) -> Agreement:
    """Compare two quantisations of one tensor; reads the device.

    Raises:
        ParameterError: the shapes differ, so they are no quantisations of one tensor.
    """
    if a.packed.shape != b.packed.shape or a.scales.shape != b.scales.shape:
        given, allowed = repr(tuple(b.packed.shape)), repr(tuple(a.packed.shape))
        raise ParameterError("nvfp4", [Reason("b.packed.shape", given, allowed, "Quantise the same tensor twice.")])
    scale_steps = (a.scales.int() - b.scales.int()).abs()
    live = ((a.scales > 0) & (b.scales > 0)).repeat_interleave(BLOCK, dim=1)
    distances = (_rank(a.packed) - _rank(b.packed)).abs()[live]
    if not distances.numel():
        return Agreement(0, 0.0, int(scale_steps.max()) if scale_steps.numel() else 0, 0)
    share = float((distances > 0).double().mean())
    return Agreement(int(distances.max()), share, int(scale_steps.max()), distances.numel())


def _rank(packed: torch.Tensor) -> torch.Tensor:
    """Position of each code on the number line: -7 to 7."""
    codes = e2m1.unpack(packed).int()
    magnitude = codes & 7
    return torch.where(codes >= e2m1.SIGN, -magnitude, magnitude)


def _block_amax(blocks: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of each block [R, K/16, 16]; NaN is left out, unless nothing else is there."""
    # torch's amax would hand a single NaN to the whole block; the hardware's maximum does not.
    amax = blocks.abs().masked_fill_(blocks.isnan(), -1.0).amax(2)
    return amax.masked_fill_(amax < 0, math.nan)


def _require_input(x: torch.Tensor, order: str) -> None:
    reasons = []
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        allowed = "torch.bfloat16, torch.float16, torch.float32"
        reasons.append(Reason("x.dtype", repr(x.dtype), allowed, "Cast x first."))
    if x.dim() != 2 or x.shape[1] % BLOCK:
        remedy = "Flatten the rows, and pad K with zeros to a multiple of 16."
        reasons.append(Reason("x.shape", repr(tuple(x.shape)), "[R, K] with K % 16 == 0", remedy))
    if order not in ORDERS:
        reasons.append(Reason("order", repr(order), ", ".join(map(repr, ORDERS))))
    if reasons:
        raise ParameterError("nvfp4", reasons)


def require_global_scale(global_scale: torch.Tensor | float) -> torch.Tensor:
    """A global scale as [1] FP32, where it lies.

    Raises:
        ParameterError: not one FP32 element; or, where reading needs no device, not finite and above zero.
    """
    if not isinstance(global_scale, torch.Tensor):
        global_scale = torch.tensor([global_scale], dtype=torch.float32)
    if global_scale.dtype != torch.float32 or global_scale.numel() != 1:
        given = f"{tuple(global_scale.shape)} {global_scale.dtype}"
        # A BF16 scale was once reinterpreted as FP32 bits (FlashInfer issue 3497).
        remedy = "Cast it with .float(): other dtypes would be rounded or misread."
        raise ParameterError("nvfp4", [Reason("global_scale", repr(given), "one torch.float32 element", remedy)])
    if global_scale.device.type == "cpu" and not 0.0 < float(global_scale) < math.inf:
        remedy = "Use global_scale_of(x), or 1 / input_scale of the checkpoint."
        raise ParameterError(
            "nvfp4", [Reason("global_scale", repr(float(global_scale)), "finite and above zero", remedy)]
        )
    return global_scale.view(1)
