"""The table names checks, limits follow the floor, and the emulation lies within them without it."""

from __future__ import annotations

import pytest

from kda_lab.ops.gate import Limits
from kda_lab.ops.kda_chunk_prefill import cases, gates, oracle
from kda_lab.verify.metrics import rel_l2, row_max


def test_limits_rise_with_the_floor() -> None:
    """The table's limits, or a stated multiple of the emulated floor where that is more."""
    assert gates.limits("real", 0.0) == Limits(5e-3, 3e-2)
    assert gates.limits("synthetic", 0.01, 0.02) == Limits(0.0125, 0.06)
    assert gates.updated_limit("synthetic", 1e-3) == 5e-3
    assert gates.updated_limit("synthetic", 8e-3) == pytest.approx(1e-2)


@pytest.mark.parametrize("row", cases.capture_rows(), ids=lambda row: row.label)
def test_the_emulation_passes_on_the_captures(row: object) -> None:
    """A right tensor-core kernel is within the table on every committed row."""
    call = cases.synthesise(row, 0)  # type: ignore[arg-type]
    found, exact = oracle.emulate(call), oracle.oracle_fp64(call)
    assert 2e-3 < rel_l2(found["out"], exact["out"]) < gates.ERROR
    assert row_max(found["out"], exact["out"]) < gates.ROW_ERROR
    assert rel_l2(found["state"], exact["state"]) < gates.STATE_ERROR
