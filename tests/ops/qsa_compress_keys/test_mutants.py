"""Every wrong compressed key is rejected where it applies, and the right arithmetic is not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.protocol import Call
from kda_lab.ops.qsa_compress_keys import cases, mutants, oracle
from kda_lab.ops.registry import load_op
from kda_lab.verify import gate_power
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import rel_l2
from kda_lab.verify.power import Power

NAMES = [mutant.name for mutant in mutants.MUTANTS]
MIXED = cases.synthesise(cases.rows((), (), (), (40,))[0], 3)
LATER = {"positions_baked", "weight_baked", "table_baked"}


def power_on(call: Call) -> Power:
    capture = SimpleNamespace(name=call.label, kind="synthetic", call=call, pinned={}, sha256="0")
    with one_thread(torch.device("cpu")):
        return gate_power(load_op("qsa.compress_keys"), capture, "cpu")


@pytest.fixture(scope="module")
def power() -> Power:
    """Gate power on a mixed step, where every mutant but that of epsilon applies."""
    return power_on(MIXED)


def test_without_its_mistake_a_mutant_is_right() -> None:
    """The step that the mutants vary is the oracle's: entries to FP32 rounding, slots and ring exactly."""
    found, exact = mutants._Compress().output(MIXED), oracle.oracle_fp64(MIXED)
    assert rel_l2(found["entries"], exact["entries"]) < 1e-6
    assert all(rel_l2(found[name], exact[name]) == 0 for name in ("entry_slots", "new_ring"))


def test_the_control_passes(power: Power) -> None:
    """A gate that rejects right arithmetic has no power."""
    assert power.control_failed == ()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "epsilon_missing"])
def test_mutant_is_killed(power: Power, name: str) -> None:
    """It applies to the mixed step and some check rejects it."""
    outcome = {m.name: m for m in power.mutants}[name]
    assert outcome.applies
    assert outcome.killed, outcome.why_not


@pytest.mark.parametrize("name", sorted(LATER))
def test_memory_shows_only_after_a_change(power: Power, name: str) -> None:
    """What was copied at the bind is right until the buffers hold something else."""
    assert {m.name: m for m in power.mutants}[name].by.startswith("changed_")


def test_a_missing_epsilon_shows_on_tiny_keys(power: Power) -> None:
    """On ordinary keys the mutant says that it does not apply; on keys near 1e-3 it is rejected."""
    assert "epsilon does not count" in {m.name: m for m in power.mutants}["epsilon_missing"].why_not
    tiny = power_on(cases.edge_calls(0)["tiny_keys"])
    assert tiny.passed
    assert {m.name: m for m in tiny.mutants}["epsilon_missing"].killed


def test_mutants_stay_away_where_they_are_right() -> None:
    """On padding alone nothing can be wrong but writing: a mutant says so instead of surviving."""
    idle = cases.edge_calls(0)["all_padding"]
    applying = {mutant.name for mutant in mutants.MUTANTS if mutant.applies(idle)}
    assert applying == {"untouched", "all_zero", "padding_counts", "complete_only"}
    assert all(mutant.why_not for mutant in mutants.MUTANTS if not mutant.applies(idle))


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_a_factor_on_the_mean_is_no_mistake(factor: float) -> None:
    """The norm takes any power of two back, which is why a sum in the mean's place is no mutant."""
    call = MIXED.with_inputs(**{n: MIXED.inputs[n] * factor for n in ("k_raw", "ring")})
    assert rel_l2(oracle.oracle_fp64(call)["entries"], oracle.oracle_fp64(MIXED)["entries"]) < 1e-4
