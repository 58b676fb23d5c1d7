"""Gate power of every KDA op: each mutant is rejected where it applies, and the emulated arithmetic passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.captures.kda import SEED
from kda_lab.ops.protocol import Call
from kda_lab.ops.registry import load_op, op_names
from kda_lab.verify.power import Power

OPS = [name for name in op_names() if name.startswith("kda.")]


@pytest.mark.parametrize("name", OPS)
def test_every_mutant_is_killed_wherever_it_applies(name: str, power_on: Callable[[Call], Power]) -> None:
    """On no row of the committed captures does one survive that applies, and over all of them every one has applied."""
    op = load_op(name)
    powers = [power_on(op.cases.synthesise(row, SEED)) for row in op.cases.capture_rows()]
    assert {power.control_failed for power in powers} == {()}
    assert {power.survivors for power in powers} == {()}
    outcomes = [mutant for power in powers for mutant in power.mutants]
    assert {m.name for m in outcomes if m.applies and m.killed} == {m.name for m in op.mutants.MUTANTS}
    assert all(m.why_not for m in outcomes if not m.applies)


@pytest.mark.parametrize("name", [n for n in OPS if any(r.parameters.get("B") == 1 for r in load_op(n).cases.rows())])
def test_mutants_die_with_one_request(name: str, power_on: Callable[[Call], Power]) -> None:
    """On the smallest benchmark row too, where a wrong kernel has the fewest ways to show."""
    op = load_op(name)
    row = next(row for row in op.cases.rows() if row.parameters["B"] == 1)
    power = power_on(op.cases.synthesise(row, SEED))
    assert power.survivors == ()
    assert power.passed


@pytest.mark.parametrize("name", OPS)
def test_mutants_have_names_and_words(name: str) -> None:
    """Names are distinct and at least eight; each says its mistake in a sentence, and why where it does not apply."""
    op = load_op(name)
    mutants = op.mutants.MUTANTS
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 8
    assert all(mutant.what.endswith(".") for mutant in mutants)
    for row in op.cases.capture_rows():
        call = op.cases.with_guard_rows(op.cases.synthesise(row, SEED), 2)
        assert all(m.applies(call) or m.why_not for m in mutants)
