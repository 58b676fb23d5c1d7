"""Load-time processing of ModelOpt checkpoints: merging, padding, alpha, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.nvfp4 import layouts, quantise
from kda_lab.ops.nvfp4.modelopt import LoadedLinear, Partition, load_linear


def partition(rows: int, width: int, seed: int, second: float = 2.0**-6, activation: float = 2.0**-8) -> Partition:
    """One partition of random weights, quantised by the canonical quantiser with 1 / second."""
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    found = quantise.quantise(x, 1.0 / second)
    return Partition(found.packed, found.scales.view(torch.float8_e4m3fn), torch.tensor(second), activation)


def stored_values(part: Partition) -> torch.Tensor:
    """[N_i, K] what the checkpoint means."""
    return quantise.dequantise(part.weight, part.weight_scale) * float(part.weight_scale_2)


def loaded_values(layer: LoadedLinear, second: float) -> torch.Tensor:
    """[N, K] what a product with the loaded operands multiplies by, padding included."""
    scales = layouts.unswizzle_128x4(layer.weight_sf.t(), layer.N, layer.K // 16)
    return quantise.dequantise(layer.weight.t(), scales) * second


def test_partitions_are_stacked_padded_and_swizzled() -> None:
    """Values of all partitions come back exactly, in order; N and K are padded to 32 with zeros."""
    parts = [partition(24, 80, 1), partition(17, 80, 2, activation=2.0**-7)]
    layer = load_linear(parts)
    assert (layer.N, layer.K, layer.out_features, layer.in_features, layer.rescale_error) == (64, 96, 41, 80, 0.0)
    assert layer.weight.shape == (48, 64) and layer.weight.stride() == (1, 48)
    assert layer.weight_sf.shape == (8, 128) and layer.weight_sf.stride() == (1, 8)
    assert layouts.padding_is_clean(layer.weight_sf.t(), 41, 5)
    values = loaded_values(layer, 2.0**-6)
    assert torch.equal(values[:41, :80], torch.cat([stored_values(part) for part in parts]))
    assert values[41:].abs().max() == 0 and values[:, 80:].abs().max() == 0


def test_scales_are_merged_by_maximum() -> None:
    """alpha is the largest input_scale times weight_scale_2; the quantiser gets the reciprocal of the former."""
    layer = load_linear([partition(32, 64, 1, activation=0.01), partition(32, 64, 2, activation=0.03)])
    assert layer.alpha.shape == layer.input_global_scale.shape == (1,)
    assert layer.alpha.dtype == layer.input_global_scale.dtype == torch.float32
    assert layer.alpha.item() == pytest.approx(0.03 * 2.0**-6, rel=1e-6)
    assert layer.input_global_scale.item() == pytest.approx(1 / 0.03, rel=1e-6)


def test_an_aligned_weight_is_not_padded() -> None:
    """A layer whose N and K are multiples of 32 keeps its bytes."""
    part = partition(64, 96, 3)
    layer = load_linear([part])
    assert (layer.N, layer.K) == (64, 96) and torch.equal(layer.weight.t(), part.weight)


def test_partitions_of_different_second_scales_are_refused() -> None:
    """Merging them by maximum would scale one wrongly; the text names every value, the factor and both ways out."""
    parts = [partition(32, 64, 1, second=0.25), partition(32, 64, 2, second=0.125)]
    words = r"partition 0: 0\.25, partition 1: 0\.125.* 2 times too large: quantise .* again .*, or pass rescale=True"
    with pytest.raises(ParameterError, match=rf"weight_scale_2 is {words.replace('partition 0', '.partition 0', 1)}"):
        load_linear(parts)


def test_a_power_of_two_rescales_exactly() -> None:
    """A ratio of two only moves exponents: the values come back exactly and the reported error is zero."""
    parts = [partition(32, 64, 1, second=2.0**-5), partition(32, 64, 2, second=2.0**-6)]
    layer = load_linear(parts, rescale=True)
    assert layer.rescale_error == 0.0
    assert torch.equal(loaded_values(layer, 2.0**-5), torch.cat([stored_values(part) for part in parts]))
    assert layer.alpha.item() == 2.0**-8 * 2.0**-5


def test_rescaling_reports_its_error() -> None:
    """Another ratio rounds block scales: the report is the largest relative error, and it bounds that of the values."""
    parts = [partition(32, 64, 1, second=2.0**-5), partition(32, 64, 2, second=0.7 * 2.0**-5)]
    layer = load_linear(parts, rescale=True)
    assert 0.01 < layer.rescale_error <= 1 / 16
    expected, found = stored_values(parts[1]), loaded_values(layer, 2.0**-5)[32:]
    live = expected != 0
    worst = ((found - expected).abs() / expected.abs())[live].max().item()
    assert worst == pytest.approx(layer.rescale_error, rel=1e-4)


def test_a_scale_that_vanishes_is_an_error_of_one() -> None:
    """A partition a million times smaller loses its scales; that of a block of zero codes is no loss."""
    parts = [partition(32, 64, 1, second=1.0), partition(32, 64, 2, second=1e-6)]
    assert load_linear(parts, rescale=True).rescale_error == 1.0
    empty = replace(parts[1], weight=torch.zeros_like(parts[1].weight))
    assert load_linear([parts[0], empty], rescale=True).rescale_error == 0.0


@pytest.mark.parametrize("byte", [0x7F, 0xFF, 0x80, 0xB8])
def test_scales_that_are_nan_or_negative_are_refused(byte: int) -> None:
    """A damaged scale byte would make NaN of whole outputs, so it is counted and refused at load time."""
    scales = torch.full((32, 4), 0x38, dtype=torch.uint8)
    scales[5, 2] = byte
    words = r"partitions\[0\]\.weight_scale is '1 of 128 bytes NaN or below zero'; allowed: bytes 0x00 to 0x7E"
    with pytest.raises(ParameterError, match=words):
        load_linear([replace(partition(32, 64, 1), weight_scale=scales)])


@pytest.mark.parametrize("field", ["weight_scale_2", "input_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_second_scales_are_finite_and_positive(field: str, value: float) -> None:
    """Zero, negative, infinite and NaN scales of a layer are refused by name."""
    words = rf"partitions\[1\]\.{field} is .*; allowed: finite and above zero\. Calibrate"
    with pytest.raises(ParameterError, match=words):
        load_linear([partition(32, 64, 1), replace(partition(32, 64, 2), **{field: value})])


def test_what_is_no_checkpoint_is_refused_with_all_reasons() -> None:
    """Width, dtype and scales of every partition are reported at once."""
    good = partition(32, 64, 1)
    bad = [
        good,
        partition(32, 96, 2),
        replace(good, weight=good.weight.view(torch.int8)),
        replace(good, weight_scale=good.weight_scale[:, :3]),
        replace(good, weight_scale_2=torch.ones(1, dtype=torch.bfloat16)),
    ]
    with pytest.raises(ParameterError) as caught:
        load_linear(bad)
    fields = [reason.field for reason in caught.value.reasons]
    assert fields == [
        "partitions[1].weight",
        "partitions[2].weight",
        "partitions[3].weight_scale",
        "partitions[4].weight_scale_2",
    ]
    assert "the width and device of partitions[0]" in str(caught.value)
    with pytest.raises(ParameterError, match=r"partitions is \[\]; allowed: at least one"):
        load_linear([])
