"""The canonical quantiser: golden vectors, edge cases, error bounds, and the agreement rule."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.nvfp4 import e2m1, e4m3, quantise

ONE_AT_3 = [0.0, 0.0, 0.0, 1.0] + [0.0] * 12
# Block, scale byte, packed bytes in hexadecimal (k = 0, 1 first).
GOLDEN = {
    "ramp": ([float(v) for v in range(-8, 8)], 0x3B, "ffeecd9b10436576"),
    "zeros": ([0.0] * 16, 0x00, "0000000000000000"),
    "largest": ([2688.0 * v for v in ONE_AT_3], 0x7E, "0070000000000000"),
    "over range": ([5000.0 * v for v in ONE_AT_3], 0x7E, "0070000000000000"),
    "smallest scale": ([6 * 2.0**-9] * 16, 0x01, "7777777777777777"),
}


def block(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One row of one block."""
    return torch.tensor([values], dtype=dtype)


def random_rows(seed: int, rows: int, blocks: int) -> torch.Tensor:
    """Normal values whose blocks differ by powers of two from 2^-4 to 2^4."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.exp2(torch.randint(-4, 5, (rows, blocks, 1), generator=generator).float())
    return (torch.randn(rows, blocks, 16, generator=generator) * size).flatten(1)


@pytest.mark.parametrize("order", quantise.ORDERS)
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors(name: str, order: quantise.Order) -> None:
    """Known blocks give known bytes at global scale 1, in either order and from every input dtype that holds them."""
    values, scale, packed = GOLDEN[name]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        if not torch.equal(block(values, dtype).float(), block(values)):
            continue
        found = quantise.quantise(block(values, dtype), 1.0, order)
        assert found.scales.tolist() == [[scale]]
        assert bytes(found.packed[0].tolist()).hex() == packed


def test_golden_values_come_back() -> None:
    """The over-range value is clipped to 2688; the smallest scale holds 6 · 2^-9 exactly."""
    clipped = quantise.quantise(block(GOLDEN["over range"][0]), 1.0)
    assert quantise.dequantise(clipped.packed, clipped.scales)[0].tolist() == [2688.0 * v for v in ONE_AT_3]
    small = quantise.quantise(block(GOLDEN["smallest scale"][0]), 1.0)
    assert quantise.dequantise(small.packed, small.scales)[0].tolist() == [6 * 2.0**-9] * 16


@pytest.mark.parametrize(("order", "zero_code"), [("strict", 0), ("fast", 7)])
def test_a_scale_that_rounds_to_zero(order: quantise.Order, zero_code: int) -> None:
    """Values too small for a scale saturate with their sign and dequantise to zero; zeros among them differ by order."""
    found = quantise.quantise(block([1e-3, -1e-3, 0.0] + [1e-3] * 13), 1.0, order)
    assert found.scales.tolist() == [[0]]
    assert e2m1.unpack(found.packed)[0, :3].tolist() == [7, 15, zero_code]
    assert quantise.dequantise(found.packed, found.scales).abs().max() == 0.0


def test_the_scale_underflows_at_two_to_the_minus_ten() -> None:
    """A scale of exactly 2^-10 ties to zero; a little above it is the smallest subnormal."""
    tie = quantise.quantise(block([6 * 2.0**-10] + [0.0] * 15), 1.0)
    above = quantise.quantise(block([6.001 * 2.0**-10] + [0.0] * 15), 1.0)
    assert (tie.scales.item(), above.scales.item()) == (0, 1)


@pytest.mark.parametrize("order", quantise.ORDERS)
def test_a_zero_block_keeps_only_signs(order: quantise.Order) -> None:
    """Zeros quantise to zero codes in both orders, and -0 to code 8."""
    found = quantise.quantise(block([0.0, -0.0] * 8), 1.0, order)
    assert found.scales.item() == 0 and bytes(found.packed[0].tolist()).hex() == "80" * 8


@pytest.mark.parametrize("order", quantise.ORDERS)
def test_nan_and_infinity(order: quantise.Order) -> None:
    """A NaN takes no part in the scale and gets code 7; an infinity saturates both; a block of NaN has a NaN scale."""
    mixed = quantise.quantise(block([math.nan, 6.0] + [1.0] * 14), 1.0, order)
    assert mixed.scales.item() == 0x38 and e2m1.unpack(mixed.packed)[0, :3].tolist() == [7, 7, 2]
    infinite = quantise.quantise(block([-math.inf] + [448.0] * 15), 1.0, order)
    assert infinite.scales.item() == 0x7E and e2m1.unpack(infinite.packed)[0, :2].tolist() == [15, 2]
    lost = quantise.quantise(block([math.nan] * 16), 1.0, order)
    assert lost.scales.item() == e4m3.NAN_BYTE and quantise.dequantise(lost.packed, lost.scales).isnan().all()


def test_the_two_orders_are_not_the_same() -> None:
    """Where g / 6 and a / 6 round differently a scale can land on another byte, so the order is part of the format."""
    g = torch.tensor([0.7])
    amax = torch.linspace(1.0, 2.0, 1 << 19)
    strict = amax * (g * quantise.SIXTH)
    fast = g * (amax * quantise.SIXTH)
    assert 0.05 < (strict != fast).double().mean() < 0.95
    assert ((strict - fast).abs() <= strict * 2.0**-22).all()


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31), rows=st.integers(1, 6), blocks=st.integers(1, 9), order=st.sampled_from(quantise.ORDERS)
)
def test_the_error_is_at_most_half_a_step(seed: int, rows: int, blocks: int, order: quantise.Order) -> None:
    """Each value comes back within half the distance of its neighbouring codes, times its block's scale."""
    x = random_rows(seed, rows, blocks)
    g = quantise.global_scale_of(x)
    found = quantise.quantise(x, g, order)
    assert found.packed.shape == (rows, blocks * 8) and found.scales.shape == (rows, blocks)
    step = e4m3.decode(found.scales).repeat_interleave(16, 1) / g
    units = x / step
    half = torch.where(units.abs() < 2, 0.25, torch.where(units.abs() < 4, 0.5, 1.0))
    errors = (x - quantise.dequantise(found.packed, found.scales, g)).abs() / step
    assert (errors <= half + 1e-4).all()


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 6), blocks=st.integers(1, 9))
def test_quantising_again_changes_nothing(seed: int, rows: int, blocks: int) -> None:
    """A dequantised tensor quantises to the same bytes where its scales are normal."""
    x = random_rows(seed, rows, blocks)
    g = quantise.global_scale_of(x)
    first = quantise.quantise(x, g)
    again = quantise.quantise(quantise.dequantise(first.packed, first.scales, g), g)
    normal = first.scales >= 0x08
    assert torch.equal(first.scales[normal], again.scales[normal])
    codes = (e2m1.unpack(found.packed).unflatten(1, (-1, 16))[normal] for found in (first, again))
    assert torch.equal(*codes)


