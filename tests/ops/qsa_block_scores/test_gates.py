"""The tolerance table of block scores and the limits that follow from it."""

from __future__ import annotations

import math

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_block_scores import gates
from kda_lab.ops.registry import load_op
from kda_lab.verify.checks import checks_of


def test_every_check_has_its_gate() -> None:
    """The table names the checks of the op, all but the launch itself, in their order."""
    names = [check.name for check in checks_of(load_op("qsa.block_scores"))]
    assert [gate.gate for gate in gates.TOLERANCES] == names[1:]


def test_limits_are_those_of_the_table() -> None:
    """At an FP32 floor both limits are 2e-5, far below what a BF16 rounding costs."""
    assert gates.limits("synthetic", 1e-7, 2e-7) == gates.Limits(2e-5, 2e-5)


def test_a_high_floor_raises_its_own_limit() -> None:
    """Ten times the emulated floor is granted where that is more."""
    assert gates.limits("real", 1e-5, 3e-5) == gates.Limits(pytest.approx(1e-4), pytest.approx(3e-4))
    assert gates.limits("real", 1e-5).row_max == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("odd", 0.0), r"kind is 'odd'; allowed: 'real', 'synthetic'"),
        (("real", -1.0), r"floor is -1\.0; allowed: a finite number of at least 0"),
        (("real", 0.0, math.nan), r"row_floor is nan; allowed: a finite number"),
    ],
)
def test_what_is_no_floor_is_refused(arguments: tuple[object, ...], message: str) -> None:
    """A broken oracle must not widen a gate."""
    with pytest.raises(ParameterError, match=message):
        gates.limits(*arguments)
