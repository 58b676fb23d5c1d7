"""Metrics and units: conversions keep the printed digits, mixed units are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.metrics import METRICS, SUFFIXES, UNITS, convert, metric_of, to_metric


@pytest.mark.parametrize(
    ("metric", "value", "unit", "stored"),
    [
        ("e2e_mean_ms", 161.229, "s", 161229.0),
        ("kernel_us", 45.262, "ms", 45262.0),
        ("graph_ms", 45262.0, "us", 45.262),
        ("duration_s", 1.5, "min", 90.0),
        ("throughput_tok_s", 600.0, "tok/min", 10.0),
        ("throughput_tok_s", 843.14, "", 843.14),
        ("bandwidth_gb_s", 4.3, "TB/s", 4300.0),
    ],
)
def test_a_value_is_stored_in_the_metrics_unit(metric: str, value: float, unit: str, stored: float) -> None:
    """A value typed in another unit of the same dimension is converted, to the last printed digit."""
    assert to_metric(metric, value, unit) == pytest.approx(stored, rel=1e-15)


@given(st.floats(1e-6, 1e9), st.sampled_from(["s", "ms", "us", "ns", "min"]), st.sampled_from(["s", "ms", "us", "ns"]))
def test_a_conversion_can_be_undone(value: float, unit: str, other: str) -> None:
    """There and back is the same value to 14 digits."""
    assert convert(convert(value, unit, other), other, unit) == pytest.approx(value, rel=1e-14)


def test_mixed_units_are_refused() -> None:
    """A rate is no time; the units that would do are named."""
    with pytest.raises(RefereeError, match=r"unit is 'tok/s'; allowed: s, ms, us, ns, min\. tok/s is a token rate"):
        to_metric("ttft_mean_ms", 1.0, "tok/s")
    with pytest.raises(RefereeError, match=r"unit is 'furlong'; allowed: s, ms"):
        convert(1.0, "furlong", "s")


def test_an_unknown_metric_is_refused() -> None:
    """The known ones are listed."""
    with pytest.raises(RefereeError, match=r"metric is 'speed'; allowed: accept_length, artifacts_built"):
        metric_of("speed")


def test_names_end_in_their_unit() -> None:
    """Each metric's name ends in a suffix whose unit is the metric's, counts apart."""
    for metric in METRICS.values():
        assert metric.unit in UNITS
        if metric.unit != "count" and metric.name != "request_rate_s":
            suffix = max((s for s in SUFFIXES if metric.name.endswith("_" + s)), key=len)
            assert SUFFIXES[suffix] == metric.unit, metric.name
