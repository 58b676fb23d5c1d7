"""The table names checks, limits follow the floor, and the emulation lies within them without it."""

from __future__ import annotations

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.kda_chunk_prefill import cases, gates, oracle
from kda_lab.ops.registry import load_op
from kda_lab.verify.checks import checks_of
from kda_lab.verify.metrics import rel_l2, row_max


def test_every_check_has_its_gate() -> None:
    """The table names each check that a record holds, but for the launch itself."""
    names = {check.name for check in checks_of(load_op("kda.chunk_prefill"))} - {"launch"}
    assert {gate.gate for gate in gates.TOLERANCES} == names


def test_limits_rise_with_the_floor() -> None:
    """The table's limits, or a stated multiple of the emulated floor where that is more."""
    assert gates.limits("real", 0.0) == gates.Limits(5e-3, 3e-2)
    assert gates.limits("synthetic", 0.01, 0.02) == gates.Limits(0.0125, 0.06)
    assert gates.updated_limit("synthetic", 1e-3) == 5e-3
    assert gates.updated_limit("synthetic", 8e-3) == pytest.approx(1e-2)


@pytest.mark.parametrize("judge", [gates.limits, gates.updated_limit])
def test_wrong_floors_and_kinds_are_refused(judge: object) -> None:
    """A kind without limits, and a floor that no oracle gives."""
    with pytest.raises(ParameterError, match=r"kind is 'guess'; allowed: 'real', 'synthetic'"):
        judge("guess", 0.0)  # type: ignore[operator]
    with pytest.raises(ParameterError, match=r"floor is -1; allowed: a finite number of at least 0"):
        judge("real", -1)  # type: ignore[operator]


@pytest.mark.parametrize("row", cases.capture_rows(), ids=lambda row: row.label)
def test_the_emulation_passes_on_the_captures(row: object) -> None:
    """A right tensor-core kernel is within the table on every committed row."""
    call = cases.synthesise(row, 0)  # type: ignore[arg-type]
    found, exact = oracle.emulate(call), oracle.oracle_fp64(call)
    assert 2e-3 < rel_l2(found["out"], exact["out"]) < gates.ERROR
    assert row_max(found["out"], exact["out"]) < gates.ROW_ERROR
    assert rel_l2(found["state"], exact["state"]) < gates.STATE_ERROR
