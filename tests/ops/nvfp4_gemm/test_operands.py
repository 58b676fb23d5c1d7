"""Random operands: what their codes and scales look like, and that nothing in them hides a mistake."""

from __future__ import annotations

import pytest
import torch

from kda_lab.ops.nvfp4 import e2m1, e4m3
from kda_lab.ops.nvfp4_gemm import operands


@pytest.mark.parametrize("kind", sorted(operands.WEIGHT_SCALES))
def test_weight_scales_vary(kind: str) -> None:
    """Weight scales are never all alike, and stay within the bytes of their kind."""
    weight = operands.draw_weight(64, 256, kind, operands.generator("w", 0, "cpu"))
    scales = operands.WEIGHT_SCALES[kind]
    assert weight.scales.unique().numel() == min(1024, len(range(scales.first, scales.last + 1, scales.step)))
    assert int(weight.scales.min()) >= scales.first
    assert int(weight.scales.max()) <= scales.last


def test_any_scale_has_rows_of_subnormal_scales() -> None:
    """Row 1 of each eight, of either operand: bytes 0x01 to 0x07 alone; the others reach 0x7E."""
    draw = operands.generator("any", 0, "cpu")
    for rows in (
        operands.draw_weight(32, 2048, "any_scale", draw),
        operands.draw_activations(32, 2048, "any_scale", draw),
    ):
        few = rows.scales[1::8]
        assert int(few.max()) <= 7
        assert (few > 0).any(1).all()
        assert int(rows.scales.max()) == e4m3.MAXIMUM_BYTE
        assert (rows.scales > 7).any(1).sum() == 28


def test_weight_codes_are_uniform() -> None:
    """All sixteen codes are equally frequent, -0 included."""
    packed = operands.draw_weight(256, 512, "random", operands.generator("w", 1, "cpu")).packed
    counts = torch.bincount(e2m1.unpack(packed).flatten(), minlength=16)
    assert counts.min() > 0.9 * counts.float().mean()


def test_log_uniform_scales_span_eight_octaves() -> None:
    """From 2^-4 to 2^4."""
    ends = torch.tensor([operands.LOG_UNIFORM.first, operands.LOG_UNIFORM.last], dtype=torch.uint8)
    assert e4m3.decode(ends).tolist() == [2.0**-4, 2.0**4]


def test_exact_operands_are_small_multiples() -> None:
    """Scales of 1 for activations and 0.5, 1, 2 for weights: products are multiples of 1/8 of at most 72."""
    draw = operands.generator("exact", 0, "cpu")
    assert (operands.draw_activations(3, 64, "exact", draw).scales == operands.ONE).all()
    scales = e4m3.decode(operands.draw_weight(64, 256, "exact", draw).scales).unique()
    assert scales.tolist() == [0.5, 1.0, 2.0]


def test_activations_dequantise_to_what_was_drawn() -> None:
    """input_scale undoes the calibration: values have unit variance within NVFP4's ten percent."""
    x = operands.draw_activations(64, 512, "random", operands.generator("x", 0, "cpu"))
    codes = e2m1.decode(e2m1.unpack(x.packed)).unflatten(1, (-1, 16))
    values = codes * e4m3.decode(x.scales)[:, :, None] * x.input_scale
    assert float(values.std()) == pytest.approx(1.0, abs=0.02)
    assert int(x.scales.max()) == e4m3.MAXIMUM_BYTE


@pytest.mark.parametrize("K", [64, 2560, 17408])
def test_alpha_of_exact_rows_is_a_power_of_two(K: int) -> None:
    """So that scaling moves exponents only."""
    for alpha in (operands.weight_scale_2(K, "exact"), operands.alpha_of_random_codes(K, "exact")):
        assert torch.frexp(torch.tensor(alpha)).mantissa.item() == 0.5


def test_generators_depend_on_label_and_seed() -> None:
    """The same label and seed draw the same numbers, any other draw others."""
    draws = [torch.rand(1, generator=operands.generator(*key, "cpu")).item() for key in (("a", 0), ("a", 1), ("b", 0))]
    assert len(set(draws)) == 3
    assert draws[0] == torch.rand(1, generator=operands.generator("a", 0, "cpu")).item()
