"""The tolerances are those of packed decode, and the emulated arithmetic lies within them."""

from __future__ import annotations

from kda_lab.ops.qsa_packed_decode import gates as packed
from kda_lab.ops.qsa_paged_decode import cases, gates, oracle
from kda_lab.verify.checks import CHECK_NAMES
from kda_lab.verify.metrics import rel_l2, row_max


def test_the_table_names_the_checks_of_the_op() -> None:
    """Every gate is a check, and the limits are packed decode's own."""
    assert {gate.gate for gate in gates.TOLERANCES} <= {*CHECK_NAMES}
    assert gates.limits("real", 0.0) == packed.limits("real", 0.0) == gates.Limits(2e-3, 4e-3)


def test_the_emulation_passes_the_limits_of_synthetic_calls() -> None:
    """On rows with holes a right kernel is within the table without any floor."""
    call = cases.drawn("holes", (24, 2), (6, 72), "draft", 3)
    out, right = oracle.emulate(call, 2)["out"], oracle.oracle_fp32(call)["out"]
    limits = gates.limits("synthetic", 0.0)
    assert rel_l2(out, right) <= limits.error
    assert row_max(out, right) <= limits.row_max
