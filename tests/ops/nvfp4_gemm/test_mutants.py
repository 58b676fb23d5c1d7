"""Every mutant is wrong where it says it applies, right where not, and rejected by the referee."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kda_lab.ops.nvfp4_gemm import cases, gates, mutants, oracle
from kda_lab.ops.protocol import Call, Mutant
from kda_lab.ops.registry import load_op
from kda_lab.verify import checks_of, gate_power
from kda_lab.verify.metrics import element_max, rel_l2, row_max, within

BY_NAME = {mutant.name: mutant for mutant in mutants.MUTANTS}
LATER = {"x_baked", "alpha_baked"}
"""Mutants that are right at their first launch, and wrong only at a later one."""
LOCAL = ("column_off", "element_off", "element_zero")


def one(label: str, seed: int = 0) -> Call:
    shape, batch, kind = label.split("-")
    call = cases.synthesise(cases.rows([shape], [int(batch[1:])], [kind])[0], seed)
    return fresh(cases.with_guard_rows(call))


def fresh(call: Call) -> Call:
    return call.with_outputs(out=torch.full_like(call.outputs["out"], float("nan")))


def is_accepted(call: Call) -> bool:
    exact, rounded, out = oracle.oracle_fp64(call)["out"], oracle.emulate(call)["out"], call.outputs["out"]
    limits = gates.limits("synthetic", rel_l2(rounded, exact), row_max(rounded, exact))
    reference = oracle.oracle_fp32(call)["out"]
    element = element_max(out, exact, oracle.allowance(call, {"out": exact})["out"])
    by_row = within(rel_l2(out, reference), limits.error) and within(row_max(out, reference), limits.row_max)
    return by_row and within(element, 1.0)


def launch(mutant: Mutant, call: Call) -> Call:
    done = fresh(call)
    mutant.make().bind([done])[0]()
    return done


CALLS = {
    label: one(label)
    for label in (
        "tiny_a-M9-random",
        "tiny_b-M1-fp32",
        "tiny_c-M129-random",
        "tiny_d-M1-exact",
        "tiny_e-M2-any_scale",
        "tiny_b-M1-any_scale",
        "tiny_f-M128-exact",
        "tiny_c-M9-fp32",
    )
}
CALLS |= {name: fresh(cases.with_guard_rows(call)) for name, call in cases.edge_calls(3).items()}


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in LATER | {"alpha_rounded"}])
def test_mutant_is_wrong_where_it_applies(name: str) -> None:
    """Where it says it applies, a mutant without memory fails the limits at its first launch, on every call."""
    applying = [label for label, call in CALLS.items() if BY_NAME[name].applies(call)]
    assert applying
    assert [label for label in applying if is_accepted(launch(BY_NAME[name], CALLS[label]))] == []


@pytest.mark.parametrize("label", [label for label in CALLS if BY_NAME["alpha_rounded"].applies(CALLS[label])])
def test_a_rounded_alpha_is_wrong_after_a_change(label: str) -> None:
    """The call's own alpha may be near a BF16 value; the changed one never is, whatever the row."""
    call = CALLS[label]
    assert not is_accepted(launch(BY_NAME["alpha_rounded"], call.with_inputs(**cases.changed(call, "alpha", 1))))


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("label", ["tiny_b-M9-random", "tiny_b-M1-any_scale", "tiny_a-M9-fp32", "tiny_a-M8-exact"])
def test_the_gate_of_elements_sees_local_errors(name: str, label: str) -> None:
    """A column 1 % off, an element half off or zero: `element_max` alone rejects them, and passes the emulation."""
    op = load_op("nvfp4.gemm")
    checks = [check for check in checks_of(op) if check.name == "element_max"]
    capture = SimpleNamespace(name=label, kind="synthetic", call=one(label), pinned={}, sha256="0" * 64)
    power = gate_power(op, capture, "cpu", checks)
    assert power.control_failed == ()
    assert {o.name: o.by for o in power.mutants if o.name == name} == {name: "element_max"}


@pytest.mark.parametrize("name", sorted(LATER))
def test_stateful_mutant_is_right_at_first(name: str) -> None:
    """A mutant with memory passes its first launch, so only a check that launches again can see it."""
    assert is_accepted(launch(BY_NAME[name], CALLS["tiny_a-M9-random"]))


