"""Names and numbers with a unit: conversions by name, and what somebody printed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.metrics import METRICS
from kda_lab.referee.readers.quantities import column_of, columns_of, metrics_of, number, printed

PATH = Path("t.csv")


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_metric_names_itself(name: str) -> None:
    """The name of a metric is a column in the metric's own unit."""
    column = column_of(name)
    assert column is not None
    assert (column.metric, column.unit) == (name, METRICS[name].unit)


@pytest.mark.parametrize(
    ("name", "typed", "metric", "stored"),
    [
        ("e2e_mean_s", 161.229, "e2e_mean_ms", 161229.0),
        ("graph_us", 44807, "graph_ms", 44.807),
        ("duration_min", 2, "duration_s", 120.0),
        ("throughput_ktok_s", 3.05528, "throughput_tok_s", 3055.28),
        ("request_rate_req_min", 60, "request_rate_s", 1.0),
        ("kernel_ns", 25914, "kernel_us", 25.914),
        ("bandwidth_tb_s", 4.3, "bandwidth_gb_s", 4300.0),
    ],
)
def test_another_unit_is_converted(name: str, typed: float, metric: str, stored: float) -> None:
    """The ending of the column decides, the value is stored in the metric's unit."""
    assert metrics_of(PATH, 1, {name: typed}) == {metric: pytest.approx(stored, rel=1e-12)}


@pytest.mark.parametrize("name", ["ttft", "ttft_mean", "ttft_mean_tok_s", "speed_ms", "throughput_ms", ""])
def test_a_name_without_its_unit_is_refused(name: str) -> None:
    """No unit, a unit of another dimension and an unknown stem are no columns."""
    assert column_of(name) is None
    with pytest.raises(RefereeError, match=r"t\.csv:4: column is .*allowed: a known column"):
        columns_of(PATH, 4, [name])


def test_one_metric_in_two_units_is_refused() -> None:
    """Mixed units are an error, not an average."""
    with pytest.raises(RefereeError, match=r"columns is 'e2e_mean_s' and 'e2e_mean_ms'; allowed: one unit a metric"):
        columns_of(PATH, 1, ["e2e_mean_s", "e2e_mean_ms"])


@pytest.mark.parametrize("text", ["161 s", "", "1e400", "inf", "-inf", "one", True])
def test_a_cell_that_is_no_number_is_refused(text: str | bool) -> None:
    """Units stand in the column's name; infinity is no measurement."""
    with pytest.raises(RefereeError, match=r"t\.csv:7: ttft_ms is .*allowed: a (finite )?number"):
        number(PATH, 7, "ttft_ms", text)


def test_nan_and_grouped_digits_are_numbers() -> None:
    """`nan` reaches the judge; a comma groups thousands."""
    assert math.isnan(number(PATH, 1, "x", "nan"))
    assert number(PATH, 1, "x", "13,423.72") == 13423.72


def test_an_empty_cell_says_nothing() -> None:
    """It is neither zero nor an error."""
    assert metrics_of(PATH, 1, {"ttft_mean_ms": "", "tpot_mean_ms": "8.5"}) == {"tpot_mean_ms": 8.5}


@pytest.mark.parametrize(
    ("text", "value", "unit", "digits"),
    [
        ("+2.19%", 2.19, "percent", 2), ("-0.381 pp", -0.381, "points", 3), ("1.319x", 1.319, "x", 3),
        ("5,899.09 ms", 5899.09, "ms", 2), ("2651", 2651.0, "count", 0), ("−1.00 %", -1.0, "percent", 2),
        ("3122.06 tok/s", 3122.06, "tok/s", 2), (".5 s", 0.5, "s", 1), ("4.43×", 4.43, "x", 2),
    ],
)  # fmt: skip
def test_a_printed_number_keeps_its_digits(text: str, value: float, unit: str, digits: int) -> None:
    """Value, unit and the digits behind the point: what rounding may have taken is known."""
    found = printed(text)
    assert (found.value, found.unit, found.digits) == (value, unit, digits)
    assert found.half_step == pytest.approx(0.5 * 10**-digits)


@pytest.mark.parametrize("text", ["", "fast", "1.2.3", "1,23", "5 parsecs", "2 % 3"])
def test_what_was_printed_otherwise_is_refused(text: str) -> None:
    """No number, or an unknown unit."""
    with pytest.raises(RefereeError, match="printed is"):
        printed(text)


@given(st.decimals(-99999, 99999, places=3), st.integers(0, 3), st.sampled_from(["%", " pp", "x", " ms", ""]))
def test_any_printed_decimal_reads_back(value: object, digits: int, unit: str) -> None:
    """What a format prints, the reader gives back to the last digit."""
    text = f"{value:+,.{digits}f}{unit}"
    assert printed(text).value == float(f"{value:.{digits}f}")
    assert printed(text).digits == digits


@pytest.mark.parametrize("text", ["1,5", "0,500", "1,0245", "10,24,500", "1.024,5", "1_000", "1 000", "1,024.5,6", "١"])
def test_a_comma_parts_thousands_alone(text: str) -> None:
    """A decimal comma, an underscore, a gap and other digits than 0 to 9 are refused, never read as another number."""
    with pytest.raises(RefereeError, match=r"t\.csv:7: x is .*; allowed: a number, such as 1024\.5 or 1,024\.5"):
        number(PATH, 7, "x", text)
    with pytest.raises(RefereeError, match="printed is"):
        printed(f"{text}%")


@pytest.mark.parametrize(
    ("text", "value"), [("1,024.5", 1024.5), ("-12,345,678", -12345678.0), (" 1e3 ", 1000.0), (".5", 0.5), ("5.", 5.0)]
)
def test_digits_in_groups_of_three_are_a_number(text: str, value: float) -> None:
    """So are exponents, and a point at either end."""
    assert number(PATH, 1, "x", text) == value
