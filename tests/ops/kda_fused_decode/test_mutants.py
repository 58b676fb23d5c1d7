"""How wrong decodes show, and that the right arithmetic is not one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.ops.kda_fused_decode import cases, mutants, oracle
from kda_lab.ops.protocol import Call
from kda_lab.verify.metrics import rel_l2
from kda_lab.verify.power import Power

CALLS = [cases.synthesise(row, 0) for row in cases.capture_rows()]


def test_windows_are_exact(power_on: Callable[[Call], Power]) -> None:
    """A wrong window shows in no output row of this token, and is rejected all the same."""
    by = {m.name: m.by for m in power_on(CALLS[0]).mutants}
    names = ("window_kept", "window_of_outputs", "window_as_ring", "spare_shifted")
    assert {by[name] for name in names} <= {"element_max", "error_updated"}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.label)
def test_without_its_mistake_a_mutant_is_right(call: Call) -> None:
    """The decode that the mutants vary is the oracle's."""
    fresh = call.with_outputs(**{n: t.clone() for n, t in call.outputs.items()})
    mutants._Fused()(fresh)
    exact = oracle.oracle_fp64(call)
    assert rel_l2(fresh.outputs["out"], exact["out"]) < 2.5e-3
    assert rel_l2(fresh.outputs["conv_state"], exact["conv_state"]) == 0
    assert rel_l2(fresh.outputs["state"], exact["state"]) < (1e-5 if call.facts["state"] == "float32" else 2e-3)


def test_mutants_stay_away_from_padding_alone() -> None:
    """Where nothing is live only writing can be wrong."""
    idle = cases.edge_calls(0)["all_padding"]
    applying = {mutant.name for mutant in mutants.MUTANTS if mutant.applies(idle)}
    assert applying == {"untouched", "padding_not_written", "padding_works"}
