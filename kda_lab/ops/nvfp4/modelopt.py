"""ModelOpt NVFP4 checkpoints: merge the partitions of a fused layer into one GEMM operand, once, at load time.

A fused layer (q/k/v, gate/up) is stored as partitions along N, each with scales of its own; the product takes one
alpha. Merging by maximum is right for `input_scale`, since activations are quantised with the merged one, but not
for `weight_scale_2`: the stored block scales stay relative to their own partition's, so a partition with a smaller
one would come out too large. Such a layer is refused, or its block scales are rewritten on request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.nvfp4 import e2m1, e4m3
from kda_lab.ops.nvfp4.containers import BLOCK, prepare_weight
from kda_lab.ops.nvfp4.layouts import round_up

PADDING = 32
"""N and K of the operand are multiples of this."""


@dataclass(frozen=True)
class Partition:
    """One partition of a fused layer, as a checkpoint stores it; all tensors on one device."""

    weight: torch.Tensor
    """[N_i, K/2] uint8, two E2M1 codes a byte, low nibble the even k."""
    weight_scale: torch.Tensor
    """[N_i, K/16] float8_e4m3fn or uint8, linear."""
    weight_scale_2: torch.Tensor | float
    """FP32, one element: the weight is code · weight_scale · weight_scale_2."""
    input_scale: torch.Tensor | float
    """FP32, one element: calibrated amax of the activations / 2688."""


@dataclass(frozen=True)
class LoadedLinear:
    """A layer's constant operands of `nvfp4.gemm`, and what its caller needs beside them."""

    weight: torch.Tensor
    """[K/2, N] uint8, strides (1, K/2)."""
    weight_sf: torch.Tensor
    """[ceil4(K/16), ceil128(N)] uint8, the transposed view of the 128x4-swizzled scales."""
    alpha: torch.Tensor
    """[1] FP32: input_scale · weight_scale_2."""
    input_global_scale: torch.Tensor
    """[1] FP32: 1 / input_scale, what the activation quantiser takes."""
    N: int
    """Rows of the operand: out_features rounded up to 32; the rows beyond are zero, so slice the output."""
    K: int
    """Width of the operand: in_features rounded up to 32; pad activations with zeros to it."""
    out_features: int
    in_features: int
    rescale_error: float
    """Largest relative error that rewriting the block scales caused, 1.0 where a scale vanished; 0.0 otherwise."""


def load_linear(partitions: Sequence[Partition], *, rescale: bool = False) -> LoadedLinear:
    """Merge a layer's partitions along N, pad, swizzle the scales and form alpha; reads the device.

    Args:
        partitions: at least one, in the order of their rows.
        rescale: where `weight_scale_2` differs, multiply each block scale by its partition's share of the largest
            one and round it to E4M3 again (see `rescale_error`) instead of refusing.

    Returns:
        The operands on the partitions' device.

    Raises:
        ParameterError: shapes, dtypes or scales are not those of a checkpoint, or `weight_scale_2` differs and
            `rescale` is False.
    """
    if not partitions:
        raise ParameterError("nvfp4", [Reason("partitions", "[]", "at least one", "Give the layer's partitions.")])
    reasons = [reason for index, part in enumerate(partitions) for reason in _refusals(index, part, partitions[0])]
    if reasons:
        raise ParameterError("nvfp4", reasons)
    seconds = [float(part.weight_scale_2) for part in partitions]
    second, first = max(seconds), partitions[0]
    if min(seconds) != second and not rescale:
        raise ParameterError("nvfp4", [_differing(seconds)])
    rewritten = [_rescaled(part, own / second) for part, own in zip(partitions, seconds, strict=True)]
    packed = torch.cat([part.weight for part in partitions])
    scales = torch.cat([scale for scale, _ in rewritten])
    rows, width = packed.shape[0], packed.shape[1] * 2
    weight, weight_sf = prepare_weight(_padded(packed, 2), _padded(scales, BLOCK))
    activation = torch.tensor([max(float(part.input_scale) for part in partitions)], device=first.weight.device)
    return LoadedLinear(
        weight=weight,
        weight_sf=weight_sf,
        alpha=activation * second,
        input_global_scale=1.0 / activation,
        N=weight.shape[1],
        K=weight.shape[0] * 2,
        out_features=rows,
        in_features=width,
        rescale_error=max(error for _, error in rewritten),
    )


