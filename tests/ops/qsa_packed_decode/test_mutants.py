"""Every mutant is wrong where it says it applies, right but for its mistake, and rejected by the referee."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.qsa_packed_decode import cases, gates, mutants, oracle
from kda_lab.ops.registry import load_op
from kda_lab.verify import gate_power
from kda_lab.verify.metrics import rel_l2, row_max

BY_NAME = {mutant.name: mutant for mutant in mutants.MUTANTS}
LIMITS = gates.limits("synthetic", 0.0)
LATER = {"counter_kept", "lengths_baked", "tiles_baked"}
"""Mutants that are right at their first launch, and wrong only at a later one."""


def make_call(lengths: list[int], heads: tuple[int, int] = (24, 2)) -> Call:
    return cases.with_guard_rows(cases._peaky("mutants", heads, lengths, "test", 0, "cpu"), 128)


EVERYTHING = make_call([300, 1, 0, 65, 2055])
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


def test_unreset_counter_merges_only_once() -> None:
    """The second launch of a bound call writes nothing; a fresh arm starts again."""
    call = fresh(EVERYTHING)
    launcher = BY_NAME["counter_kept"].make().bind([call])[0]
    launcher()
    call.outputs["out"].fill_(7)
    launcher()
    assert (call.outputs["out"] == 7).all()
    assert not (launch(BY_NAME["counter_kept"], call) == 7).all()


@pytest.mark.parametrize(
    ("name", "wanted"), [("lengths_baked", "shorter"), ("lengths_baked", "longer"), ("tiles_baked", "longer")]
)
def test_baked_lengths_are_wrong_after_a_change(name: str, wanted: str) -> None:
    """What was read at bind time is wrong once the buffers hold other lengths."""
    call = fresh(cases.with_capacity(EVERYTHING, 2700))
    call = call.with_inputs(**{n: t.clone() for n, t in call.inputs.items()})
    launcher = BY_NAME[name].make().bind([call])[0]
    for tensor, new in cases.changed(call, wanted, 1).items():
        call.inputs[tensor].copy_(new)
    launcher()
    assert not is_accepted(call.outputs["out"], oracle.oracle_fp32(call)["out"])


def test_sixteen_heads_write_behind_the_output() -> None:
    """With one group the only trace of the padding rows is what they overwrite behind the output."""
    call = fresh(make_call([20], heads=(12, 1)))
    out = launch(BY_NAME["sixteen_heads"], call)
    assert is_accepted(out, oracle.oracle_fp32(call)["out"])
    behind = out.as_strided((4, 256), (256, 1), out.numel())
    assert (behind == 0).all()


def test_sixteen_heads_stay_inside_a_tight_buffer() -> None:
    """Where nothing lies behind the output the mutant does not crash, which would be no kill."""
    call = make_call([20, 30])
    out = launch(BY_NAME["sixteen_heads"], call.with_outputs(out=torch.zeros_like(call.outputs["out"])))
    assert torch.isfinite(out).all()


@pytest.mark.parametrize(
    ("name", "lengths", "heads"),
    [
        ("all_zero", [0, 0], (24, 2)),
        ("head_map", [9], (12, 1)),
        ("sixteen_heads", [9], (16, 1)),
        ("last_row_dropped", [0], (24, 2)),
        ("scale_omitted", [1, 1], (24, 2)),
        ("scale_twice", [1, 0], (24, 2)),
        ("base_two", [1, 0], (24, 2)),
        ("half_width_scores", [1], (24, 2)),
        ("merge_unscaled", [64, 3], (24, 2)),
        ("merge_first", [64, 3], (24, 2)),
        ("empty_row_nan", [3, 4], (24, 2)),
        ("batch_offset", [1, 1, 1], (24, 2)),
        ("padding_as_empty", [2, 0], (24, 2)),
        ("draft_width_cut", [2051], (12, 1)),
        ("stale_tail", [7], (24, 2)),
    ],
)
def test_mutant_that_does_not_apply_is_right(name: str, lengths: list[int], heads: tuple[int, int]) -> None:
    """Where a mutant says it does not apply it changes nothing, and it says why."""
    call = fresh(make_call(lengths, heads))
    assert not BY_NAME[name].applies(call)
    assert BY_NAME[name].why_not
    assert is_accepted(launch(BY_NAME[name], call), oracle.oracle_fp32(call)["out"])


def test_tail_mask_needs_a_row_to_read() -> None:
    """With one segment that fills its buffer there is no row behind the end."""
    tight = cases._peaky("mutants", (24, 2), [9], "test", 0, "cpu")
    assert not BY_NAME["tail_mask"].applies(tight)
    assert BY_NAME["tail_mask"].applies(make_call([9]))


@pytest.mark.parametrize("lengths", [[2051, 2051], [2051]])
def test_saturated_rows_cannot_grow(lengths: list[int]) -> None:
    """A mutant that cuts longer rows does not apply where no row can become longer."""
    assert not BY_NAME["tiles_baked"].applies(make_call(lengths, (12, 1)))


def test_names_and_words() -> None:
    """Names are unique, and every mutant says its mistake in a sentence."""
    assert len(BY_NAME) == len(mutants.MUTANTS)
    assert all(mutant.what.endswith(".") for mutant in mutants.MUTANTS)


def test_referee_rejects_every_mutant_and_accepts_the_emulation() -> None:
    """On one call on which all apply, the checks kill all of them, and pass the control."""
    capture = SimpleNamespace(name="all", kind="synthetic", call=EVERYTHING, pinned={}, sha256="0" * 64)
    power = gate_power(load_op("qsa.packed_decode"), capture, "cpu")
    assert power.control_failed == ()
    assert power.survivors == ()
    assert power.killed == power.total == len(mutants.MUTANTS)


def test_referee_sees_the_mistakes_that_the_output_hides() -> None:
    """The mutants that are right at first, or outside the output only, die by the check made for them."""
    call = make_call([97, 211], heads=(12, 1))
    capture = SimpleNamespace(name="tp2", kind="synthetic", call=call, pinned={}, sha256="0" * 64)
    power = gate_power(load_op("qsa.packed_decode"), capture, "cpu")
    by = {outcome.name: outcome.by for outcome in power.mutants if outcome.applies}
    assert by["counter_kept"] == "repeat_bits"
    assert by["lengths_baked"] == "changed_lengths_shorter"
    assert by["tiles_baked"] == "changed_lengths_longer"
    assert power.survivors == ()
