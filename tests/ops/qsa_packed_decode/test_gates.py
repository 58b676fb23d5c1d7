"""The tolerance table and the limits made of it."""

from __future__ import annotations

import math

import pytest
import torch

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_packed_decode import cases, gates, oracle
from kda_lab.verify.checks import CHECK_NAMES
from kda_lab.verify.metrics import rel_l2, row_max


def test_limits_without_a_floor_are_the_tables() -> None:
    """A floor of zero leaves the table's limits: 2e-3 for real captures, 5e-3 for synthetic ones."""
    assert gates.limits("real", 0.0) == gates.Limits(2e-3, 4e-3)
    assert gates.limits("synthetic", 0.0) == gates.Limits(5e-3, 1e-2)


def test_a_high_floor_raises_the_limits() -> None:
    """Where rounding alone costs more than the table allows, the limits follow the floors."""
    found = gates.limits("real", 2.37e-3, 6e-3)
    assert found.error == pytest.approx(1.25 * 2.37e-3)
    assert found.row_max == pytest.approx(1.5 * 6e-3)
    assert gates.limits("real", 2e-3).row_max == pytest.approx(6e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("flat", 0.0), r"qsa\.packed_decode: kind is 'flat'; allowed: 'real', 'synthetic'\."),
        (("real", math.nan), r"floor is nan; allowed: a finite number of at least 0\. Mend the oracle\."),
        (("real", 0.0, -1.0), r"row_floor is -1\.0; allowed: a finite number"),
    ],
)
def test_senseless_limits_are_refused(arguments: tuple[object, ...], message: str) -> None:
    """An unknown kind and a floor that is no number are refused: a NaN limit would pass or fail at random."""
    with pytest.raises(ParameterError, match=message):
        gates.limits(*arguments)  # type: ignore[arg-type]


def test_every_check_with_a_tolerance_is_in_the_table() -> None:
    """The table names exactly the checks that the referee runs, but for the launch itself."""
    assert {gate.gate for gate in gates.TOLERANCES} == set(CHECK_NAMES) - {"launch"}


def test_every_gate_says_where_it_comes_from() -> None:
    """No limit without a source, and real captures are never judged more loosely than synthetic ones."""
    for gate in gates.TOLERANCES:
        assert gate.source
        assert gate.metric
        assert 0 <= gate.real <= gate.synthetic


@pytest.mark.parametrize(("splits", "tile"), [(1, 16), (8, 32), (32, 32), (3, 128)])
def test_sound_variants_stay_within_the_floor_factors(splits: int, tile: int) -> None:
    """Another tile size or split count passes limits that rest on the floors alone."""
    call = cases.synthesise(cases.rows(["tp1"], [3], ["published"])[0], 11)
    reference, emulated = oracle.oracle_fp64(call)["out"], oracle.emulate(call)["out"]
    variant = oracle.emulate(call, splits, tile)["out"]
    assert rel_l2(variant, reference) < gates.FLOOR_FACTOR * rel_l2(emulated, reference)
    assert row_max(variant, reference) < gates.ROW_FLOOR_FACTOR * row_max(emulated, reference)


def test_the_row_gate_sees_what_the_whole_output_hides() -> None:
    """One wrong (row, head) among 384 can pass the gate of the whole output and fails that of the worst row."""
    call = cases.synthesise(cases.rows(["tp1"], [16], ["short"])[0], 3)
    reference = oracle.oracle_fp64(call)["out"]
    wrong = oracle.emulate(call)["out"].clone()
    wrong[7, 5] += (wrong[7, 5].float() * 0.05).to(torch.bfloat16)
    found = gates.limits("synthetic", 0.0)
    assert rel_l2(wrong, reference) < found.error
    assert row_max(wrong, reference) > found.row_max
