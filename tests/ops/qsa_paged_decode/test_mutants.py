"""Every mutant is wrong where it says it applies, right but for its mistake, and rejected by the referee."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.qsa_paged_decode import cases, gates, mutants, oracle
from kda_lab.ops.registry import load_op
from kda_lab.verify import gate_power
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import rel_l2, row_max

BY_NAME = {mutant.name: mutant for mutant in mutants.MUTANTS}
LIMITS = gates.limits("synthetic", 0.0)
LATER = {"counter_kept", "slots_baked", "tiles_baked"}
"""Mutants that are right at their first launch, and wrong only at a later one."""
EVERYTHING = cases.with_guard_rows(cases.drawn("mutants", (24, 2), (300, 1, 0, 66, 131), "draft", 0), 1024)
"""A call on which every mutant applies."""
REFERENCE = oracle.oracle_fp32(EVERYTHING)["out"]


def fresh(call: Call) -> Call:
    """The call with NaN outputs inside a larger buffer, so that stores past the end are harmless."""
    out = call.outputs["out"]
    buffer = torch.full((out.shape[0] + 1, *out.shape[1:]), float("nan"), dtype=out.dtype)
    return call.with_outputs(out=buffer[:-1])


def launch(mutant: Mutant, call: Call) -> torch.Tensor:
    mutant.make().bind([call])[0]()
    return call.outputs["out"]


def is_accepted(out: torch.Tensor, reference: torch.Tensor) -> bool:
    return rel_l2(out, reference) <= LIMITS.error and row_max(out, reference) <= LIMITS.row_max


def test_without_its_mistake_a_mutant_is_right() -> None:
    """The decode that the mutants vary is itself within the limits, also on empty and single rows."""
    call = fresh(EVERYTHING)
    mutants._Decode()(call)
    assert is_accepted(call.outputs["out"], REFERENCE)


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in LATER])
def test_mutant_is_wrong_at_once(name: str) -> None:
    """Where it applies, a mutant without memory fails the limits at its first launch."""
    assert BY_NAME[name].applies(EVERYTHING)
    assert not is_accepted(launch(BY_NAME[name], fresh(EVERYTHING)), REFERENCE)


@pytest.mark.parametrize("name", sorted(LATER))
def test_stateful_mutant_is_right_at_first(name: str) -> None:
    """A mutant with memory passes its first launch, so only a check that launches again can see it."""
    assert BY_NAME[name].applies(EVERYTHING)
    assert is_accepted(launch(BY_NAME[name], fresh(EVERYTHING)), REFERENCE)


@pytest.mark.parametrize(("name", "wanted"), [("slots_baked", "shorter"), ("tiles_baked", "longer")])
def test_baked_selections_are_wrong_after_a_change(name: str, wanted: str) -> None:
    """What was read at bind time is wrong once the buffers hold another selection."""
    call = fresh(EVERYTHING.with_inputs(**{n: t.clone() for n, t in EVERYTHING.inputs.items()}))
    launcher = BY_NAME[name].make().bind([call])[0]
    for tensor, new in cases.changed(call, wanted, 1).items():
        call.inputs[tensor].copy_(new)
    launcher()
    assert not is_accepted(call.outputs["out"], oracle.oracle_fp32(call)["out"])


@pytest.mark.parametrize(
    ("name", "counts", "kind"),
    [
        ("all_zero", (0, 0), "short"),
        ("hole_as_token_zero", (2055,), "draft"),
        ("valid_first", (9, 4), "short"),
        ("length_ignored", (2051,), "saturated"),
        ("draft_width_cut", (2051,), "saturated"),
        ("last_column_dropped", (0,), "short"),
        ("pages_adjacent", (9,), "short"),
        ("padding_as_empty", (2, 0), "short"),
        ("head_map", (9,), "short"),
        ("scale_omitted", (1, 1), "short"),
        ("scale_twice", (1, 0), "short"),
        ("base_two", (1, 0), "short"),
        ("half_width_scores", (1,), "short"),
        ("merge_unscaled", (64, 3), "short"),
        ("merge_first", (64, 3), "short"),
        ("last_split_dropped", (64, 3), "short"),
        ("empty_row_nan", (3, 4), "short"),
        ("offset_wraps", (0,), "short"),
    ],
)
def test_mutant_that_does_not_apply_is_right(name: str, counts: tuple[int, ...], kind: str) -> None:
    """Where a mutant says it does not apply it changes nothing, and it says why."""
    call = fresh(cases.drawn("mutants", (12, 1), counts, kind, 0))
    assert not BY_NAME[name].applies(call)
    assert BY_NAME[name].why_not
    assert is_accepted(launch(BY_NAME[name], call), oracle.oracle_fp32(call)["out"])


def test_sixteen_heads_write_behind_the_output() -> None:
    """With one group the only trace of the padding rows is what they overwrite behind the output."""
    call = fresh(cases.drawn("mutants", (12, 1), (20,), "short", 0))
    out = launch(BY_NAME["sixteen_heads"], call)
    assert is_accepted(out, oracle.oracle_fp32(call)["out"])
    assert (out.as_strided((4, 256), (256, 1), out.numel()) == 0).all()


def test_a_full_row_gains_no_tile() -> None:
    """A mutant that cuts longer rows does not apply where no row can become longer."""
    assert not BY_NAME["tiles_baked"].applies(cases.drawn("mutants", (12, 1), (2051,), "saturated", 0))


def test_names_and_words() -> None:
    """Names are unique, and every mutant says its mistake in a sentence."""
    assert len(BY_NAME) == len(mutants.MUTANTS)
    assert all(mutant.what.endswith(".") for mutant in mutants.MUTANTS)


def test_referee_rejects_every_mutant_and_accepts_the_emulation() -> None:
    """On one call on which all apply the checks kill all of them, by the check made for them, and pass the control."""
    capture = SimpleNamespace(name="all", kind="synthetic", call=EVERYTHING, pinned={}, sha256="0" * 64)
    with one_thread(torch.device("cpu")):
        power = gate_power(load_op("qsa.paged_decode"), capture, "cpu")
    assert power.control_failed == ()
    assert power.survivors == ()
    assert power.killed == power.total == len(mutants.MUTANTS)
    by = {outcome.name: outcome.by for outcome in power.mutants}
    assert by["counter_kept"] == "repeat_bits"
    assert by["slots_baked"] == "changed_lengths_shorter"
    assert by["tiles_baked"] == "changed_lengths_longer"
