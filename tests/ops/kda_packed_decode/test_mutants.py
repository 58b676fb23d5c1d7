"""How wrong decodes show, and that the right arithmetic is not one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kda_lab.ops.kda_packed_decode import cases, mutants, oracle
from kda_lab.ops.protocol import Call
from kda_lab.verify.metrics import rel_l2
from kda_lab.verify.power import Power

CALLS = [cases.synthesise(row, 0) for row in cases.capture_rows()]


def test_small_mistakes_are_seen_by_the_state_alone(power_on: Callable[[Call], Power]) -> None:
    """A write strength rounded to BF16 moves no output beyond BF16 noise on the full width; the state shows it."""
    wide = next(call for call in CALLS if call.label == "wide-K128-V128-safe")
    outcome = {m.name: m for m in power_on(wide).mutants}["beta_rounded"]
    assert outcome.by in ("element_max", "error_updated")


def test_what_was_copied_at_the_bind_shows_after_a_change(power_on: Callable[[Call], Power]) -> None:
    """Memory of the bind is right until the buffers hold something else."""
    by = {m.name: m.by for m in power_on(CALLS[0]).mutants}
    assert all(by[name].startswith("changed_") for name in ("slots_baked", "gate_baked"))


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.label)
def test_without_its_mistake_a_mutant_is_right(call: Call) -> None:
    """The decode that the mutants vary is the oracle's."""
    fresh = call.with_outputs(**{n: t.clone() for n, t in call.outputs.items()})
    mutants._Decode()(fresh)
    exact = oracle.oracle_fp64(call)
    assert rel_l2(fresh.outputs["out"], exact["out"]) < 2.5e-3
    assert rel_l2(fresh.outputs["state"], exact["state"]) < (1e-6 if call.facts["state"] == "float32" else 2e-3)


def test_mutants_stay_away_from_padding_alone() -> None:
    """Where nothing is live only writing can be wrong."""
    idle = cases.edge_calls(0)["all_padding"]
    applying = {mutant.name for mutant in mutants.MUTANTS if mutant.applies(idle)}
    assert applying == {"untouched", "padding_not_written", "padding_works", "spare_touched"}