def test_a_gaussian_loses_about_a_tenth() -> None:
    """rel-L2 of a normal tensor against its dequantised self is 9 to 10 per cent."""
    x = torch.randn(256, 512, generator=torch.Generator().manual_seed(3))
    g = quantise.global_scale_of(x)
    found = quantise.quantise(x, g)
    error = (quantise.dequantise(found.packed, found.scales, g) - x).norm() / x.norm()
    assert 0.09 < error < 0.10


def test_dequantised_values_are_exact_in_bf16() -> None:
    """Every product of a code and a scale byte is a BF16 and an FP16 number, so tensor cores multiply it exactly."""
    codes, scales = torch.arange(16, dtype=torch.uint8), torch.arange(127, dtype=torch.uint8)
    values = e4m3.decode(scales)[:, None] * e2m1.decode(codes)[None, :]
    assert torch.equal(values.to(torch.bfloat16).float(), values)
    assert torch.equal(values.to(torch.float16).float(), values)
    assert values.abs().unique().numel() == 238


@pytest.mark.parametrize(("amax", "scale"), [(0.0, 1.0), (2688.0, 1.0), (21.0, 128.0), (1e-38, 2688 / 1e-30)])
def test_the_global_scale_maps_amax_to_the_largest_value(amax: float, scale: float) -> None:
    """g = 2688 / amax, 1 for zeros, and finite for values near FP32's smallest."""
    x = torch.zeros(3, 16)
    x[1, 2] = -amax
    found = quantise.global_scale_of(x)
    assert found.shape == (1,) and found.dtype == torch.float32
    assert found.item() == pytest.approx(scale, rel=1e-6)


def test_inputs_outside_the_format_are_refused() -> None:
    """Width, rank, dtype and order are refused together, each with its reason."""
    with pytest.raises(
        ParameterError, match=r"x\.dtype is torch\.float64.*x\.shape is \(2, 24\).*order is 'exact'"
    ) as e:
        quantise.quantise(torch.zeros(2, 24, dtype=torch.float64), 1.0, "exact")  # type: ignore[arg-type]
    assert len(e.value.reasons) == 3
    with pytest.raises(ParameterError, match=r"x\.shape is \(16,\); allowed: \[R, K\] with K % 16 == 0\. Flatten"):
        quantise.quantise(torch.zeros(16), 1.0)


