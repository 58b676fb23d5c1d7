"""The JSON records of a run's `verify.jsonl`: replays, gate power, stress and refusals."""

from __future__ import annotations

import math
from typing import Any

from kda_lab import runtime
from kda_lab.ops.protocol import Arm
from kda_lab.verify.power import Power
from kda_lab.verify.replay import Replay
from kda_lab.verify.stress import Stress

Record = dict[str, Any]


def number(value: float | None) -> float | None:
    """A float that JSON can hold: NaN and infinity become None, which no limit lets pass."""
    return value if value is not None and math.isfinite(value) else None


def to_record(replay: Replay, role: str, provenance: Record, stand_in: str = "") -> Record:
    """The `replay` record of one (capture, arm); `role` is `candidate`, `baseline`, `control` or `peer`.

    `scalars` is there for ops with dtype scalars only, `stand_in` where something else was judged in the kernel's
    place: `torch twin`.
    """
    scalars = {"scalars": dict(replay.scalars)} if replay.scalars else {}
    instead = {"stand_in": stand_in} if stand_in else {}
    return {
        "kind": "replay",
        "op": replay.op,
        "capture": replay.capture,
        "capture_sha256": replay.capture_sha256,
        "capture_kind": replay.capture_kind,
        "axes": replay.axes,
        **scalars,
        **instead,
        "arm": replay.arm,
        "role": role,
        "source_sha256": replay.source_sha256,
        "device": replay.device,
        "interpreter": runtime.interpreter_on() and replay.device == "cpu",
        "checks": [
            {
                "name": c.name,
                "passed": c.passed,
                "value": number(c.value),
                "limit": number(c.limit),
                "detail": c.detail or ("" if math.isfinite(c.value) else f"value is {c.value}"),
            }
            for c in replay.checks
        ],
        "skipped": replay.skipped,
        "passed": replay.passed,
        "errors": {name: number(value) for name, value in replay.errors.items()},
        "provenance": provenance,
    }


def power_record(power: Power, provenance: Record) -> Record:
    """The `power` record of one capture."""
    return {
        "kind": "power",
        "op": power.op,
        "capture": power.capture,
        "capture_sha256": power.capture_sha256,
        "killed": power.killed,
        "total": power.total,
        "control": {"arm": "emulated", "passed": not power.control_failed, "failed": list(power.control_failed)},
        "mutants": [
            {"name": m.name, "killed": m.killed, "by": m.by, "applies": m.applies, "why_not": m.why_not}
            for m in power.mutants
        ],
        "provenance": provenance,
    }


def stress_record(op_name: str, stress: Stress, role: str, provenance: Record) -> Record:
    """The `stress` record of one (capture, arm)."""
    return {
        "kind": "stress",
        "op": op_name,
        "capture": stress.capture,
        "capture_sha256": stress.capture_sha256,
        "arm": stress.arm,
        "role": role,
        "source_sha256": stress.source_sha256,
        "launches": stress.launches,
        "differing": stress.differing,
        "nonzero_state": stress.nonzero_state,
        "failure": stress.failure,
        "passed": stress.passed,
        "provenance": provenance,
    }


def refused_record(capture: Any, arm: Arm, role: str, reason: str, provenance: Record) -> Record:
    """The `refused` record of an arm that cannot run on the device; `reason` is its own sentence."""
    return {
        "kind": "refused",
        "op": capture.call.op,
        "capture": capture.name,
        "capture_sha256": capture.sha256,
        "axes": dict(capture.call.facts),
        "arm": arm.name,
        "role": role,
        "source_sha256": arm.source_sha256,
        "reason": reason,
        "provenance": provenance,
    }
