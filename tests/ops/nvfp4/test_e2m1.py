"""E2M1 codes: values, ties, saturation, signs, packing order."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.nvfp4 import e2m1

CODES = torch.arange(16, dtype=torch.uint8)


def test_the_values_are_those_of_the_format() -> None:
    """Codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6, and bit 3 is the sign."""
    values = e2m1.decode(CODES)
    assert values[:8].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert values[8:].tolist() == (-values[:8]).tolist()
    assert torch.signbit(values).tolist() == [False] * 8 + [True] * 8


def test_every_code_survives_a_round_trip() -> None:
    """Encoding a value that a code has gives this code, -0 included."""
    assert torch.equal(e2m1.encode(e2m1.decode(CODES)), CODES)


@pytest.mark.parametrize(
    ("x", "value"),
    [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0), (6.0, 6.0)],
)
def test_ties_go_to_the_even_code(x: float, value: float) -> None:
    """A midpoint rounds to the neighbour whose code is even, on either side of zero; its FP32 neighbours do not tie."""
    one = torch.tensor([x])
    assert e2m1.decode(e2m1.encode(torch.stack([one, -one]))).flatten().tolist() == [value, -value]
    if x < 6.0:
        near = torch.cat([torch.nextafter(one, torch.zeros(1)), torch.nextafter(one, torch.full((1,), 9.0))])
        below, above = e2m1.decode(e2m1.encode(near)).tolist()
        assert below < x < above


@pytest.mark.parametrize(
    ("x", "code"),
    [(math.inf, 7), (-math.inf, 15), (1e30, 7), (-7.0, 15), (math.nan, 7), (-math.nan, 7), (-0.1, 8), (-0.0, 8)],
)
def test_what_lies_outside(x: float, code: int) -> None:
    """Large values saturate, a NaN becomes +6, and a sign survives rounding to zero."""
    assert e2m1.encode(torch.tensor([x])).tolist() == [code]


@settings(max_examples=60)
@given(st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=40))
def test_the_nearest_value_is_taken(values: list[float]) -> None:
    """No value of the format lies nearer to x than the one it is rounded to, and rounding keeps the order."""
    x = torch.tensor(sorted(values), dtype=torch.float32)
    rounded = e2m1.decode(e2m1.encode(x)).double()
    distances = (x.double()[:, None] - e2m1.decode(CODES).double()[None, :]).abs().amin(1)
    assert torch.equal((x.double() - rounded).abs(), distances)
    assert (rounded.diff() >= 0).all()


def test_half_precision_is_widened_exactly() -> None:
    """BF16 and FP16 inputs give the codes of their FP32 values."""
    x = torch.linspace(-7, 7, 400)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(e2m1.encode(x.to(dtype)), e2m1.encode(x.to(dtype).float()))


def test_the_low_nibble_is_the_even_k() -> None:
    """Codes 1, 2, 3, 4 pack into the bytes 0x21, 0x43."""
    assert e2m1.pack(torch.tensor([1, 2, 3, 4], dtype=torch.uint8)).tolist() == [0x21, 0x43]


def test_packing_is_a_bijection() -> None:
    """Every byte unpacks into two codes that pack into it again, in any leading shape."""
    packed = torch.arange(256, dtype=torch.uint8).view(2, 4, 32)
    codes = e2m1.unpack(packed)
    assert codes.shape == (2, 4, 64) and codes.max() == 15
    assert torch.equal(e2m1.pack(codes), packed)


def test_wrong_dtypes_and_odd_widths_are_refused() -> None:
    """FP64, integers as values, other integers as codes and an odd K are refused with what is allowed."""
    with pytest.raises(ParameterError, match=r"nvfp4: x\.dtype is torch\.float64; allowed: torch\.float32, .* Cast x"):
        e2m1.encode(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ParameterError, match=r"codes\.dtype is torch\.int64; allowed: torch\.uint8\. Use \.view"):
        e2m1.decode(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ParameterError, match=r"packed\.dtype is torch\.int8; allowed: torch\.uint8"):
        e2m1.unpack(torch.zeros(2, dtype=torch.int8))
    with pytest.raises(
        ParameterError, match=r"codes\.shape is \(2, 3\); allowed: \[\.\.\., K\] with an even K\. Pad K"
    ):
        e2m1.pack(torch.zeros(2, 3, dtype=torch.uint8))
