"""An export as a notebook runs it: evidence, export, the contract's tables, one call through the facade."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pandas.io.formats.style import Styler

from kda_lab import interpreter, runtime
from kda_lab.captures.store import Capture, CaptureSet
from kda_lab.contracts.facts import CallFacts, TensorFacts, call_facts
from kda_lab.contracts.model import Contract, ShapeRule
from kda_lab.contracts.shapes import in_words
from kda_lab.dispatch.dispatcher import Dispatcher
from kda_lab.dispatch.explanation import Explanation
from kda_lab.dispatch.loader import read_contract
from kda_lab.errors import ContractError, VerificationError
from kda_lab.export.exporter import Destination, export_kernel, judge
from kda_lab.notebook import display
from kda_lab.notebook.session import Session
from kda_lab.ops.registry import load_op
from kda_lab.run_folder import RunFolder
from kda_lab.verify.metrics import rel_l2
from kda_lab.verify.verdict import Verdict

HOPPER = (9, 0)


@dataclass
class ExportSession:
    """One export. `folder` is set once the kernel stands in place."""

    session: Session
    op: str
    kernels_dir: Path
    folder: Path | None = None
    facade: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, name: str, run_dir: str, op: str, kernels_dir: str) -> ExportSession:
        """A session that exports kernels of `op` into `kernels_dir`, a folder below the project."""
        return cls(Session.open(name, run_dir), op, runtime.project_path(kernels_dir))

    def provenance(self) -> Styler:
        """What this run stands on."""
        return self.session.provenance()

    def evidence_table(self, runs: Sequence[str], candidate: str, capture_set: str) -> Styler:
        """What the runs prove for this very source; nothing is written.

        Raises:
            ExportError: the runs are of another source, or a gate did not pass there.
        """
        judged = judge(_runs(runs), runtime.project_path(candidate), [runtime.project_path(capture_set)])
        lines = []
        for capability, evidence in judged.evidences.items():
            lines += [
                (_words(capability), "replays of captures, all checks passed", len(evidence.replays)),
                (
                    _words(capability),
                    "mutants killed",
                    f"{sum(p['killed'] for p in evidence.powers)}/{sum(p['total'] for p in evidence.powers)}",
                ),
                (_words(capability), "rows timed", len({r.row for r in evidence.rows})),
            ]
        return display.shown(("capability", "evidence", "count"), lines)

    def export(self, runs: Sequence[str], candidate: str, capture_set: str, evidence_dir: str) -> Path:
        """Export the candidate; a failed gate leaves the package as it was.

        Raises:
            ExportError: a gate failed; the text names it.
        """
        self.folder = export_kernel(
            _runs(runs),
            runtime.project_path(candidate),
            Destination(self.kernels_dir, runtime.project_path(evidence_dir)),
            captures=[runtime.project_path(capture_set)],
        )
        return self.folder

    @property
    def contract(self) -> Contract:
        """The exported kernel's contract.

        Raises:
            VerificationError: nothing was exported yet.
        """
        if self.folder is None:
            raise VerificationError(
                "notebook", "folder is None; allowed: an exported kernel's folder. Run the export cell first."
            )
        return read_contract(self.folder)

    @functools.cached_property
    def dispatcher(self) -> Dispatcher:
        """Dispatch over the folder that was exported into."""
        return Dispatcher(self.kernels_dir)

    def architecture_table(self) -> Styler:
        """Each architecture, how far it is supported, and what its compiled code needs."""
        lines = []
        for found in self.contract.architectures:
            shared = max((r.shared_bytes for r in found.resources), default=0)
            registers = max((r.registers or 0 for r in found.resources), default=0)
            spills = max((r.spill_bytes or 0 for r in found.resources), default=0)
            cited = found.evidence.path if found.evidence else "none: never ran there"
            lines.append(
                (_words(found.capability), found.status, len(found.resources), shared, registers, spills, cited)
            )
        heads = ("capability", "status", "units", "shared B, most", "registers, most", "spills B, most", "evidence")
        return display.shown(heads, lines)

    def dispatch_table(self) -> Styler:
        """The callable and the dispatched shapes, each with its basis."""
        lines = [("callable", _axes(rule), rule.basis) for rule in self.contract.callable]
        lines += [("dispatched", _axes(rule), rule.basis) for rule in self.contract.dispatched]
        return display.shown(("set", "shapes", "basis"), lines)

    def explain(self, capture_set: str, name: str, capability: tuple[int, int] = HOPPER) -> Explanation:
        """What dispatch would do with a capture's call on a device of that capability; nothing is launched."""
        capture = self._capture(capture_set, name, "cpu")
        spec = load_op(self.op).spec
        facts = call_facts(spec, capture.call.inputs, capture.call.scalars, capture.call.outputs)
        moved = {
            n: TensorFacts(**{**vars(t), "device_type": "cuda", "device_index": 0}) for n, t in facts.tensors.items()
        }
        return self.dispatcher.explain_facts(spec, CallFacts(moved, facts.scalars, capability))

    def call_facade(self, capture_set: str, name: str) -> Styler:
        """Call the op as production does, on a capture's tensors, and compare with the pinned output.

        On a CPU the unforced call must be refused, since no contract holds there; the forced kernel then runs
        in the interpreter.
        """
        device = self.session.device
        capture = self._capture(capture_set, name, device)
        spec = load_op(self.op).spec
        tensors = [capture.call.inputs[n] for n in spec.tensors]
        facts = {"device": str(device), "unforced call": "dispatched", "kernel": self.contract.kernel}
        if device.type == "cpu":
            interpreter.ensure_faithful()
            try:
                self.dispatcher.call(spec, tensors, capture.call.scalars, {"out": None})
            except ContractError as refusal:
                facts["unforced call"] = f"refused: {refusal.reasons[0]}"
        forced = self.contract.kernel if device.type == "cpu" else None
        out = self.dispatcher.call(spec, tensors, capture.call.scalars, {"out": None}, forced)
        error = rel_l2(out.cpu(), capture.pinned["out"])
        self.facade = {**facts, "rel-L2 against the pinned output": float(error)}
        return display.facts({**self.facade, "counters": str(self.dispatcher.statistics())})

    def verdict(self) -> Verdict:
        """Pass when the kernel is in place, loads, and agreed with the pinned output through the facade."""
        failures = []
        error = self.facade.get("rel-L2 against the pinned output")
        if error is None or not error <= FACADE_LIMIT:
            failures.append(f"facade: rel-L2 against the pinned output is {error}; allowed: at most {FACADE_LIMIT}")
        if self.session.device.type == "cpu" and not str(self.facade.get("unforced call")).startswith("refused"):
            failures.append("facade: a CPU call was not refused although no contract holds there")
        contract = self.contract
        statuses = ", ".join(f"{_words(a.capability)} {a.status}" for a in contract.architectures)
        finding = f"{contract.kernel} version {contract.version} exported: {statuses}; facade error {error:.2e}"
        verdict = Verdict.of(finding, {"architectures": len(contract.architectures)}, failures)
        verdict.write(self.session.run)
        print(verdict.sentence)  # noqa: T201
        return verdict

    def _capture(self, capture_set: str, name: str, device: torch.device | str) -> Capture:
        return CaptureSet.open(runtime.project_path(capture_set)).load(name, device)


FACADE_LIMIT = 5e-3
"""BF16 output against BF16 output of another kernel: two roundings, so wider than against an FP32 oracle."""


def _runs(paths: Sequence[str]) -> list[RunFolder]:
    return [RunFolder(runtime.project_path(path)) for path in paths]


def _words(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _axes(rule: ShapeRule) -> str:
    return ", ".join(f"{axis} {in_words(value)}" for axis, value in rule.axes.items())
