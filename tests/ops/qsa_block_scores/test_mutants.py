"""Every wrong block score is rejected where it applies, and the right arithmetic is not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.qsa_block_scores import cases, mutants, oracle
from kda_lab.ops.registry import load_op
from kda_lab.verify import gate_power
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import rel_l2

NAMES = [mutant.name for mutant in mutants.MUTANTS]


@pytest.fixture(scope="module")
def power():
    """Gate power on a ragged call, where every mutant applies."""
    call = cases.synthesise(cases.rows((64,), (3,), ("ragged",))[0], 3)
    capture = SimpleNamespace(name="ragged", kind="synthetic", call=call, pinned={}, sha256="0")
    with one_thread(torch.device("cpu")):
        return gate_power(load_op("qsa.block_scores"), capture, "cpu")


def test_without_its_mistake_a_mutant_is_right() -> None:
    """The scores that the mutants vary are the oracle's to FP32 rounding."""
    call = cases.synthesise(cases.rows((64,), (3,), ("ragged",))[0], 3)
    assert rel_l2(mutants._Scores().output(call), oracle.oracle_fp64(call)["scores"]) < 1e-6


def test_the_control_passes(power) -> None:
    """A gate that rejects right arithmetic has no power."""
    assert power.control_failed == ()


@pytest.mark.parametrize("name", NAMES)
def test_mutant_is_killed(power, name: str) -> None:
    """It applies to the ragged call and some check rejects it."""
    outcome = {m.name: m for m in power.mutants}[name]
    assert outcome.applies
    assert outcome.killed, outcome.why_not


@pytest.mark.parametrize("name", ["lengths_baked", "pages_baked"])
def test_memory_shows_only_after_a_change(power, name: str) -> None:
    """What was copied at the bind is right until the buffers hold something else."""
    outcome = {m.name: m for m in power.mutants}[name]
    assert outcome.by.startswith("changed_lengths")


def test_mutants_stay_away_where_they_are_right() -> None:
    """Full rows have no dead score, empty rows no live one: a mutant says so instead of surviving."""
    full, empty = cases.synthesise(cases.rows((32,), (2,))[0], 0), cases.edge_calls(0)["all_empty"]
    by_name = {mutant.name: mutant for mutant in mutants.MUTANTS}
    assert not any(by_name[n].applies(full) for n in ("length_long", "dead_zero", "dead_unwritten", "length_to_page"))
    assert not any(by_name[n].applies(empty) for n in ("scale_omitted", "relu_missing", "pages_ignored", "head_twice"))
    assert all(mutant.why_not for mutant in mutants.MUTANTS if not mutant.applies(empty))


def test_one_dead_score_too_high_is_seen() -> None:
    """A single finite score behind a row's end is infinitely wrong, however small it is."""
    call = cases.synthesise(cases.rows((64,), (3,), ("ragged",))[0], 3)
    right = oracle.oracle_fp32(call)["scores"]
    wrong = right.clone()
    wrong[1, 0] = 0.0
    assert not rel_l2(wrong, right) <= 1e30
    assert torch.isnan(torch.tensor(rel_l2(wrong, right)))
