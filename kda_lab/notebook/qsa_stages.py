"""One stage of the QSA pipeline: its arm, one launch on poisoned outputs, its check, and its calls as timing rows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import kda_lab
from kda_lab import interpreter, qsa, runtime
from kda_lab.captures.rows import CapturedCases
from kda_lab.errors import ParameterError, Reason
from kda_lab.ops.arms import SourceArm, candidate_arm, chosen_arms, launcher
from kda_lab.ops.protocol import Arm, Call, Launcher, Row
from kda_lab.ops.registry import Op, load_op
from kda_lab.report.qsa_stage_figure import StageCheck
from kda_lab.timing.recheck import limit_of, poison, unwritten
from kda_lab.verify import metrics
from kda_lab.verify.reference import judges_elements

CANDIDATES = "notebooks/candidates"
PACKED_KERNEL = "qsa_packed_decode_grouped"
"""Exported kernel that the door is told to take where dispatch serves no device: on a CPU, in the interpreter."""


@dataclass(frozen=True)
class DoorArm:
    """`kda_lab.qsa.packed_decode`: what dispatch picks on a GPU, a named exported kernel on a CPU."""

    name: str = "kda_lab.qsa.packed_decode"
    source_sha256: str = ""
    reads_live_lengths: bool = True

    def unavailable(self, device: torch.device) -> str:
        """Empty: the door takes every device; where no kernel may run, the call itself says why."""
        return ""

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call, through dispatch."""
        on_gpu = bool(calls) and calls[0].device.type == "cuda"
        if not on_gpu:
            interpreter.ensure_faithful()
        kernel = None if on_gpu else PACKED_KERNEL
        door = functools.partial(qsa.packed_decode, kernel=kernel)
        return [launcher(door, load_op("qsa.packed_decode").spec, call) for call in calls]


def kernel_arm(op: str, stem: str = "") -> SourceArm:
    """The candidate of an op that a stage runs: the named one, or the first of its folder.

    Raises:
        ParameterError: there is no candidate, or none of that name.
    """
    folder = runtime.project_path(CANDIDATES) / op
    found = {path.stem: path for path in sorted(folder.glob("*.py"))}
    if not found or (stem and stem not in found):
        allowed = ", ".join(found) or f"a file in {folder}"
        raise ParameterError("notebook", [Reason(f"kernel of {op}", repr(stem), allowed)])
    return candidate_arm(found[stem] if stem else next(iter(found.values())))


def run_stage(arm: Arm, call: Call) -> None:
    """Launch once on poisoned outputs."""
    poison(call)
    arm.bind([call])[0]()


def check_stage(arm: Arm, call: Call) -> StageCheck:
    """What the arm left in the call's outputs, against the op's oracle and by the op's limits for synthetic data.

    Where the op says how far each element may lie from the FP64 oracle, one element beyond that fails too: a rel-L2
    over thousands of cache slots hides a wrong one.
    """
    op = load_op(call.op)
    exact, limit = op.oracle.oracle_fp32(call), limit_of(op, call).plain
    error = metrics.worst([metrics.rel_l2(call.outputs[name], reference) for name, reference in exact.items()])
    faults = [f"{unwritten([call])} output keeps poison"] if unwritten([call]) else []
    if not error <= limit:
        faults.append(f"error is {error:.3g}; allowed: at most {limit:.3g}")
    element = _element_error(op, call) if judges_elements(op) else 0.0
    if not element <= 1:
        faults.append(f"the worst element is {element:.3g} times its allowance from FP64")
    return StageCheck(call.label, arm.name, error, limit, "rel-L2" if limit else "every element", "; ".join(faults))


def _element_error(op: Op, call: Call) -> float:
    exact = op.oracle.oracle_fp64(call)
    allowed = op.oracle.allowance(call, exact)
    return metrics.worst([metrics.element_max(call.outputs[n], exact[n], most) for n, most in allowed.items()])


@dataclass(frozen=True)
class StageCall:
    """One call of a run under the name of its stage, as `captures.rows` takes a capture."""

    name: str
    call: Call


@dataclass(frozen=True)
class StageCalls:
    """The call of one stage as a capture set, so that it is timed on its own contents."""

    call: Call

    def load(self, name: str, device: torch.device | str = "cpu") -> StageCall:
        """The call, copied to `device`."""
        return StageCall(name, self.call.to(device))


def timing_row(call: Call) -> tuple[Op, list[Row]]:
    """The op with copies of this very call as input sets, and its one row, labelled as the stage."""
    op = load_op(call.op)
    axes = {name: value for name, value in call.facts.items() if isinstance(value, int)}
    row = Row(call.op, call.label, {**axes, "lengths": "pipeline"})
    cases = CapturedCases(StageCalls(call), op.cases)  # type: ignore[arg-type]
    return replace(op, cases=cases), [row]  # type: ignore[arg-type]


def ways_to_attend(kernels: Sequence[str]) -> list[tuple[Arm, str]]:
    """Arms of the same attention from the same tokens: direct kernels, then compaction and FlashInfer.

    Raises:
        ParameterError: no kernel or arm of such a name.
    """
    exported = Path(kda_lab.__file__).parent / "kernels"
    candidates = runtime.project_path(CANDIDATES)
    return chosen_arms("qsa.paged_decode", kernels, WAYS, candidates, exported)


WAYS = ("compact_then_packed", "flashinfer_paged_page1")
"""Arms of `qsa.paged_decode` that a pipeline could use instead of the direct kernel; the first one is the baseline."""
