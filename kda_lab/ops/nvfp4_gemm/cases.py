"""Calls of `nvfp4.gemm`: synthetic tensors, input sets for timing, guard rows, changed contents, edge cases.

Axes: M tokens, N outputs, K inputs. Tensors as `spec.py` lists them; scales are uint8.
Synthetic tensors depend on (label, seed) and on the device type: CPU and CUDA draw different numbers.
"""

from __future__ import annotations

import torch

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.nvfp4 import e4m3, layouts, quantise
from kda_lab.ops.nvfp4.containers import BLOCK, prepare_activation, prepare_weight
from kda_lab.ops.nvfp4_gemm import operands
from kda_lab.ops.nvfp4_gemm.shapes import (
    DISPATCHED,
    KINDS,
    MODEL_SHAPES,
    OUT_DTYPES,
    PREFILL,
    SHAPES,
    TINY_SHAPES,
    published,
    rows,
)
from kda_lab.ops.nvfp4_gemm.spec import SPEC
from kda_lab.ops.protocol import Call, Row

__all__ = [
    "CHANGES",
    "DISPATCHED",
    "KINDS",
    "MODEL_SHAPES",
    "PREFILL",
    "SHAPES",
    "TINY_SHAPES",
    "changed",
    "edge_calls",
    "make_sets",
    "published",
    "rows",
    "shuffled",
    "synthesise",
    "with_guard_rows",
]

CHANGES = ("x", "alpha")
"""Contents that a serving process changes in place between launches: activations, and the global scales."""
ALIGNMENT_BYTES = 256
SIGN_BITS = 0x88
"""Flipping them negates both codes of a byte."""
CHANGED_MANTISSA = 1 + 2.0**-8 + 2.0**-13
"""Of a changed alpha that need not be a power of two: rounding it to BF16 either way, or to FP16, moves it."""
EDGE_SHAPE = (4, 48, 128)
"""(M, N, K) of the edge calls."""


def synthesise(row: Row, seed: int, device: torch.device | str = "cpu") -> Call:
    """A call of a row: normal activations quantised canonically, a weight of uniform codes and varying scales.

    alpha is input_scale · weight_scale_2, chosen so that outputs have a standard deviation of about 4.
    """
    axes, kind = row.parameters, row.parameters["kind"]
    draw = operands.generator(row.label, seed, device)
    x = operands.draw_activations(axes["M"], axes["K"], kind, draw)
    weight = operands.draw_weight(axes["N"], axes["K"], kind, draw)
    alpha = x.input_scale * operands.weight_scale_2(axes["K"], kind)
    return _call(row.label, x, weight, alpha, kind)


