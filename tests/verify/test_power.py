"""Gate power: kills, survivors, the control, and mutants that prove nothing."""

from __future__ import annotations

import torch
from toy_op import MUTANTS, BoundArm, make_capture, make_op, scaled, without, write

from kda_lab.ops.protocol import FunctionArm, Mutant
from kda_lab.verify import gate_power

ERRORS = ("error_fp32", "row_max", "changed_lengths_shorter", "changed_lengths_longer")


def power(*mutants: Mutant, checks=None):
    op = make_op(mutants or MUTANTS)
    return gate_power(op, make_capture(), "cpu", *([checks] if checks else []))


def mutant(name: str, make) -> Mutant:
    return Mutant(name, "A mistake.", make)


def test_all_mutants_are_killed() -> None:
    """Every mutant that applies is rejected, each by a named check; the one that does not apply says why."""
    done = power()
    assert (done.killed, done.total, done.passed, done.survivors) == (3, 3, True, ())
    outcomes = {m.name: m for m in done.mutants}
    assert outcomes["no_scale"].by == "error_fp32"
    assert (outcomes["one_head"].applies, outcomes["one_head"].why_not) == (False, "there is more than one head")


def test_a_right_mutant_survives_and_fails_the_power() -> None:
    """A mutant that no check rejects is a survivor: k < n is not a pass."""
    done = power(*MUTANTS, mutant("right", lambda: FunctionArm("right", write)))
    assert (done.killed, done.total, done.survivors, done.passed) == (3, 4, ("right",), False)


def test_power_depends_on_the_checks() -> None:
    """Without the error checks the wrong scale survives: the count is measured, not stated."""
    done = power(checks=without(*ERRORS))
    assert not done.passed
    assert "no_scale" in done.survivors


def test_a_mutant_is_run_through_all_phases_when_the_first_does_not_show_it() -> None:
    """A mistake that shows only on later contents is still a kill, and a fresh arm runs each time."""
    made: list[int] = []

    def bind(call):
        lengths = call.inputs["cu"].clone()

        def launch() -> None:
            write(call)
            if not torch.equal(lengths, call.inputs["cu"]):
                call.outputs["out"].zero_()

        return launch

    def make():
        made.append(1)
        return BoundArm("baked", bind)

    done = power(mutant("baked", make))
    assert (done.mutants[0].by, len(made)) == ("changed_lengths_shorter", 2)


def test_a_mutant_that_breaks_is_not_killed() -> None:
    """A mutant that raises shows nothing about tolerances."""

    def bind(call):
        raise RuntimeError("typo")

    done = power(mutant("broken", lambda: BoundArm("broken", bind)))
    assert (done.killed, done.total, done.passed) == (0, 1, False)
    assert done.mutants[0].why_not == "the mutant itself broke, which is no kill: bind: RuntimeError: typo"


def test_a_broken_mutant_survives_without_the_launch_check() -> None:
    """What was not evaluated rejects nothing, so the broken mutant counts as a survivor."""

    def bind(call):
        raise RuntimeError("typo")

    done = power(mutant("broken", lambda: BoundArm("broken", bind)), checks=without("launch"))
    assert done.survivors == ("broken",)


def test_checks_that_reject_everything_have_no_power() -> None:
    """Gates that reject the emulated arithmetic kill all mutants, and the power is void."""
    op = make_op()
    plain = op.gates.limits

    def strict(kind, floor, row_floor):
        limits = plain(kind, floor, row_floor)
        limits.error = 1e-9
        return limits

    op.gates.limits = strict
    done = gate_power(op, make_capture(), "cpu")
    assert done.killed == done.total == 3
    assert "error_fp32" in done.control_failed
    assert not done.passed


def test_no_applicable_mutant_is_no_power() -> None:
    """Zero of zero is not a proof."""
    done = power(MUTANTS[-1])
    assert (done.total, done.passed) == (0, False)


def test_a_mutant_that_cannot_run_here_says_so() -> None:
    """A mutant for another device does not apply, with the arm's own reason."""
    done = power(MUTANTS[0], mutant("cuda", lambda: FunctionArm("cuda", scaled(2.0), requires_cuda=True)))
    assert (done.killed, done.total) == (1, 1)
    assert done.mutants[1].why_not == "unavailable, because cuda needs a CUDA device and this one is cpu"


def test_a_reason_is_always_given() -> None:
    """A mutant that does not apply and gives no reason is marked so."""
    done = power(Mutant("quiet", "A mistake.", lambda: FunctionArm("quiet", write), applies=lambda call: False))
    assert done.mutants[0].why_not == "not said"
