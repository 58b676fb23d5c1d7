"""Mutants are right but for their mistake, and right where they say that it does not apply."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kda_lab.ops.kda_chunk_prefill import cases, mutants, oracle
from kda_lab.ops.protocol import Call, Row
from kda_lab.verify.metrics import rel_l2
from kda_lab.verify.power import Power

BY_NAME = {mutant.name: mutant for mutant in mutants.MUTANTS}
ROWS = cases.capture_rows()
EXTRA = cases.row("shared-square", {"HV": 4, "H": 2, "K": 32, "V": 32, "lengths": (66, 20, 3), "padding": True})


def ran(name: str, call: Call) -> dict[str, torch.Tensor]:
    """Outputs of a mutant's first launch on poisoned outputs."""
    call.outputs["out"].fill_(float("nan"))
    call.restore()
    BY_NAME[name].make().bind([call])[0]()
    return call.outputs


def test_without_its_mistake_a_mutant_is_right() -> None:
    """The prefill that the mutants vary differs from FP64 by the rounding of its output."""
    for row in (*ROWS, EXTRA):
        call = cases.with_guard_rows(cases.synthesise(row, 1), 64)
        call.restore()
        mutants._Prefill()(call)
        exact = oracle.oracle_fp64(call)
        assert rel_l2(call.outputs["out"], exact["out"]) < 2e-3
        assert rel_l2(call.outputs["state"], exact["state"]) < 1e-5


def test_the_referee_rejects_mutants_beyond_the_captures(power_on: Callable[[Call], Power]) -> None:
    """No survivors where query heads are shared and K is V, and the emulation as control passes every check."""
    power = power_on(cases.synthesise(EXTRA, 0))
    assert power.control_failed == ()
    assert power.killed == power.total >= 18


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_most_mutants_apply_to_every_row(row: Row) -> None:
    """Of twenty or more at least eighteen show on each committed row."""
    call = cases.with_guard_rows(cases.synthesise(row, 0), 64)
    assert len(BY_NAME) >= 20
    assert sum(mutant.applies(call) for mutant in mutants.MUTANTS) >= 18


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("head_map", {"HV": 2}),
        ("head_map", {"HV": 2, "H": 1}),
        ("tail_dropped", {"lengths": (64, 128)}),
        ("chunks_apart", {"lengths": (64, 3)}),
        ("crossing", {"lengths": (20, 0, 3)}),
        ("state_always", {"lengths": (5,)}),
        ("padding_as_last", {}),
        ("padding_unwritten", {}),
        ("stride_ignored", {}),
    ],
)
def test_a_mutant_that_does_not_apply_is_right(name: str, axes: dict[str, object]) -> None:
    """Where a mutant says it does not apply it changes nothing, and it says why."""
    call = cases.synthesise(cases.row("none", {**({"HV": 2, "K": 32, "V": 16, "lengths": (70, 3)} | axes)}), 0)
    assert not BY_NAME[name].applies(call)
    assert BY_NAME[name].why_not
    exact = oracle.oracle_fp64(call)
    found = ran(name, call)
    assert rel_l2(found["out"], exact["out"]) < 2e-3
    assert rel_l2(found["state"], exact["state"]) < 1e-5


def test_a_padding_mutant_leaves_the_output_right() -> None:
    """Index -1 taken for the last slot: only that slot's bits and the padding's rows tell."""
    call = cases.synthesise(EXTRA, 0)
    exact = oracle.oracle_fp64(call)
    found = ran("padding_as_last", call)
    assert rel_l2(found["out"][:86], exact["out"][:86]) < 2e-3
    assert torch.count_nonzero(found["out"][86:])
    assert not torch.equal(found["state"][-1], call.inputs["state"][-1])
