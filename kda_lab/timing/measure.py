"""One row, all arms: interleaved trials on fresh allocations, each with telemetry, proof of work and a recheck."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kda_lab.errors import ParameterError, Reason, TimingError
from kda_lab.ops.protocol import Arm, Call, Launcher, Row, Work, preparation_of
from kda_lab.timing import records, roofline
from kda_lab.timing.activity import Activity
from kda_lab.timing.graph import EagerTimer
from kda_lab.timing.machine import Machine
from kda_lab.timing.protocol import SUFFIXES, CallSize, Protocol, SetPlan, plan_sets
from kda_lab.timing.recheck import ErrorLimits, Timed, limit_of, recheck
from kda_lab.timing.telemetry import disturbance
from kda_lab.timing.trials import Trials

ROLES = ("baseline", "candidate", "peer", "control")
ESTIMATE_SETS = 4
ESTIMATE_CALLS = 32
ESTIMATE_MARGIN = 0.8
"""The estimate holds a share of the graph's own launch, so it is too long; a graph must not get too short for it."""


@dataclass
class _Slot:
    """One arm's place in the order, with what was found out before the trials."""

    arm: Arm
    role: str
    plan: SetPlan | None = None
    activity: Activity = field(default_factory=lambda: Activity(None, "not profiled"))
    refused: str = ""

    @property
    def ready_plan(self) -> SetPlan:
        if self.plan is None:
            raise TimingError(
                "timing", f"plan of arm {self.arm.name!r} is None; allowed: a SetPlan. Prepare the arm first."
            )
        return self.plan


def time_row(
    op: Any, row: Row, arms: Sequence[tuple[Arm, str]], *, machine: Machine, protocol: Protocol | None = None
) -> list[dict[str, Any]]:
    """Time every arm on one row.

    Args:
        op: an op with `.spec .oracle .cases .work .gates`.
        row: the case; `op.cases.make_sets(row, count, seed, device)` gives its input sets.
        arms: (arm, role), exactly one of them the `baseline`. The A/A control, the baseline again on
            its own allocations, is added at the end unless an arm has the role `control`.
        machine: where; see `machine.machine_for`.
        protocol: v1 when None. In another mode than `cold` the row's label says so.

    Returns:
        One validated `timing` record a (arm, trial), and one `refused` record an arm that cannot run.
        An arm that fails at any trial is refused, and its earlier trials are left out.

    Raises:
        ParameterError: the roles or names of the arms are wrong.
        TimingError: an arm destroyed the device's context, so that nothing more can be timed.
    """
    protocol = protocol or Protocol()
    if protocol.mode == "eager":
        machine = replace(machine, timer=EagerTimer(machine.device))
    timing = _RowTiming(op, row, machine, protocol, _slots(arms))
    with machine.current():
        return timing.run()


def time_warm(
    op: Any, row: Row, arms: Sequence[tuple[Arm, str]], *, machine: Machine, protocol: Protocol | None = None
) -> list[dict[str, Any]]:
    """`time_row` with one input set, so that it stays in the L2: a row of its own, labelled `(warm L2)`."""
    return time_row(op, row, arms, machine=machine, protocol=(protocol or Protocol()).warm())


def time_eager(
    op: Any, row: Row, arms: Sequence[tuple[Arm, str]], *, machine: Machine, protocol: Protocol | None = None
) -> list[dict[str, Any]]:
    """`time_row` with launches from the host instead of a graph: a row of its own, labelled `(eager)`."""
    return time_row(op, row, arms, machine=machine, protocol=(protocol or Protocol()).eager())


def time_eight(
    op: Any, row: Row, arms: Sequence[tuple[Arm, str]], *, machine: Machine, protocol: Protocol | None = None
) -> list[dict[str, Any]]:
    """`time_row` with exactly eight input sets: a row of its own, labelled `(eight sets)`."""
    return time_row(op, row, arms, machine=machine, protocol=(protocol or Protocol()).eight())


