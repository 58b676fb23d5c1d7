"""E4M3FN bytes: values, rounding, saturation, NaN, and which bytes a block scale may have."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.nvfp4 import e4m3

BYTES = torch.arange(256, dtype=torch.uint8)
SCALES = BYTES[: e4m3.MAXIMUM_BYTE + 1]


def formula(byte: int) -> float:
    """Value of a byte from exponent and fraction, bias 7, without torch's dtype."""
    exponent, fraction = byte >> 3 & 15, byte & 7
    value = math.ldexp(fraction, -9) if exponent == 0 else math.ldexp(8 + fraction, exponent - 10)
    return -value if byte & 0x80 else value


def test_values_follow_bias_and_fraction() -> None:
    """Every byte but the two NaN has the value that exponent bias 7 and three fraction bits give."""
    values = e4m3.decode(BYTES)
    assert values.isnan().nonzero().flatten().tolist() == [0x7F, 0xFF]
    finite = [byte for byte in range(256) if byte & 0x7F != 0x7F]
    assert values[finite].tolist() == [formula(byte) for byte in finite]
    assert (values[0x7E], values[0x08], values[0x01]) == (448.0, 2.0**-6, 2.0**-9)


def test_every_byte_survives_a_round_trip() -> None:
    """Encoding the value of a byte gives the byte; both NaN give 0x7F; float8 tensors decode alike."""
    again = e4m3.encode(e4m3.decode(BYTES))
    assert torch.equal(again[:255], BYTES[:255]) and again[255] == e4m3.NAN_BYTE
    assert torch.equal(e4m3.decode(BYTES[:127].view(torch.float8_e4m3fn)), e4m3.decode(BYTES[:127]))


def test_every_midpoint_ties_to_the_even_byte() -> None:
    """Halfway between two bytes the even one is taken, in normals, subnormals and at 2^-10; next to it the nearer."""
    values = e4m3.decode(SCALES)
    middle = (values[1:] + values[:-1]) / 2
    even = torch.where(SCALES[1:] % 2 == 0, SCALES[1:], SCALES[:-1])
    assert torch.equal(e4m3.encode(middle), even)
    assert torch.equal(e4m3.encode(torch.nextafter(middle, torch.full_like(middle, math.inf))), SCALES[1:])
    assert torch.equal(e4m3.encode(torch.nextafter(middle, torch.zeros_like(middle))), SCALES[:-1])


@pytest.mark.parametrize(
    ("x", "byte"),
    [(449.0, 0x7E), (464.0, 0x7E), (465.0, 0x7E), (3e38, 0x7E), (math.inf, 0x7E), (-math.inf, 0xFE), (1e-40, 0x00)],
)
def test_large_values_saturate(x: float, byte: int) -> None:
    """Nothing but a NaN becomes a NaN: above 448, infinity included, the largest byte is taken."""
    assert e4m3.encode(torch.tensor([x])).tolist() == [byte]


def test_nan_stays_nan() -> None:
    """A NaN of either sign gives 0x7F."""
    assert e4m3.encode(torch.tensor([math.nan, -math.nan])).tolist() == [0x7F, 0x7F]


@settings(max_examples=60)
@given(st.lists(st.floats(0, 500, width=32), min_size=1, max_size=40))
def test_the_nearest_value_is_taken(values: list[float]) -> None:
    """No byte's value lies nearer to x than that of the byte it is rounded to, and rounding keeps the order."""
    x = torch.tensor(sorted(values), dtype=torch.float32)
    rounded = e4m3.decode(e4m3.encode(x)).double()
    distances = (x.double()[:, None] - e4m3.decode(SCALES).double()[None, :]).abs().amin(1)
    assert torch.equal((x.double() - rounded).abs(), distances)
    assert (rounded.diff() >= 0).all()


def test_scales_are_the_bytes_up_to_0x7e() -> None:
    """A block scale is neither NaN nor below zero."""
    assert e4m3.is_scale(BYTES).tolist() == [byte <= 0x7E for byte in range(256)]


def test_wrong_dtypes_are_refused() -> None:
    """A BF16 scale was rounded before, and an E5M2 one has other values: both are refused."""
    with pytest.raises(ParameterError, match=r"x\.dtype is torch\.bfloat16; allowed: torch\.float32\. Compute scales"):
        e4m3.encode(torch.zeros(2, dtype=torch.bfloat16))
    with pytest.raises(
        ParameterError, match=r"scales\.dtype is torch\.float8_e5m2; allowed: torch\.uint8, .*Encode FP32"
    ):
        e4m3.decode(torch.zeros(2, dtype=torch.float8_e5m2))
