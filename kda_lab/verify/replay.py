"""Replay one capture through one arm and judge it: `replay(op, arm, capture, device) -> Replay`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kda_lab.errors import VerificationError
from kda_lab.ops.protocol import Arm
from kda_lab.verify.checks import Check, CheckResult, checks_of
from kda_lab.verify.observation import Observation, Settings, observe
from kda_lab.verify.reference import Contents, Reference, make_reference, worst_rel_l2
from kda_lab.verify.tamper import require_untouched


@dataclass(frozen=True)
class Replay:
    """One (capture, arm): every check with its value, and the errors as numbers."""

    op: str
    capture: str
    capture_sha256: str
    capture_kind: str
    axes: dict[str, Any]
    arm: str
    source_sha256: str
    device: str
    checks: tuple[CheckResult, ...]
    errors: dict[str, float | None]
    """`fp32 fp64 pinned row_max floor floor_row_max pinned_fp32`: rel-L2; None where there is nothing to compare.

    With `updated` and `floor_updated` where the op updates tensors in place that have a limit of their own; the
    others leave those out, except for `fp64`.
    """
    skipped: dict[str, str] = field(default_factory=dict)
    """Check name to the reason why it does not apply."""
    scalars: dict[str, Any] = field(default_factory=dict)
    """Values of the op's dtype scalars: `{"out_dtype": "bfloat16"}`; what was judged says nothing about others."""

    @property
    def passed(self) -> bool:
        """Every check passed, and there was at least one."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed, in order."""
        return tuple(check.name for check in self.checks if not check.passed)


def replay(
    op: Any,
    arm: Arm,
    capture: Any,
    device: torch.device | str,
    settings: Settings | None = None,
    checks: Sequence[Check] | None = None,
    reference: Reference | None = None,
) -> Replay:
    """Run an arm on a capture's tensors with poison, guards and changed contents, and judge the result.

    Args:
        op: the op's modules, from `ops.registry.load_op`.
        arm: what is judged; its own failures are findings (check `launch`), not exceptions.
        capture: `.name .kind .call .pinned .sha256`, from `captures.store` or synthetic.
        device: where it runs.
        settings: launches and role; the defaults judge a candidate.
        checks: the rules, those of the op when None; leave one out to see what it alone would catch.
        reference: from `make_reference` for this capture and device, to save its cost; made here when None.

    Raises:
        VerificationError: the arm cannot run on the device, no checks are given, the reference is not of
            this capture, an oracle is not sound, or the judging code was changed (`tamper`).
    """
    device = torch.device(device)
    reason = arm.unavailable(device)
    if reason:
        raise VerificationError("verify", f"arm {arm.name} cannot be judged on {device}: {reason}.")
    checks = checks_of(op) if checks is None else checks
    if not checks:
        raise VerificationError("verify", "checks is empty; allowed: at least one check, such as CHECKS.")
    if reference is None:
        reference = make_reference(op, capture, device)
    _matches(reference, capture)
    seen = observe(arm, reference, settings or Settings())
    require_untouched(arm.name)
    results = {check.name: check.result(seen) for check in checks}
    return Replay(
        op=capture.call.op,
        capture=capture.name,
        capture_sha256=capture.sha256,
        capture_kind=capture.kind,
        axes=dict(capture.call.facts),
        arm=arm.name,
        source_sha256=arm.source_sha256,
        device=device.type,
        checks=tuple(result for result in results.values() if result is not None),
        errors=_errors(seen),
        skipped={name: _why_skipped(name) for name, result in results.items() if result is None},
        scalars={name: capture.call.scalars[name] for name in op.spec.dtypes},
    )


def _matches(reference: Reference, capture: Any) -> None:
    if (reference.capture, reference.sha256) != (capture.name, capture.sha256):
        raise VerificationError(
            "verify",
            f"reference is of capture {reference.capture!r}; allowed: {capture.name!r}, by name and SHA-256."
            " Make it with make_reference(op, capture, device).",
        )


def _errors(seen: Observation) -> dict[str, float | None]:
    reference, original = seen.reference, seen.reference.original
    first = seen.phases.get("first")
    outputs = first.outputs if first is not None else None
    return {
        "fp32": original.error(outputs) if outputs else None,
        "fp64": worst_rel_l2(outputs, original.fp64) if outputs else None,
        "pinned": worst_rel_l2(outputs, reference.pinned) if outputs and reference.pinned else None,
        "row_max": original.row_error(outputs) if outputs else None,
        **(_updated_errors(original, outputs) if original.updated else {}),
        "floor": original.floor,
        "floor_row_max": original.floor_row_max,
        "pinned_fp32": reference.pinned_fp32,
    }


def _updated_errors(original: Contents, outputs: dict[str, torch.Tensor] | None) -> dict[str, float | None]:
    return {
        "updated": original.updated_error(outputs) if outputs else None,
        "floor_updated": original.floor_updated,
    }


def _why_skipped(name: str) -> str:
    if name == "error_pinned":
        return "the capture has no pinned output"
    return "the arm fixes lengths when it is bound, which only baselines and peers may"
