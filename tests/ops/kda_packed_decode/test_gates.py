"""Limits: their least values, how they rise, what they refuse."""

from __future__ import annotations

import math

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.kda_packed_decode import gates
from kda_lab.ops.registry import load_op
from kda_lab.verify import checks_of


def test_limits_are_those_of_the_table_and_rise_with_the_floor() -> None:
    """A floor above 2e-3 lifts the limits of the output; a BF16 pool's lifts that of the state."""
    assert gates.limits("synthetic", 1.7e-3, 1.8e-3) == gates.limits("real", 1e-4)
    assert gates.limits("synthetic", 1.7e-3).error == 2.5e-3
    assert gates.limits("synthetic", 1.7e-3, 4e-3).row_max == 5e-3
    assert gates.updated_limit("synthetic", 2e-8) == 1e-5
    assert gates.updated_limit("real", 1.6e-3) == pytest.approx(2e-3)


def test_every_check_has_its_gate() -> None:
    """The table names each check that a record holds, but for the launch itself."""
    names = {check.name for check in checks_of(load_op("kda.packed_decode"))} - {"launch"}
    assert {gate.gate for gate in gates.TOLERANCES} == names


@pytest.mark.parametrize("floor", [-1.0, math.nan, math.inf])
def test_impossible_floors_are_refused(floor: float) -> None:
    """A floor that no oracle gives says that the oracle is broken."""
    for function in (gates.limits, gates.updated_limit):
        with pytest.raises(ParameterError, match=r"kda\.packed_decode: floor is .*; allowed: a finite number"):
            function("synthetic", floor)


def test_unknown_kinds_are_refused() -> None:
    """There are real and synthetic captures."""
    for function in (gates.limits, gates.updated_limit):
        with pytest.raises(ParameterError, match=r"kda\.packed_decode: kind is 'made up'"):
            function("made up", 0.0)