@pytest.mark.parametrize(
    ("name", "which", "is_right"),
    [("x_baked", "x", False), ("alpha_baked", "alpha", False), ("alpha_baked", "x", True)],
)
def test_baked_contents_are_wrong_after_a_change(name: str, which: str, is_right: bool) -> None:
    """What was read when the call was bound is wrong once the buffers hold something else, and only then."""
    call = fresh(CALLS["tiny_a-M9-random"])
    call = call.with_inputs(**{n: t.clone() for n, t in call.inputs.items()})
    launcher = BY_NAME[name].make().bind([call])[0]
    for tensor, new in cases.changed(call, which, 1).items():
        call.inputs[tensor].copy_(new)
    launcher()
    assert is_accepted(call) == is_right


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("all_zero", "alpha_zero"),
        ("nibble_swap", "zero_activations"),
        ("x_scale_rows", "tiny_d-M1-exact"),
        ("x_scale_atoms", "tiny_f-M128-exact"),
        ("scale_columns", "top_scales"),
        ("scale_e5m2", "zero_activations"),
        ("alpha_missing", "alpha_one"),
        ("alpha_twice", "alpha_zero"),
        ("alpha_twice", "alpha_one"),
        ("alpha_rounded", "tiny_d-M1-exact"),
        ("half_accumulator", "tiny_d-M1-exact"),
        ("padding_row_read", "tiny_f-M128-exact"),
        ("padding_column_read", "tiny_f-M128-exact"),
        ("scale_subnormal_flushed", "tiny_a-M9-random"),
        ("x_scale_subnormal_flushed", "tiny_b-M1-any_scale"),
        ("element_zero", "alpha_zero"),
        ("rounded_twice", "alpha_one"),
    ],
)
def test_mutant_that_does_not_apply_is_right(name: str, label: str) -> None:
    """Where a mutant says it does not apply because nothing meets its mistake, it is right, and says why."""
    assert not BY_NAME[name].applies(CALLS[label])
    assert BY_NAME[name].why_not
    assert is_accepted(launch(BY_NAME[name], CALLS[label]))


def test_padding_is_only_read_where_it_holds_nan() -> None:
    """Without guard rows the leak changes nothing, and the mutant says so."""
    call = fresh(cases.synthesise(cases.rows(["tiny_d"], [1], ["random"])[0], 0))
    for name in ("padding_row_read", "weight_padding_read", "padding_column_read"):
        assert not BY_NAME[name].applies(call)
        assert is_accepted(launch(BY_NAME[name], call))


def test_rounding_mutants_need_enough_outputs() -> None:
    """On sixteen outputs one rounding cannot be told from another, and nothing is claimed."""
    call = one("tiny_d-M1-random")
    assert not any(BY_NAME[name].applies(call) for name in ("store_truncates", "rounded_twice", "alpha_rounded"))


def test_names_and_words() -> None:
    """Names are unique, and every mutant says its mistake in a sentence, and why not where that can be."""
    assert len(BY_NAME) == len(mutants.MUTANTS) >= 36
    assert all(mutant.what.endswith(".") for mutant in mutants.MUTANTS)
    silent = {mutant.name for mutant in mutants.MUTANTS if not mutant.why_not}
    assert silent == {"untouched", "last_column", "x_baked", "alpha_baked"}


@pytest.mark.parametrize("label", ["tiny_a-M9-random", "tiny_c-M129-random", "tiny_c-M9-fp32"])
def test_referee_rejects_every_mutant_and_accepts_the_emulation(label: str) -> None:
    """The checks kill all that apply, each where it should die, and pass the control."""
    call = CALLS[label]
    capture = SimpleNamespace(name=label, kind="synthetic", call=call, pinned={}, sha256="0" * 64)
    power = gate_power(load_op("nvfp4.gemm"), capture, "cpu")
    assert power.control_failed == ()
    assert power.survivors == ()
    assert power.killed == power.total >= 25
    by = {outcome.name: outcome.by for outcome in power.mutants if outcome.applies}
    assert by["x_baked"] == "changed_x"
    assert by["alpha_baked"] == "changed_alpha"


@pytest.mark.gpu
def test_mutants_of_a_large_layer_run_on_the_gpu() -> None:
    """The widest gate/up layer with nine tokens: all that apply are rejected there too."""
    call = cases.with_guard_rows(cases.make_sets(cases.rows(["27b_gate_up"], [9], ["random"])[0], 1, 0, "cuda")[0])
    for mutant in mutants.MUTANTS:
        if mutant.name not in LATER and mutant.applies(call):
            assert not is_accepted(launch(mutant, call)), mutant.name
