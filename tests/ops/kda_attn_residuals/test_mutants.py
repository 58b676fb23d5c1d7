"""How wrong attention residuals show, and that the right arithmetic is not one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kda_lab.captures.kda import SEED
from kda_lab.ops.kda_attn_residuals import cases, mutants, oracle
from kda_lab.ops.protocol import Call
from kda_lab.verify.metrics import rel_l2
from kda_lab.verify.power import Power

IN_PLACE = {"sum_not_kept", "snapshot_before_add", "snapshot_missing", "snapshot_over_last", "snapshot_always"}
LATER = {"score_weight_baked": "changed_weights", "out_weight_baked": "changed_weights", "delta_baked": "changed_rows"}


@pytest.fixture(scope="module")
def powers(power_on: Callable[[Call], Power]) -> list[Power]:
    """Gate power on the calls of the committed captures."""
    return [power_on(cases.synthesise(row, SEED)) for row in cases.capture_rows()]


@pytest.mark.parametrize("kind", sorted(cases.KINDS))
def test_without_its_mistake_a_mutant_is_right(kind: str) -> None:
    """The step that the mutants vary is the oracle's: `out` to one rounding, bank and prefix exactly."""
    call = cases.synthesise(cases.rows((6,), (5,), (kind,), 256)[0], 7)
    exact = oracle.oracle_fp64(call)
    mutants._Residual()(call)
    assert rel_l2(call.outputs["out"], exact["out"]) < 2e-3
    assert all(torch.equal(call.outputs[n], exact[n]) for n in ("bank", "prefix"))


def test_what_is_stored_wrongly_shows_in_what_is_updated(powers: list[Power]) -> None:
    """These have a right result: without the gate of bank and prefix they would pass."""
    by = {(m.name, m.by) for power in powers for m in power.mutants if m.name in IN_PLACE and m.applies}
    assert {check for _, check in by} == {"element_max"}
    assert {name for name, _ in by} == IN_PLACE


def test_memory_shows_only_after_a_change(powers: list[Power]) -> None:
    """What was copied at the bind is right until the buffers hold something else."""
    by = {(m.name, m.by) for power in powers for m in power.mutants if m.name in LATER and m.applies}
    assert by == set(LATER.items())


def test_an_empty_call_has_almost_no_mistake() -> None:
    """Without a token a mutant says that it does not apply instead of surviving, where tokens are what it gets wrong."""
    empty = cases.synthesise(cases.rows((0,), (3,), ("add",), 256)[0], 0)
    applying = {mutant.name for mutant in mutants.MUTANTS if mutant.applies(empty)}
    assert not applying & {"last_dropped", "delta_ignored", "score_without_norm", "epsilon_missing", "equal_weights"}
