"""Every wrong decode is rejected where it applies, and the right arithmetic is not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.kda_packed_decode import cases, mutants, oracle
from kda_lab.ops.registry import load_op
from kda_lab.verify import gate_power
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import rel_l2
from kda_lab.verify.power import Power

CALLS = [cases.synthesise(row, 0) for row in cases.capture_rows()]
LABELS = [call.label for call in CALLS]


@pytest.fixture(scope="module")
def powers() -> dict[str, Power]:
    """Gate power on each row of the committed captures."""
    op, found = load_op("kda.packed_decode"), {}
    with one_thread(torch.device("cpu")):
        for call in CALLS:
            capture = SimpleNamespace(name=call.label, kind="synthetic", call=call, pinned={}, sha256="0")
            found[call.label] = gate_power(op, capture, "cpu")
    return found


@pytest.mark.parametrize("label", LABELS)
def test_every_applying_mutant_is_killed(powers: dict[str, Power], label: str) -> None:
    """No mistake survives the gates, and the control passes them."""
    power = powers[label]
    assert power.control_failed == ()
    assert [m.name for m in power.mutants if m.applies and not m.killed] == []


def test_every_mutant_applies_somewhere(powers: dict[str, Power]) -> None:
    """A mistake that no capture can show proves nothing."""
    applied = {m.name for power in powers.values() for m in power.mutants if m.applies}
    assert applied == {mutant.name for mutant in mutants.MUTANTS}
    assert all(m.why_not for power in powers.values() for m in power.mutants if not m.applies)


def test_small_mistakes_are_seen_by_the_state_alone(powers: dict[str, Power]) -> None:
    """A write strength rounded to BF16 moves no output beyond BF16 noise on the full width; the state shows it."""
    outcome = {m.name: m for m in powers["wide-K128-V128-safe"].mutants}["beta_rounded"]
    assert outcome.by in ("element_max", "error_updated")


def test_what_was_copied_at_the_bind_shows_after_a_change(powers: dict[str, Power]) -> None:
    """Memory of the bind is right until the buffers hold something else."""
    by = {m.name: m.by for m in powers[LABELS[0]].mutants}
    assert all(by[name].startswith("changed_") for name in ("slots_baked", "gate_baked"))


@pytest.mark.parametrize("call", CALLS, ids=LABELS)
def test_without_its_mistake_a_mutant_is_right(call: object) -> None:
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
