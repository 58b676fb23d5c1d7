"""Random operands of `nvfp4.gemm`: codes, block scales and alpha of each kind of row.

Weight scales always vary from block to block: with equal scales a misread scale layout changes nothing.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch

from kda_lab.ops.nvfp4 import e2m1, e4m3, quantise
from kda_lab.ops.nvfp4_gemm.spec import SPEC

OUTPUT_SPREAD = 4.0
"""Standard deviation that alpha gives the outputs."""
CODE_MEAN_SQUARE = 8.5625
"""Mean of the square of a uniformly drawn E2M1 code."""
EXACT_X_SPREAD = 1.5
ONE = 0x38
"""The E4M3 byte of 1.0."""
X_SCALES = range(0x60, 0x7F)
"""Scale bytes of activations in a calibrated tensor: its largest block has 448, others down to 32."""


@dataclass(frozen=True)
class Scales:
    """Bytes that block scales are drawn from, uniformly: first, last and step."""

    first: int
    last: int
    step: int = 1

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Random scale bytes, uint8 on the generator's device."""
        count = (self.last - self.first) // self.step + 1
        drawn = torch.randint(0, count, shape, dtype=torch.uint8, generator=generator, device=generator.device)
        return drawn.mul_(self.step).add_(self.first)

    def mean_square(self) -> float:
        """Mean of the squared scale."""
        scales = torch.arange(self.first, self.last + 1, self.step, dtype=torch.uint8)
        return float(e4m3.decode(scales).double().square().mean())


LOG_UNIFORM = Scales(0x18, 0x58)
ANY, SUBNORMAL = Scales(0x01, 0x7E), Scales(0x01, 0x07)
PERIOD, PHASE = 8, 1
"""In the kind any_scale, the rows 1, 9, 17, … of either operand have subnormal scales alone: beside larger scales they
would add nothing that an output shows."""
SUBNORMAL_X = 2.0**-15
"""Moves the scales of a calibrated token, 32 to 448, to 2^-10 to 7 * 2^-9."""
WEIGHT_SCALES = {
    "random": LOG_UNIFORM,
    "fp32": LOG_UNIFORM,
    # 0.5, 1 and 2. Codes are multiples of 1/2, so every product of the exact rows is a multiple of 2^-3; each is at
    # most 6 * 6 * 2 = 72, so a sum over K <= 29127 stays below 2^21. Such sums need 24 bits: FP32 holds each partial
    # sum exactly, whatever the order, and a power-of-two alpha only moves the exponent.
    "exact": Scales(0x30, 0x40, 8),
    "any_scale": ANY,
}
"""Kind of row to the bytes of its weight scales. LOG_UNIFORM spans 2^-4 to 2^4."""
CALIBRATED = Scales(X_SCALES.start, X_SCALES.stop - 1)


@dataclass(frozen=True)
class Rows:
    """Quantised rows of one operand: `packed` [R, K/2] and linear `scales` [R, K/16], both uint8."""

    packed: torch.Tensor
    scales: torch.Tensor


@dataclass(frozen=True)
class Activations(Rows):
    """Quantised activations with their `input_scale` [1] fp32: value = code * scale * input_scale."""

    input_scale: torch.Tensor


def generator(label: str, seed: int, device: torch.device | str) -> torch.Generator:
    """A generator that depends on the label and the seed; CPU and CUDA draw different numbers."""
    digest = hashlib.sha256(f"{SPEC.name} {label} {seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))


def random_bytes(shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    """Uniform bytes, so that all 16 codes are equally frequent, -0 included."""
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw, device=draw.device)


def draw_weight(N: int, K: int, kind: str, draw: torch.Generator) -> Rows:
    """A weight of uniform codes and of the kind's scales."""
    packed, scales = random_bytes((N, K // 2), draw), WEIGHT_SCALES[kind].draw((N, K // 16), draw)
    if kind == "any_scale":
        few = scales[PHASE::PERIOD]
        few.copy_(SUBNORMAL.draw(tuple(few.shape), draw))
    return Rows(packed, scales)


def draw_activations(M: int, K: int, kind: str, draw: torch.Generator) -> Activations:
    """Normal activations, quantised canonically with a calibrated global scale; scales of 1 for the kind exact."""
    x = torch.randn(M, K, generator=draw, device=draw.device)
    one = torch.ones(1, device=draw.device)
    if kind == "exact":
        scales = torch.full((M, K // 16), ONE, dtype=torch.uint8, device=draw.device)
        return Activations(e2m1.pack(e2m1.encode(x * EXACT_X_SPREAD)), scales, one)
    global_scale = quantise.global_scale_of(x)
    if kind == "any_scale":
        x[PHASE::PERIOD] *= SUBNORMAL_X
    found = quantise.quantise(x, global_scale)
    return Activations(found.packed, found.scales, one / global_scale)


def weight_scale_2(K: int, kind: str) -> float:
    """The weight's global scale that gives outputs of standard deviation `OUTPUT_SPREAD` for unit activations."""
    if kind == "exact":
        return _power_of_two(K, EXACT_X_SPREAD**2 * WEIGHT_SCALES[kind].mean_square())
    return OUTPUT_SPREAD / math.sqrt(K * CODE_MEAN_SQUARE * WEIGHT_SCALES[kind].mean_square())


def alpha_of_random_codes(K: int, kind: str) -> float:
    """Alpha for activations of uniform codes and, but for the kind exact, scales from `CALIBRATED`."""
    x_square = CODE_MEAN_SQUARE * (1.0 if kind == "exact" else CALIBRATED.mean_square())
    if kind == "exact":
        return _power_of_two(K, x_square * WEIGHT_SCALES[kind].mean_square())
    return OUTPUT_SPREAD / math.sqrt(K * x_square * CODE_MEAN_SQUARE * WEIGHT_SCALES[kind].mean_square())


def _power_of_two(K: int, square: float) -> float:
    return 2.0 ** round(math.log2(OUTPUT_SPREAD / math.sqrt(K * CODE_MEAN_SQUARE * square)))