def _refusals(index: int, part: Partition, first: Partition) -> list[Reason]:
    """What is wrong with one partition; the first one says the width and device of all."""
    name = f"partitions[{index}]"
    reasons = []
    if part.weight.dtype != torch.uint8 or part.weight.dim() != 2 or part.weight.shape[1] % (BLOCK // 2):
        given = f"{tuple(part.weight.shape)} {part.weight.dtype}"
        remedy = "Two E2M1 codes share a byte."
        reasons.append(Reason(f"{name}.weight", repr(given), "[N, K/2] torch.uint8 with K % 16 == 0", remedy))
    elif part.weight.shape[1:] != first.weight.shape[1:] or part.weight.device != first.weight.device:
        given = f"{tuple(part.weight.shape)} on {part.weight.device}"
        allowed = f"the width and device of partitions[0]: {tuple(first.weight.shape)} on {first.weight.device}"
        reasons.append(Reason(f"{name}.weight", repr(given), allowed, "Partitions are rows of one layer."))
    else:
        reasons += _scale_refusals(name, part)
    for field in ("weight_scale_2", "input_scale"):
        value = getattr(part, field)
        if isinstance(value, torch.Tensor) and (value.dtype != torch.float32 or value.numel() != 1):
            given = f"{tuple(value.shape)} {value.dtype}"
            reasons.append(Reason(f"{name}.{field}", repr(given), "one torch.float32 element"))
        elif not 0.0 < float(value) < math.inf:
            remedy = "Calibrate the checkpoint again."
            reasons.append(Reason(f"{name}.{field}", repr(float(value)), "finite and above zero", remedy))
    return reasons


def _scale_refusals(name: str, part: Partition) -> list[Reason]:
    expected = (part.weight.shape[0], part.weight.shape[1] * 2 // BLOCK)
    given = tuple(part.weight_scale.shape)
    if given != expected or part.weight_scale.dtype not in (torch.uint8, torch.float8_e4m3fn):
        allowed = f"{expected} torch.float8_e4m3fn or torch.uint8"
        remedy = "Checkpoints hold linear scales, one for each 16 values of K."
        return [Reason(f"{name}.weight_scale", repr(f"{given} {part.weight_scale.dtype}"), allowed, remedy)]
    bad = int((~e4m3.is_scale(part.weight_scale)).sum())
    if bad:
        remedy = "The checkpoint is damaged, or its scales have another format."
        found = f"{bad} of {part.weight_scale.numel()} bytes NaN or below zero"
        return [Reason(f"{name}.weight_scale", repr(found), "bytes 0x00 to 0x7E", remedy)]
    return []


def _differing(seconds: Sequence[float]) -> Reason:
    given = ", ".join(f"partition {index}: {value:.9g}" for index, value in enumerate(seconds))
    off = max(seconds) / min(seconds)
    remedy = (
        f"Merged by maximum, one partition would come out {off:.4g} times too large: "
        "quantise the layer again with one scale, or pass rescale=True to rewrite the block scales."
    )
    return Reason("weight_scale_2", repr(given), "one value for all partitions of a fused layer", remedy)


def _rescaled(part: Partition, ratio: float) -> tuple[torch.Tensor, float]:
    """Block scales times ratio, rounded to E4M3 again, and the largest relative error of one of them."""
    stored = e4m3.as_bytes("weight_scale", part.weight_scale)
    if ratio == 1.0:
        return stored, 0.0
    exact = e4m3.decode(stored).double() * ratio
    rounded = e4m3.encode(exact.float())
    # A block of zero codes is right under every scale.
    codes = e2m1.unpack(part.weight) & 7
    live = (stored > 0) & (codes.unflatten(1, (-1, BLOCK)).amax(2) > 0)
    errors = ((e4m3.decode(rounded).double() - exact).abs() / exact)[live]
    return rounded, float(errors.max()) if errors.numel() else 0.0


def _padded(rows: torch.Tensor, values_a_byte: int) -> torch.Tensor:
    """Zero bytes behind and below, so that N and K become multiples of 32; itself where they are."""
    height, width = rows.shape
    target = round_up(height, PADDING), round_up(width * values_a_byte, PADDING) // values_a_byte
    if target == (height, width):
        return rows
    padded = torch.zeros(target, dtype=torch.uint8, device=rows.device)
    padded[:height, :width] = rows
    return padded
