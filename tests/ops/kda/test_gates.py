"""The gate tables of the KDA ops: a gate for every check, and what their limits refuse."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import ModuleType

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.registry import load_op, op_names
from kda_lab.verify.checks import checks_of

OPS = [name for name in op_names() if name.startswith("kda.")]


def functions_of(gates: ModuleType) -> list[Callable[[str, float], object]]:
    """The limits of outputs and, where the op has them, of what it updates in place."""
    return [getattr(gates, name) for name in ("limits", "updated_limit") if hasattr(gates, name)]


@pytest.mark.parametrize("name", OPS)
def test_every_check_has_its_gate(name: str) -> None:
    """The table names the checks of the op, all but the launch itself, in their order."""
    op = load_op(name)
    assert [gate.gate for gate in op.gates.TOLERANCES] == [check.name for check in checks_of(op)][1:]


@pytest.mark.parametrize("floor", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", OPS)
def test_impossible_floors_are_refused(name: str, floor: float) -> None:
    """A floor that no oracle gives says that the oracle is broken: it must not widen a gate."""
    for function in functions_of(load_op(name).gates):
        with pytest.raises(ParameterError, match=re.escape(f"{name}: floor is {floor}; allowed: a finite number")):
            function("synthetic", floor)


@pytest.mark.parametrize("name", OPS)
def test_unknown_kinds_are_refused(name: str) -> None:
    """There are real and synthetic captures."""
    for function in functions_of(load_op(name).gates):
        with pytest.raises(ParameterError, match=re.escape(f"{name}: kind is 'made up'; allowed: 'real', 'synthetic'")):
            function("made up", 0.0)