def _slots(arms: Sequence[tuple[Arm, str]]) -> list[_Slot]:
    roles = [role for _, role in arms]
    names = [arm.name for arm, role in arms if role != "control"]
    reasons = [Reason("role", repr(role), ", ".join(ROLES)) for role in roles if role not in ROLES]
    if roles.count("baseline") != 1:
        remedy = "Give one arm the role 'baseline': every ratio divides by it."
        reasons.append(Reason("arms with role baseline", repr(roles.count("baseline")), "exactly 1", remedy))
    if roles.count("control") > 1:
        reasons.append(Reason("arms with role control", repr(roles.count("control")), "at most 1"))
    reasons += [Reason("arm", repr(n), "each name once") for n in sorted(set(names)) if names.count(n) > 1]
    if reasons:
        raise ParameterError("timing", reasons)
    slots = [_Slot(arm, role) for arm, role in arms]
    if "control" not in roles:
        baseline = next(slot for slot in slots if slot.role == "baseline")
        slots.append(_Slot(baseline.arm, "control"))
    return slots


@dataclass
class _RowTiming:
    op: Any
    row: Row
    machine: Machine
    protocol: Protocol
    slots: list[_Slot]
    limit: ErrorLimits | None = None
    """Largest error of a recheck: of the row, the same for all arms and trials; None until it is asked."""

    @property
    def label(self) -> str:
        """The row's label as records show it; the op's cases know the row by its own."""
        return self.row.label + SUFFIXES[self.protocol.mode]

    @property
    def baseline(self) -> _Slot:
        return next(slot for slot in self.slots if slot.role == "baseline")

    def run(self) -> list[dict[str, Any]]:
        place, remedy = f"on row {self.label!r}", "Start a new process, without this arm or this row."
        trials = Trials(self.slots, self.machine, self.protocol, place, remedy)
        # The control takes the plan of the baseline.
        kept = trials.run(self.baseline, self._prepare, self._trial)
        return kept + [self._refusal(slot) for slot in self.slots if slot.refused]

    def _prepare(self, slot: _Slot) -> None:
        """Estimate the time of one call on a few warm sets, plan the graph, and profile one call."""
        machine, protocol = self.machine, self.protocol
        slot.refused = slot.arm.unavailable(machine.device)
        if slot.refused:
            return
        if slot.role == "control" and slot.arm is self.baseline.arm:
            base = self.baseline
            slot.plan, slot.activity, slot.refused = base.plan, base.activity, base.refused
            return
        one = self._sets(1, protocol.seed)
        size = self._size(one[0])
        # Planned once before anything is launched, so that a row that does not fit costs nothing.
        few = min(ESTIMATE_SETS, plan_sets(size, protocol.min_graph_us, protocol).input_sets)
        sets = one if few == 1 else self._sets(few, protocol.seed)
        if self.limit is None:
            self.limit = limit_of(self.op, one[0])
        launchers = _bound(slot, sets)
        replay = machine.timer.prepare(launchers, ESTIMATE_CALLS)
        estimate = min(machine.timer.sample_us(replay, 3, 1, lambda: None)) / ESTIMATE_CALLS
        slot.plan = plan_sets(size, estimate * ESTIMATE_MARGIN, protocol)
        slot.activity = machine.profile(launchers[0], machine.device)

    def _sets(self, count: int, seed: int) -> list[Call]:
        return list(self.op.cases.make_sets(self.row, count, seed, self.machine.device))

    def _size(self, call: Call) -> CallSize:
        tensors = [*call.inputs.values(), *call.outputs.values()]
        footprint = sum(t.numel() * t.element_size() for t in tensors)
        work: Work = self.op.work.work(call)
        return CallSize(work.bytes_moved, footprint, self.machine.l2_bytes, self.machine.memory_bytes)

    def _trial(self, slot: _Slot, trial: int, order: int) -> dict[str, Any]:
        """One arm's part of one trial. All arms of a trial see the same values: power depends on data."""
        machine, protocol = self.machine, self.protocol
        plan = slot.ready_plan
        machine.release()
        seed = protocol.seed + 1 + trial
        sets = self._sets(plan.input_sets, seed)
        machine.synchronise()
        started = machine.clock()
        launchers = _bound(slot, sets)
        machine.synchronise()
        prepare_us = (machine.clock() - started) * 1e6
        replay = machine.timer.prepare(launchers, plan.calls_per_graph)
        readings: list[dict[str, Any]] = []
        whole_us = machine.timer.sample_us(
            replay, protocol.replays, protocol.warmup_replays, lambda: readings.append(machine.telemetry())
        )
        timed = Timed(sets, launchers, replay, seed, plan.calls_per_graph)
        judged = recheck(self.op, self.row, timed, synchronise=machine.synchronise, limit=self.limit)
        samples = [us / plan.calls_per_graph for us in whole_us]
        measured = {"samples_us": samples, "prepare_us": prepare_us, "telemetry": readings[0], "recheck": judged}
        return self._record(slot, {"trial": trial, "order": order, **measured}, self.op.work.work(sets[0]))

    def _record(self, slot: _Slot, measured: dict[str, Any], work: Work) -> dict[str, Any]:
        machine, plan = self.machine, slot.ready_plan
        median_us = statistics.median(measured["samples_us"])
        implied = roofline.bandwidth_gb_s(work.bytes_moved, median_us)
        record = {
            **self._identity(slot),
            "kind": "timing",
            "baseline": self.baseline.arm.name,
            "dropped": _dropped(measured, median_us * plan.calls_per_graph, self.protocol),
            "median_us": median_us,
            "calls_per_graph": plan.calls_per_graph,
            "input_sets": plan.input_sets,
            "bytes_per_call": work.bytes_moved,
            "bytes_rotated": plan.bytes_rotated,
            "l2_bytes": machine.l2_bytes,
            "flops": work.flops,
            "bandwidth_gb_s": implied,
            "copy_bandwidth_gb_s": machine.copy_gb_s,
            "read_bandwidth_gb_s": machine.read_gb_s,
            "roof_us": roofline.roof_us(work, machine.copy_gb_s),
            "kernels": slot.activity.kernels,
            "kernels_reason": slot.activity.reason,
            "timer": machine.timer.name,
            **measured,
        }
        if measured["trial"] > 0:
            # All trials of a row share one process: the first says what it was, the others on which device.
            record["provenance"] = {n: v for n, v in machine.provenance.items() if n == "device"}
        state, state_reason = roofline.record_state(record, self.protocol.copy_allowance)
        return records.validated({**record, "state": state, "state_reason": state_reason})

    def _refusal(self, slot: _Slot) -> dict[str, Any]:
        return records.validated({**self._identity(slot), "kind": "refused", "reason": slot.refused})

    def _identity(self, slot: _Slot) -> dict[str, Any]:
        return {
            "op": self.op.spec.name,
            "row": self.label,
            "axes": dict(self.row.parameters),
            "arm": slot.arm.name,
            "role": slot.role,
            "protocol": self.protocol.label,
            "source_sha256": getattr(slot.arm, "source_sha256", ""),
            "provenance": self.machine.provenance,
        }


def _bound(slot: _Slot, sets: Sequence[Call]) -> list[Launcher]:
    """The arm's launchers; a candidate's may not prepare by contents, since that is part of its work."""
    launchers = slot.arm.bind(sets)
    if slot.role == "candidate" and any(preparation_of(launcher) is not None for launcher in launchers):
        given, remedy = "an object with prepare()", "Do the work in the launch: only baselines and peers may prepare."
        raise TimingError("timing", [Reason(f"launcher of {slot.arm.name}", repr(given), "a callable alone", remedy)])
    return launchers


def _dropped(measured: dict[str, Any], graph_us: float, protocol: Protocol) -> str:
    """Why the trial does not count; empty when it does."""
    judged, disturbed = measured["recheck"], disturbance(measured["telemetry"])
    if not judged["passed"]:
        return f"recheck failed: {judged['detail']}"
    if disturbed:
        return disturbed
    if graph_us < protocol.min_graph_us:
        return f"short: one graph holds {graph_us:.0f} us of work; allowed: at least {protocol.min_graph_us:.0f}"
    return ""
