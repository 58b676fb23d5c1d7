"""How numbers are written in findings."""

from __future__ import annotations

import pytest

from kda_lab.referee.finding import figure, signed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1977.695, "1977.69"),
        (843.14, "843.14"),
        (24.0, "24"),
        (0.0, "0.0"),
        (123456.0, "123456"),
        (2.5e9, "2.5e+09"),
        (1e-7, "1e-07"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_a_number_has_six_digits(value: float, text: str) -> None:
    """No exponent where a person would write none."""
    assert figure(value) == text


def test_a_change_has_its_sign() -> None:
    """Plus and minus, two digits."""
    assert (signed(2.186), signed(-2.24, 1)) == ("+2.19 %", "-2.2 %")