def make_sets(row: Row, count: int, seed: int, device: torch.device | str) -> list[Call]:
    """`count` distinct calls of one row for cold timing: one allocation a tensor, one draw, views as calls.

    Every view starts on a multiple of 256 bytes. Codes are uniform, scales have a real call's range, padding of the
    scale containers is zero. alpha depends on the row only, so that a seed changes everything but it.
    """
    axes, kind = row.parameters, row.parameters["kind"]
    M, N, K = axes["M"], axes["N"], axes["K"]
    draw = operands.generator(row.label, seed, device)
    x_scales = operands.Scales(operands.ONE, operands.ONE) if kind == "exact" else operands.CALIBRATED
    x, weight = _codes(M, K // 2, count, draw), _codes(N, K // 2, count, draw)
    x_sf = _containers(x_scales, M, K // BLOCK, count, draw)
    weight_sf = _containers(operands.WEIGHT_SCALES[kind], N, K // BLOCK, count, draw)
    alpha = torch.full((count, ALIGNMENT_BYTES // 4), operands.alpha_of_random_codes(K, kind), device=device)
    dtype = getattr(torch, OUT_DTYPES[kind])
    pitch = layouts.round_up(M * N, ALIGNMENT_BYTES // dtype.itemsize)
    out = torch.empty(count, pitch, dtype=dtype, device=device)
    facts = {"M": M, "N": N, "K": K, "kind": kind}
    return [
        Call(
            SPEC.name,
            {
                "x_fp4": x[i],
                "weight": weight[i].t(),
                "x_sf": x_sf[i],
                "weight_sf": weight_sf[i].t(),
                "alpha": alpha[i, :1],
            },
            {"out_dtype": OUT_DTYPES[kind]},
            {"out": out[i, : M * N].view(M, N)},
            row.label,
            facts,
        )
        for i in range(count)
    ]


def with_guard_rows(call: Call, count: int = 0) -> Call:
    """The call with NaN (0x7F) in all padding of both scale containers, rows and columns: a kernel must not let it leak.

    `count` is ignored: the padding of a container is fixed by its layout.
    """
    M, N, K = _axes(call)
    return call.with_inputs(
        x_sf=_guarded(call.inputs["x_sf"], M, K), weight_sf=_guarded(call.inputs["weight_sf"].t(), N, K).t()
    )


def changed(call: Call, which: str, seed: int, source: Call | None = None) -> dict[str, torch.Tensor]:
    """New contents for the same buffers: copy them into `call.inputs` in place.

    Args:
        which: `x` replaces the activations; `alpha` does so and gives alpha another sign and magnitude.
        source: a call of the same geometry whose activations are reused in another order, so that what a real
            capture looks like is kept; None draws new ones.

    Returns:
        x_fp4 and x_sf, and alpha when it was asked for; padding of x_sf is zero.

    Raises:
        ParameterError: an unknown change, or a source of another geometry.
    """
    M, _, K = _axes(call)
    if which not in CHANGES:
        raise _refusal("which", which, ", ".join(map(repr, CHANGES)))
    if source is None:
        draw = operands.generator(f"{call.label}-changed-{which}", seed, call.device)
        x: operands.Rows = operands.draw_activations(M, K, call.facts.get("kind", "random"), draw)
    elif _axes(source)[::2] != (M, K):
        raise _refusal("source", _axes(source)[::2], f"the call's (M, K), {(M, K)}")
    else:
        x = _reordered(source, seed + CHANGES.index(which))
    x_fp4, x_sf = prepare_activation(x.packed, x.scales)
    new = {"x_fp4": x_fp4, "x_sf": x_sf.view(call.inputs["x_sf"].dtype)}
    if which == "alpha":
        alpha = call.inputs["alpha"]
        new["alpha"] = _another_alpha(alpha, 1.0 if call.facts.get("kind") == "exact" else CHANGED_MANTISSA)
    return new


def _another_alpha(alpha: torch.Tensor, mantissa: float) -> torch.Tensor:
    """Alpha with the other sign, an exponent less by two, and this mantissa; -0.5 · mantissa in the place of 0."""
    exponent = torch.frexp(alpha).exponent - 3
    magnitude = torch.where(alpha == 0, torch.full_like(alpha, 0.5), exponent.double().exp2().to(alpha.dtype))
    return torch.where(alpha < 0, magnitude, -magnitude) * mantissa


def shuffled(call: Call, seed: int) -> dict[str, torch.Tensor]:
    """Contents for a timing copy of a recorded call: its activations and weight rows in another order.

    Geometry, alpha and the distribution of codes and scales stay, since power and clocks depend on the data.
    """
    _, N, K = _axes(call)
    x = _reordered(call, seed)
    scales = layouts.unswizzle_128x4(call.inputs["weight_sf"].t(), N, K // BLOCK)
    turn = seed % N
    x_fp4, x_sf = prepare_activation(x.packed, x.scales)
    weight, weight_sf = prepare_weight(call.inputs["weight"].t().roll(turn, 0), scales.roll(turn, 0))
    return {
        "x_fp4": x_fp4,
        "weight": weight,
        "x_sf": x_sf.view(call.inputs["x_sf"].dtype),
        "weight_sf": weight_sf.view(call.inputs["weight_sf"].dtype),
    }


def edge_calls(seed: int, device: torch.device | str = "cpu") -> dict[str, Call]:
    """Small calls at the edges of the definition, by name; M 4, N 48, K 128, BF16 out.

    alpha_zero, alpha_tiny (1e-8), alpha_one, alpha_large (1e4), alpha_negative; zero_activations;
    golden_blocks (activations that hit each edge of the quantiser); zero_scales (a third of all scale bytes 0);
    top_scales (all bytes 0x7E, 448); minus_zero (half of all codes 8, which is -0).
    """
    M, N, K = EDGE_SHAPE

    def make(name: str) -> Call:
        return synthesise(Row(SPEC.name, f"edge-{name}", {"M": M, "N": N, "K": K, "kind": "random"}), seed, device)

    def with_alpha(name: str, value: float) -> Call:
        call = make(name)
        return call.with_inputs(alpha=torch.full_like(call.inputs["alpha"], value))

    negative = make("alpha_negative")
    return {
        "alpha_zero": with_alpha("alpha_zero", 0.0),
        "alpha_tiny": with_alpha("alpha_tiny", 1e-8),
        "alpha_one": with_alpha("alpha_one", 1.0),
        "alpha_large": with_alpha("alpha_large", 1e4),
        "alpha_negative": negative.with_inputs(alpha=-negative.inputs["alpha"]),
        "zero_activations": _with_activations(make("zero_activations"), torch.zeros(M, K, device=device)),
        "golden_blocks": _with_activations(make("golden_blocks"), _golden(M, device)),
        "zero_scales": _with_scales(make("zero_scales"), 0x00, 3),
        "top_scales": _with_scales(make("top_scales"), e4m3.MAXIMUM_BYTE, 1),
        "minus_zero": _with_minus_zero(make("minus_zero")),
    }


def _golden(M: int, device: torch.device | str) -> torch.Tensor:
    """[M, 128] activations for a global scale of 1: eight blocks, in another order each row."""
    block = torch.zeros(8, BLOCK)
    block[0] = torch.arange(-8.0, 8.0)
    block[2, 3], block[3, 3] = 2688.0, 5000.0
    block[4], block[5] = 1e-3, 6 * 2.0**-9
    block[6], block[7] = torch.linspace(-6, 6, BLOCK), 0.25 * torch.arange(BLOCK)
    return torch.stack([block.roll(m, 0).flatten() for m in range(M)]).to(device)


def _with_activations(call: Call, x: torch.Tensor) -> Call:
    found = quantise.quantise(x, 1.0)
    x_fp4, x_sf = prepare_activation(found.packed, found.scales)
    return call.with_inputs(x_fp4=x_fp4, x_sf=x_sf)


def _with_scales(call: Call, byte: int, every: int) -> Call:
    """The call with each `every`-th scale of both operands set to a byte."""
    M, N, K = _axes(call)
    new = {}
    for name, container, rows_ in (("x_sf", call.inputs["x_sf"], M), ("weight_sf", call.inputs["weight_sf"].t(), N)):
        scales = layouts.unswizzle_128x4(container, rows_, K // BLOCK)
        scales.view(-1)[::every] = byte
        new[name] = layouts.swizzle_128x4(scales)
    return call.with_inputs(x_sf=new["x_sf"], weight_sf=new["weight_sf"].t())


def _with_minus_zero(call: Call) -> Call:
    """The call with the even codes of x and the odd codes of the weight set to -0 in every other pair of columns."""
    x_fp4, weight = call.inputs["x_fp4"].clone(), call.inputs["weight"].t().clone()
    x_fp4[:, ::2] = (x_fp4[:, ::2] & 0xF0) | 0x08
    weight[:, 1::2] = (weight[:, 1::2] & 0x0F) | 0x80
    return call.with_inputs(x_fp4=x_fp4, weight=weight.t())


def _reordered(source: Call, seed: int) -> operands.Rows:
    """Activations of a call with rows and blocks of K turned round and every sign flipped."""
    M, _, K = _axes(source)
    blocks = K // BLOCK
    scales = layouts.unswizzle_128x4(source.inputs["x_sf"], M, blocks)
    turn = 1 + seed % max(1, blocks - 1)
    packed = source.inputs["x_fp4"].view(M, blocks, BLOCK // 2).roll((seed % M, turn), (0, 1))
    return operands.Rows(packed.reshape(M, K // 2) ^ SIGN_BITS, scales.roll((seed % M, turn), (0, 1)))


def _guarded(container: torch.Tensor, rows_: int, K: int) -> torch.Tensor:
    live = torch.full((rows_, K // BLOCK), 0xFF, dtype=torch.uint8)
    is_live = layouts.swizzle_128x4(live.to(container.device)).bool()
    data = e4m3.as_bytes("container", container)
    return torch.where(is_live, data, torch.full_like(data, e4m3.NAN_BYTE)).view(container.dtype)


def _codes(rows_: int, width: int, count: int, draw: torch.Generator) -> list[torch.Tensor]:
    """`count` matrices [rows, width] of random bytes in one allocation, each on a multiple of 256 bytes."""
    pitch = layouts.round_up(rows_ * width, ALIGNMENT_BYTES)
    drawn = operands.random_bytes((count, pitch), draw)
    return [one[: rows_ * width].view(rows_, width) for one in drawn]


def _containers(scales: operands.Scales, rows_: int, columns: int, count: int, draw: torch.Generator) -> torch.Tensor:
    """[count, ceil128(rows), ceil4(columns)] swizzled scale containers with zero padding."""
    ones = torch.full((rows_, columns), 0xFF, dtype=torch.uint8, device=draw.device)
    live = layouts.swizzle_128x4(ones)
    # A container is a multiple of 512 bytes, so every one of them is aligned.
    return scales.draw((count, *live.shape), draw).bitwise_and_(live)


def _axes(call: Call) -> tuple[int, int, int]:
    """(M, N, K) from the shapes."""
    x_fp4 = call.inputs["x_fp4"]
    return x_fp4.shape[0], call.inputs["weight"].shape[1], 2 * x_fp4.shape[1]


def _call(label: str, x: operands.Rows, weight: operands.Rows, alpha: torch.Tensor, kind: str) -> Call:
    x_fp4, x_sf = prepare_activation(x.packed, x.scales)
    w, weight_sf = prepare_weight(weight.packed, weight.scales)
    M, N, K = x_fp4.shape[0], w.shape[1], 2 * x_fp4.shape[1]
    out = torch.empty(M, N, dtype=getattr(torch, OUT_DTYPES[kind]), device=x_fp4.device)
    return Call(
        SPEC.name,
        {"x_fp4": x_fp4, "weight": w, "x_sf": x_sf, "weight_sf": weight_sf, "alpha": alpha},
        {"out_dtype": OUT_DTYPES[kind]},
        {"out": out},
        label,
        {"M": M, "N": N, "K": K, "kind": kind},
    )


def _refusal(field: str, given: object, allowed: str) -> ParameterError:
    return ParameterError(SPEC.name, [Reason(field, repr(given), allowed)])