@pytest.mark.parametrize(
    "given", [torch.ones(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.float64), torch.ones(2)]
)
def test_a_global_scale_is_one_fp32_element(given: torch.Tensor) -> None:
    """A BF16 scale would be misread as FP32 bits by some kernels, so it is refused, as are FP64 and vectors."""
    with pytest.raises(ParameterError, match=r"global_scale is .*; allowed: one torch\.float32 element\. Cast it with"):
        quantise.quantise(torch.zeros(1, 16), given)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_global_scale_is_finite_and_positive(value: float) -> None:
    """Zero, negative, infinite and NaN scales are refused where reading them needs no device."""
    with pytest.raises(
        ParameterError, match=r"global_scale is .*; allowed: finite and above zero\. Use global_scale_of"
    ):
        quantise.dequantise(torch.zeros(1, 8, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8), value)


def test_the_global_scale_needs_a_floating_tensor() -> None:
    """An empty or integer tensor has no amax to speak of."""
    for x in (torch.zeros(0, 16), torch.zeros(2, 16, dtype=torch.int32)):
        with pytest.raises(ParameterError, match=r"x is .*; allowed: a floating-point tensor that is not empty"):
            quantise.global_scale_of(x)


def altered(found: quantise.Quantised, steps: int, count: int) -> quantise.Quantised:
    """The same tensor with `count` codes of magnitude 0 moved `steps` codes up."""
    codes = e2m1.unpack(found.packed)
    rows, columns = ((codes & 7) == 0).nonzero()[:count].T
    codes[rows, columns] = steps
    return replace(found, packed=e2m1.pack(codes))


def test_agreement_allows_one_code_in_a_thousand() -> None:
    """One code off by one agrees; one off by two, or three in a thousand off by one, do not."""
    x = torch.randn(8, 256, generator=torch.Generator().manual_seed(4))
    found = quantise.quantise(x, 1.0)
    assert quantise.agreement(found, found) == quantise.Agreement(0, 0.0, 0, 2048)
    one = quantise.agreement(found, altered(found, 1, 1))
    assert one.holds and one.code_steps == 1 and one.code_share == 1 / 2048
    assert not quantise.agreement(found, altered(found, 2, 1)).holds
    assert not quantise.agreement(found, altered(found, 1, 6)).holds


@pytest.mark.parametrize(("steps", "holds"), [(1, True), (2, False)])
def test_agreement_allows_one_step_of_a_scale(steps: int, holds: bool) -> None:
    """Scale bytes one apart agree, two apart do not."""
    found = quantise.quantise(torch.randn(2, 64, generator=torch.Generator().manual_seed(4)), 1.0)
    other = replace(found, scales=found.scales.clone())
    other.scales[1, 2] += steps
    assert quantise.agreement(found, other).holds is holds


def test_agreement_skips_blocks_whose_scale_is_zero() -> None:
    """Codes under a zero scale mean nothing: strict and fast disagree on them and still agree as tensors."""
    x = block([1e-3, 0.0] * 8)
    strict, fast = (quantise.quantise(x, 1.0, order) for order in quantise.ORDERS)
    assert not torch.equal(strict.packed, fast.packed)
    assert quantise.agreement(strict, fast) == quantise.Agreement(0, 0.0, 0, 0)


def test_signed_zeros_agree() -> None:
    """-0 and 0 are no distance apart."""
    codes = torch.tensor([[7, 0] * 8], dtype=torch.uint8)
    a = quantise.Quantised(e2m1.pack(codes), torch.tensor([[0x38]], dtype=torch.uint8))
    b = replace(a, packed=e2m1.pack(torch.tensor([[7, 8] * 8], dtype=torch.uint8)))
    assert quantise.agreement(a, b).code_share == 0.0


def test_agreement_needs_the_same_shape() -> None:
    """Two tensors of different shapes are not two quantisations of one."""
    a, b = (quantise.quantise(torch.zeros(rows, 16), 1.0) for rows in (1, 2))
    with pytest.raises(ParameterError, match=r"b\.packed\.shape is \(2, 8\); allowed: \(1, 8\)\. Quantise the same"):
        quantise.agreement(a, b)
