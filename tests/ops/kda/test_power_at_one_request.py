"""Mutants die on the smallest benchmark row too: one request leaves a wrong kernel the fewest ways to show."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kda_lab.ops.registry import load_op
from kda_lab.verify import gate_power

OPS = (
    "kda.packed_decode",
    "kda.fused_decode",
    "kda.verify_ring",
    "kda.verify_snapshots",
    "kda.fold",
    "kda.replay_decode",
)


@pytest.mark.parametrize("name", OPS)
def test_mutants_die_with_one_request(name: str) -> None:
    """Of one request, every mutant that applies is rejected by a check."""
    op = load_op(name)
    row = next(row for row in op.cases.rows() if row.parameters["B"] == 1)
    capture = SimpleNamespace(
        name=row.label, kind="synthetic", call=op.cases.synthesise(row, 0), pinned={}, sha256="0" * 64
    )
    power = gate_power(op, capture, "cpu")
    assert power.survivors == ()
    assert power.passed
