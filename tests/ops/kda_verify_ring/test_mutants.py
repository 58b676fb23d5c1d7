"""Gate power: every mutant of `kda.verify_ring` is rejected on some capture, and the emulated arithmetic passes on each."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from kda_lab.ops.registry import load_op
from kda_lab.verify.launching import one_thread
from kda_lab.verify.power import gate_power

OP = load_op("kda.verify_ring")


def test_every_mutant_is_killed_wherever_it_applies() -> None:
    """On every capture row nothing survives that applies, and over all of them every mutant has applied."""
    applied: set[str] = set()
    for row in OP.cases.capture_rows():
        call = OP.cases.synthesise(row, 0)
        capture = SimpleNamespace(name=row.label, kind="synthetic", call=call, pinned={}, sha256="0" * 64)
        with one_thread(torch.device("cpu")):
            power = gate_power(OP, capture, "cpu")
        assert power.control_failed == ()
        assert power.survivors == (), row.label
        applied |= {mutant.name for mutant in power.mutants if mutant.killed}
    assert applied == {mutant.name for mutant in OP.mutants.MUTANTS}


def test_mutants_say_why_they_do_not_apply() -> None:
    """A mutant that can be inapplicable has a reason in words; names are distinct and at least eight."""
    names = [mutant.name for mutant in OP.mutants.MUTANTS]
    assert len(set(names)) == len(names) >= 8
    for row in OP.cases.capture_rows():
        call = OP.cases.with_guard_rows(OP.cases.synthesise(row, 0), 2)
        assert all(m.applies(call) or m.why_not for m in OP.mutants.MUTANTS)
