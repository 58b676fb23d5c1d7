"""What `nvfp4.gemm` must compute: an exact integer reference, an FP32 one by another road, an emulation.

y[m, n] = alpha · sum_k a(m, k) · sfa(m, k // 16) · w(n, k) · sfw(n, k // 16)

`oracle_fp64` reads codes and scale bytes as integers and finds each scale by the offset formula of the 128x4
swizzle; `oracle_fp32` goes through the format's own decoders and layouts. Neither uses the other's steps, so that
their agreement means something. Both cut N into pieces, and run where the call lies.
Axes: M tokens, N outputs, K inputs, S = K / 16 blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.nvfp4 import layouts, quantise
from kda_lab.ops.precision import full_fp32
from kda_lab.ops.protocol import Call

ROOM = "nvfp4.gemm"
BLOCK = 16
DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12)
"""Twice the value of each E2M1 magnitude."""
ACCUMULATION = 1e-5
"""Share of sum |terms| that FP32 accumulation may lose; see README.md for what kernels lose."""
BF16_BITS, LEAST_BF16 = 8, -133
"""Significant bits of BF16, and the exponent of its smallest value."""
UNIT_BITS = 2 * 1 + 2 * 9
"""A product of two integers below counts units of 2^-20: codes are halves, scales are multiples of 2^-9."""
CPU_ELEMENTS, CUDA_ELEMENTS = 1 << 21, 1 << 26
"""Weights decoded at a time: 16 MB of FP64 on a CPU, 512 MB on a GPU."""


def oracle_fp64(call: Call) -> dict[str, torch.Tensor]:
    """The op on integers, the arbiter: `{"out": [M, N] fp64}` on the call's device.

    A code times two is an integer of at most 12, a scale times 2^9 one of at most 229376, so an operand is an integer
    below 2^22 and the dot product of a block one below 2^48: exact in FP64, in any order. Only sums over all of K may
    pass 2^53 and round, by 2^-53. Padding of the scale containers is not read.
    """
    M, N, K = geometry(call)
    x = _integers(call.inputs["x_fp4"], _scale_integers(call.inputs["x_sf"], slice(0, M), K))
    out = torch.empty(M, N, dtype=torch.float64, device=call.device)
    weight, weight_sf = call.inputs["weight"].t(), call.inputs["weight_sf"].t()
    for part in _parts(N, K, call.device):
        out[:, part] = x @ _integers(weight[part], _scale_integers(weight_sf, part, K)).t()
    return {"out": out * (call.inputs["alpha"].double() * 2.0**-UNIT_BITS)}


def oracle_fp32(call: Call) -> dict[str, torch.Tensor]:
    """The op on dequantised values in FP32, unrounded: `{"out": [M, N] fp32}` on the call's device.

    TF32 is switched off for its matrix products whatever the process has set. Dequantised values are exact in FP32;
    the order of summation is the library's.
    """
    M, N, K = geometry(call)
    x = quantise.dequantise(call.inputs["x_fp4"], layouts.unswizzle_128x4(call.inputs["x_sf"], M, K // BLOCK))
    scales = layouts.unswizzle_128x4(call.inputs["weight_sf"].t(), N, K // BLOCK)
    weight = call.inputs["weight"].t()
    out = torch.empty(M, N, dtype=torch.float32, device=call.device)
    with full_fp32():
        for part in _parts(N, K, call.device):
            out[:, part] = x @ quantise.dequantise(weight[part], scales[part]).t()
    return {"out": out.mul_(call.inputs["alpha"])}


def emulate(call: Call) -> dict[str, torch.Tensor]:
    """What a perfect kernel returns: the exact result rounded once to the dtype of the output.

    Its distance to `oracle_fp64` is the floor of a call: about 1.66e-3 for BF16, 3e-8 for FP32, and 0 where every
    result is representable. A kernel with FP32 accumulation adds about 1e-6 to it.
    """
    exact = oracle_fp64(call)["out"]
    return {"out": exact.to(call.outputs["out"].dtype)}


def allowance(call: Call, exact: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """How far each output of a right kernel may lie from the exact one: `{"out": [M, N] fp32}`.

    One ulp for BF16 outputs, and `ACCUMULATION` · |alpha| · sum_k |terms| for the order of summation. Where every
    exact output is representable, as in rows of the kind exact, 0.

    Args:
        exact: what `oracle_fp64` gives for the call.
    """
    value, dtype = exact["out"], call.outputs["out"].dtype
    parts = [value[:, part] for part in _parts(value.shape[1], value.shape[0], value.device)]
    if all(torch.equal(part, part.to(dtype).double()) for part in parts):
        return {"out": torch.zeros_like(value, dtype=torch.float32)}
    allowed = _sums_of_magnitudes(call).mul_(ACCUMULATION * call.inputs["alpha"].abs())
    if dtype == torch.bfloat16:
        allowed.add_(torch.cat([_bf16_ulp(part) for part in parts], 1))
    return {"out": allowed}


def geometry(call: Call) -> tuple[int, int, int]:
    """(M, N, K) of a call, from the shapes of its codes.

    Raises:
        ParameterError: x_fp4 and weight disagree on K, or K is no multiple of 16.
    """
    x_fp4, weight = call.inputs["x_fp4"], call.inputs["weight"]
    M, half = x_fp4.shape
    reasons = []
    if weight.shape[0] != half:
        reasons.append(Reason("weight.shape[0]", repr(weight.shape[0]), f"K/2 of x_fp4, {half}"))
    if 2 * half % BLOCK:
        reasons.append(Reason("K", repr(2 * half), "a multiple of 16", "Pad K with zero codes."))
    if reasons:
        raise ParameterError(ROOM, reasons)
    return M, weight.shape[1], 2 * half


def _sums_of_magnitudes(call: Call) -> torch.Tensor:
    """[M, N] fp32 sums over K of |terms|, before alpha."""
    M, N, K = geometry(call)
    x = quantise.dequantise(call.inputs["x_fp4"], layouts.unswizzle_128x4(call.inputs["x_sf"], M, K // BLOCK)).abs_()
    scales = layouts.unswizzle_128x4(call.inputs["weight_sf"].t(), N, K // BLOCK)
    weight = call.inputs["weight"].t()
    out = torch.empty(M, N, dtype=torch.float32, device=call.device)
    with full_fp32():
        for part in _parts(N, K, call.device):
            out[:, part] = x @ quantise.dequantise(weight[part], scales[part]).abs_().t()
    return out


def _bf16_ulp(value: torch.Tensor) -> torch.Tensor:
    """Distance of the BF16 numbers around each value, fp32."""
    exponent = torch.frexp(value).exponent - BF16_BITS
    least = torch.full_like(exponent, LEAST_BF16)
    return torch.where(value == 0, least, exponent.clamp(min=LEAST_BF16)).double().exp2().float()


def _parts(N: int, K: int, device: torch.device) -> Iterator[slice]:
    """N in pieces whose decoded weights stay small."""
    step = max(1, (CUDA_ELEMENTS if device.type == "cuda" else CPU_ELEMENTS) // K)
    return (slice(first, min(first + step, N)) for first in range(0, N, step))


def _integers(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[R, K] fp64 integers 2 · code · 2^9 · scale, of [R, K/2] bytes and [R, S] integer scales."""
    table = torch.tensor(
        [[_doubled(byte & 15), _doubled(byte >> 4)] for byte in range(256)], dtype=torch.float64, device=packed.device
    )
    rows, half = packed.shape
    codes = torch.nn.functional.embedding(packed.int(), table)  # [R, K/2, 2]
    codes.view(rows, half // 8, BLOCK).mul_(scales[:, :, None])
    return codes.view(rows, 2 * half)


def _doubled(code: int) -> int:
    return -DOUBLED[code & 7] if code & 8 else DOUBLED[code & 7]


def _scale_integers(container: torch.Tensor, rows: slice, K: int) -> torch.Tensor:
    """[R, S] fp64 integers 2^9 · scale of some rows, each found by its offset in the 128x4 swizzle."""
    device = container.device
    m = torch.arange(rows.start, rows.stop, device=device)[:, None]
    j = torch.arange(K // BLOCK, device=device)[None, :]
    atom = (m // 128) * -(-(K // BLOCK) // 4) + j // 4
    offset = atom * 512 + (m % 32) * 16 + (m % 128 // 32) * 4 + j % 4
    byte = container.view(torch.uint8).reshape(-1)[offset].long()
    exponent, mantissa = byte >> 3 & 15, byte & 7
    # Exponent 0 is subnormal: it has the weight of exponent 1, and no leading one.
    magnitude = torch.where(exponent == 0, mantissa, (8 + mantissa) << (exponent - 1).clamp(min=0))
    values = torch.where(byte >= 128, -magnitude, magnitude).double()
    return values.masked_fill_(byte & 0x7F == 0x7F, float("nan"))
