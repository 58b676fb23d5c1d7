"""Time chains: all arms in alternating order, fresh allocations a trial, each trial judged after it was timed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.protocol import Launcher
from kda_lab.timing.chain import records
from kda_lab.timing.chain.arms import ChainArm
from kda_lab.timing.chain.assembly import Chain
from kda_lab.timing.chain.judgement import Judge
from kda_lab.timing.chain.persisting import reset_persisting_lines
from kda_lab.timing.chain.plan import ChainPlan
from kda_lab.timing.machine import Machine
from kda_lab.timing.protocol import COLD_L2_MULTIPLE, Protocol
from kda_lab.timing.telemetry import disturbance
from kda_lab.timing.trials import Trials

WHOLE = "chain"


@dataclass
class _Slot:
    """One arm's place in the order, with what was found out before the trials."""

    arm: ChainArm
    kernels: dict[str, dict[str, int] | None] = field(default_factory=dict)
    kernels_reason: str = ""
    l2_reset_reason: str = ""
    refused: str = ""


def time_chain(
    op: Any,
    plan: ChainPlan,
    arms: Sequence[ChainArm],
    *,
    machine: Machine,
    protocol: Protocol | None = None,
    judge: Judge | None = None,
) -> list[dict[str, Any]]:
    """Time every arm's chain.

    Args:
        op: with `.spec .cases .oracle .work .gates`.
        plan: geometry of the chain.
        arms: one of them the `reference`. Its A/A control is added.
        machine: where.
        protocol: trials, replays, warm-up and least work a graph are taken from it; v1 when None.
        judge: keeps the limits that an earlier check found.

    Returns:
        One validated `chain` record a (arm, trial), and one `refused` record an arm that cannot run.
        An arm that fails in any trial is refused, and its earlier trials are left out.

    Raises:
        ParameterError: not exactly one reference, or two arms of one name.
        TimingError: an arm destroyed the device's context.
    """
    _require_roles(arms)
    reference = next(arm for arm in arms if arm.role == "reference")
    slots = [_Slot(arm) for arm in (*arms, ChainArm(reference.arm, "control"))]
    timing = _ChainTiming(op, plan, machine, protocol or Protocol(), judge or Judge(op, plan), slots)
    with machine.current():
        return timing.run()


def _require_roles(arms: Sequence[ChainArm]) -> None:
    roles = [arm.role for arm in arms]
    names = [arm.name for arm in arms]
    reasons = [Reason("arm", repr(n), "each name once") for n in sorted(set(names)) if names.count(n) > 1]
    if roles.count("reference") != 1:
        remedy = "Give one arm the role 'reference': the policies are compared with it."
        reasons.append(Reason("arms with role reference", repr(roles.count("reference")), "exactly 1", remedy))
    if "control" in roles:
        reasons.append(Reason("role", "'control'", "none: the A/A control is added"))
    if reasons:
        raise ParameterError("timing", reasons)


@dataclass
class _ChainTiming:
    op: Any
    plan: ChainPlan
    machine: Machine
    protocol: Protocol
    judge: Judge
    slots: list[_Slot]
    passes: int = 1
    product_bytes: int = 0

    @property
    def reference(self) -> _Slot:
        return next(slot for slot in self.slots if slot.arm.role == "reference")

    def run(self) -> list[dict[str, Any]]:
        trials = Trials(
            self.slots, self.machine, self.protocol, "in the chain", "Start a new process, without this arm."
        )
        kept = trials.run(self.reference, self._prepare, self._trial)
        return kept + [self._refusal(slot) for slot in self.slots if slot.refused]

    def _prepare(self, slot: _Slot) -> None:
        """Profile one step of each kind and one pass; the reference's time also plans the graph of every arm."""
        slot.refused = slot.arm.unavailable(self.machine.device)
        if slot.refused:
            return
        if slot.arm.role == "control":
            base = self.reference
            slot.kernels, slot.kernels_reason, slot.refused = base.kernels, base.kernels_reason, base.refused
            return
        chain = self._build(slot, self.protocol.seed)
        if slot is self.reference:
            self.product_bytes = sum(self.op.work.work(call).bytes_moved for call in chain.calls[0])
            replay = self.machine.timer.prepare([chain], 1)
            one_pass_us = min(self.machine.timer.sample_us(replay, 3, 1, lambda: None))
            self.passes = max(1, math.ceil(self.protocol.min_graph_us / one_pass_us) + 1)
        steps = {kind: step.launch for kind, step in chain.first_of_each_kind().items()}
        launches: dict[str, Launcher] = {**steps, WHOLE: chain}
        for kind, launch in launches.items():
            activity = self.machine.profile(launch, self.machine.device)
            slot.kernels[kind] = activity.kernels
            slot.kernels_reason = slot.kernels_reason or activity.reason

    def _build(self, slot: _Slot, seed: int) -> Chain:
        self.machine.release()
        slot.l2_reset_reason = reset_persisting_lines(self.machine.device)
        return slot.arm.build(self.op, self.plan, device=self.machine.device, seed=seed)

    def _trial(self, slot: _Slot, trial: int, order: int) -> dict[str, Any]:
        """One arm's part of one trial. All arms of a trial see the same values."""
        machine, protocol = self.machine, self.protocol
        seed = protocol.seed + 1 + trial
        chain = self._build(slot, seed)
        replay = machine.timer.prepare([chain], self.passes)
        readings: list[dict[str, Any]] = []
        whole_us = machine.timer.sample_us(
            replay, protocol.replays, protocol.warmup_replays, lambda: readings.append(machine.telemetry())
        )
        judged = self.judge.judge(chain, replay, self.passes, seed=seed, synchronise=machine.synchronise)
        samples = [us / self.passes / self.plan.layers for us in whole_us]
        measured = {"samples_us": samples, "telemetry": readings[0], **judged}
        return self._record(slot, {"trial": trial, "order": order, **measured})

    def _record(self, slot: _Slot, measured: dict[str, Any]) -> dict[str, Any]:
        product_bytes = 0 if slot.arm.arm is None else self.product_bytes
        record = {
            **slot.arm.identity(self.plan, self.machine.provenance),
            "kind": "chain",
            "reference": self.reference.arm.name,
            "dropped": _dropped(measured),
            "median_us": statistics.median(measured["samples_us"]),
            "passes_per_graph": self.passes,
            "product_bytes": product_bytes,
            "touches_per_layer": self.plan.touches_per_layer,
            "l2_bytes": self.machine.l2_bytes,
            "cold_products": self.plan.layers * product_bytes >= COLD_L2_MULTIPLE * self.machine.l2_bytes,
            "l2_reset_reason": slot.l2_reset_reason,
            "copy_bandwidth_gb_s": self.machine.copy_gb_s,
            "roof_us": product_bytes / self.machine.copy_gb_s / 1e3,
            "kernels": slot.kernels,
            "kernels_reason": slot.kernels_reason,
            "timer": self.machine.timer.name,
            "protocol": f"chain {self.protocol.label}",
            **measured,
        }
        return records.validated(record)

    def _refusal(self, slot: _Slot) -> dict[str, Any]:
        identity = slot.arm.identity(self.plan, self.machine.provenance)
        return records.validated(
            {**identity, "kind": "refused", "device": self.machine.device.type, "reason": slot.refused}
        )


def _dropped(measured: dict[str, Any]) -> str:
    """Why the trial does not count; empty when it does."""
    judged = measured["recheck"]
    return disturbance(measured["telemetry"]) if judged["passed"] else f"recheck failed: {judged['detail']}"
