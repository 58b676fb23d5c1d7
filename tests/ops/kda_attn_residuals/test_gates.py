"""The tolerance table of attention residuals and the limits that follow from it."""

from __future__ import annotations

import math

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.kda_attn_residuals import gates
from kda_lab.ops.registry import load_op
from kda_lab.verify.checks import checks_of


def test_every_check_has_its_gate() -> None:
    """The table names the checks of the op, all but the launch itself, in their order."""
    names = [check.name for check in checks_of(load_op("kda.attn_residuals"))]
    assert [gate.gate for gate in gates.TOLERANCES] == names[1:]


def test_limits_are_those_of_the_table() -> None:
    """Two BF16 roundings fit; three of them, 2.9e-3, nearly fill the limit."""
    assert gates.limits("synthetic", 1.66e-3, 1.9e-3) == gates.Limits(3e-3, 3e-3)
    assert gates.limits("real", 1.66e-3, 2.8e-3).row_max == pytest.approx(3.5e-3)


def test_what_is_updated_must_keep_its_bits() -> None:
    """No kind and no floor opens the gate of bank and prefix."""
    assert gates.updated_limit("synthetic", 0.0) == gates.updated_limit("real", 1e-3) == 0.0


@pytest.mark.parametrize("limit", [gates.limits, gates.updated_limit])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("odd", 0.0), r"kda\.attn_residuals: kind is 'odd'; allowed: 'real', 'synthetic'"),
        (("real", -1.0), r"floor is -1\.0; allowed: a finite number of at least 0"),
        (("real", math.nan), r"floor is nan; allowed: a finite number"),
    ],
)
def test_what_is_no_floor_is_refused(limit: object, arguments: tuple[object, ...], message: str) -> None:
    """A broken oracle must not widen a gate."""
    with pytest.raises(ParameterError, match=message):
        limit(*arguments)
