"""The tolerance table of compressed keys and the limits that follow from it."""

from __future__ import annotations

import math

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa_compress_keys import gates
from kda_lab.ops.registry import load_op
from kda_lab.verify.checks import checks_of


def test_every_check_has_its_gate() -> None:
    """The table names the checks of the op, all but the launch itself, in their order."""
    names = [check.name for check in checks_of(load_op("qsa.compress_keys"))]
    assert [gate.gate for gate in gates.TOLERANCES] == names[1:]


def test_limits_are_those_of_the_table() -> None:
    """One BF16 rounding of 1.66e-3 fits; two of them, 2.3e-3, do not."""
    assert gates.limits("synthetic", 1.66e-3, 1.7e-3) == gates.Limits(2e-3, 2e-3)


def test_a_high_floor_raises_its_own_limit() -> None:
    """A worst row of few elements may have a floor above the table: a tenth more than it is granted."""
    assert gates.limits("real", 1.9e-3, 2e-3) == gates.Limits(pytest.approx(2.09e-3), pytest.approx(2.2e-3))
    assert gates.limits("real", 1.9e-3).row_max == pytest.approx(2.09e-3)


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
