"""Gate power: the mutants that the checks reject at the very inputs they ran on.

A kill counts only if the same checks let the op's own emulated arithmetic pass (the control): a
check that rejects everything kills every mutant and proves nothing. For the same reason a mutant
that raises is not killed but broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kda_lab.ops.protocol import Call, FunctionArm, Mutant
from kda_lab.verify.checks import Check, checks_of
from kda_lab.verify.observation import Settings
from kda_lab.verify.reference import Reference, make_reference
from kda_lab.verify.replay import Replay, replay

_SETTINGS = Settings(role="mutant", graphs=False)
_FIRST_ONLY = replace(_SETTINGS, first_only=True)


@dataclass(frozen=True)
class MutantOutcome:
    """What the checks made of one mutant."""

    name: str
    killed: bool
    by: str
    """First check that rejected it; empty when it survived or did not apply."""
    applies: bool
    why_not: str
    """Why it does not apply here, or why its failure does not count."""


@dataclass(frozen=True)
class Power:
    """Gate power on one capture. `total` counts the mutants that apply there."""

    op: str
    capture: str
    capture_sha256: str
    mutants: tuple[MutantOutcome, ...]
    control_failed: tuple[str, ...]
    """Checks that rejected the emulated arithmetic; empty when it passed, as it must."""

    @property
    def total(self) -> int:
        return sum(m.applies for m in self.mutants)

    @property
    def killed(self) -> int:
        return sum(m.applies and m.killed for m in self.mutants)

    @property
    def survivors(self) -> tuple[str, ...]:
        """Names of the mutants that apply and were not rejected."""
        return tuple(m.name for m in self.mutants if m.applies and not m.killed)

    @property
    def passed(self) -> bool:
        """The control passed, at least one mutant applied, and every one that applied was killed."""
        return not self.control_failed and self.total > 0 and self.killed == self.total


def gate_power(
    op: Any,
    capture: Any,
    device: torch.device | str,
    checks: Sequence[Check] | None = None,
    reference: Reference | None = None,
) -> Power:
    """Replay the control and every applicable mutant through `checks`, those of the op when None.

    Args:
        op: the op's modules; `.mutants.MUTANTS` and `.oracle.emulate` are used here.
        capture, device, reference: as for `replay`.

    Raises:
        VerificationError: as `replay`; a mutant's own failure is an outcome, not an exception.
    """
    device = torch.device(device)
    checks = checks_of(op) if checks is None else checks
    if reference is None:
        reference = make_reference(op, capture, device)
    control = replay(op, _control(op), capture, device, _SETTINGS, checks, reference)
    outcomes = tuple(_judge(op, mutant, capture, checks, reference) for mutant in op.mutants.MUTANTS)
    return Power(capture.call.op, capture.name, capture.sha256, outcomes, control.failed)


def _control(op: Any) -> FunctionArm:
    def write(call: Call) -> None:
        for name, value in op.oracle.emulate(call).items():
            call.outputs[name].copy_(value)

    return FunctionArm("emulated", write)


def _judge(op: Any, mutant: Mutant, capture: Any, checks: Sequence[Check], reference: Reference) -> MutantOutcome:
    idle = MutantOutcome(mutant.name, killed=False, by="", applies=False, why_not="")
    if not mutant.applies(reference.roomy):
        return replace(idle, why_not=mutant.why_not or "not said")
    arm, device = mutant.make(), reference.call.device
    reason = arm.unavailable(device)
    if reason:
        return replace(idle, why_not=reason)
    # Most mutants show at once; only those that the first launch cannot reject run through every phase.
    done = replay(op, arm, capture, device, _FIRST_ONLY, checks, reference)
    if not _rejected_by(done):
        done = replay(op, mutant.make(), capture, device, _SETTINGS, checks, reference)
    broke = next((c.detail for c in done.checks if c.name == "launch" and not c.passed), "")
    if broke:
        return replace(idle, applies=True, why_not=f"the mutant itself broke, which is no kill: {broke}")
    by = _rejected_by(done)
    return replace(idle, applies=True, killed=bool(by), by=by)


def _rejected_by(done: Replay) -> str:
    return next((c.name for c in done.checks if c.evaluated and not c.passed), "")
