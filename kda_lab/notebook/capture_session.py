"""A recording as a notebook runs it: record again where that is possible, compare with the committed set, judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pandas.io.formats.style import Styler

from kda_lab import runtime
from kda_lab.captures.agreement import Agreement, agreement
from kda_lab.captures.gemma import missing_extra
from kda_lab.captures.qsa_blocks import attended_blocks
from kda_lab.captures.qsa_gemma import TEXT_FILE, record_qsa
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import ParameterError, Reason, UnavailableError
from kda_lab.notebook import display
from kda_lab.notebook.selection_figure import selection_figure
from kda_lab.notebook.session import Session
from kda_lab.report.style import Picture
from kda_lab.verify.verdict import Verdict

CHOICES = ("auto", "always", "never")
OVERLAP_LIMIT = 0.99
ERROR_LIMIT = 1e-2
"""Two CPUs differ in low bits of FP32 products; after the rounding to BF16 (2^-9) some elements move by one unit."""


@dataclass
class CaptureSession:
    """One recording. `captures` is the new set, or the committed one where nothing was recorded.

    The methods here are those of the QSA set; another op's session overrides the ones named `_…`.
    """

    session: Session
    committed: CaptureSet
    captures: CaptureSet
    why_not: str = ""
    """Why nothing was recorded; empty when something was."""
    records: list[Any] = field(default_factory=list)
    """What the comparison found, one a capture."""

    @classmethod
    def open(cls, name: str, run_dir: str, committed: str) -> CaptureSession:
        """A session over the committed set, a folder below the project.

        Raises:
            CaptureError: the committed set is not what its manifest says.
        """
        captures = CaptureSet.open(runtime.project_path(committed))
        return cls(Session.open(name, run_dir, "cpu"), captures, captures)

    def provenance(self) -> Styler:
        """What this run stands on."""
        return self.session.provenance()

    def record(self, out: str, chosen: Sequence[str], rerecord: str) -> str:
        """Record into `out`, a folder below the project that is replaced; say what was done.

        Args:
            out: never the committed set.
            chosen: what to record: of `tp1`, `tp2r0`, `tp2r1`, five captures each.
            rerecord: `auto` records where the extra `capture` is installed, `always` fails without it,
                `never` only opens the committed set.
        Raises:
            ParameterError: `rerecord` is unknown, or `out` is the committed set.
            UnavailableError: `always`, and the extra is not installed.
        """
        target = runtime.project_path(out)
        self._check(target, rerecord)
        possible, missing = ([], "rerecord is 'never'") if rerecord == "never" else self._possible(chosen)
        if missing and rerecord == "always":
            raise UnavailableError("notebook", missing)
        self.why_not = "" if possible else missing
        if self.why_not:
            return f"Not recorded again, because {self.why_not}. What follows describes the committed set."
        self.captures = CaptureSet.open(self._record(target, possible))
        left_out = f" Left out: {missing}." if missing else ""
        return f"{len(self.captures.names())} captures recorded into {out}.{left_out}"

    def _possible(self, chosen: Sequence[str]) -> tuple[list[str], str]:
        """Which of the chosen parts can be recorded here, and why the others cannot."""
        missing = missing_extra()
        return ([] if missing else list(chosen)), missing

    def _record(self, target: Path, chosen: Sequence[str]) -> Path:
        """Record the chosen parts into a folder that is replaced."""
        return record_qsa(self.committed.path / TEXT_FILE, target, topologies=chosen, replace=True)

    def _compared(self) -> Sequence[Any]:
        """The set at hand against the committed one."""
        return agreement(self.captures, self.committed)

    def _disagreement(self, record: Any) -> str:
        """Why one comparison fails the run; empty when it does not."""
        return disagreement(record)

    def _check(self, target: Path, rerecord: str) -> None:
        reasons = []
        if rerecord not in CHOICES:
            reasons.append(Reason("rerecord", repr(rerecord), ", ".join(CHOICES)))
        if target.resolve() == self.committed.path.resolve():
            reasons.append(Reason("out", repr(str(target)), "another folder than the committed set"))
        if reasons:
            raise ParameterError("notebook", reasons)

    def capture_table(self) -> Styler:
        """The captures at hand."""
        return self.session.capture_table(self.captures)

    def folded(self) -> str:
        """What was folded or resized to meet the op's contract, as the manifest says it."""
        return self.captures.manifest.captures[0].folded

    def producer(self) -> str:
        """What computed the pinned outputs, as the manifest says it."""
        producer = self.captures.manifest.captures[0].producer
        return producer.name if producer is not None else "nothing is pinned"

    def agreement_table(self) -> Styler:
        """New against committed, capture by capture; the committed set against itself where nothing is new."""
        self.records = list(self._compared())
        heads = ("capture", "selection in common", "q", "k", "v", "pinned output", "same bytes")
        lines = [
            (r.name, f"{r.selection_overlap:.4f}", *(f"{e:.2e}" for e in (r.q, r.k, r.v, r.out)), r.same_bits)
            for r in self.records
        ]
        return display.shown(heads, lines, "Errors: relative L2 against the committed set.")

    def selection_picture(self, name: str) -> Picture:
        """Which blocks of the text each layer attends to in one capture."""
        captures = self.captures if name in self.captures.names() else self.committed
        return selection_figure(attended_blocks(captures, name))

    def verdict(self) -> Verdict:
        """Judge integrity and agreement and write the verdict into the run's folder; does not raise."""
        records = self.records or self._compared()
        failures = [str(reason) for captures in (self.committed, self.captures) for reason in captures.verify()]
        failures += [text for record in records if (text := self._disagreement(record))]
        new = 0 if self.why_not else len(self.captures.names())
        evidence = {"captures_verified": len(self.committed.names()), "captures_recorded": new}
        finding = f"{len(self.committed.names())} committed captures are whole; {new} recorded again agree with them"
        if self.why_not:
            finding = f"{len(self.committed.names())} committed captures are whole; none recorded again: {self.why_not}"
        verdict = Verdict.of(finding, evidence, failures)
        verdict.write(self.session.run)
        return verdict


def disagreement(record: Agreement) -> str:
    """Why a recording does not agree with another; empty when it does."""
    errors = (record.q, record.k, record.v, record.out)
    # Each compared on its own: max() of a tuple with NaN may hide the NaN.
    if record.selection_overlap >= OVERLAP_LIMIT and all(error <= ERROR_LIMIT for error in errors):
        return ""
    return (
        f"{record.name}: selection in common {record.selection_overlap:.4f} (at least {OVERLAP_LIMIT}), "
        f"relative errors {', '.join(f'{error:.2e}' for error in errors)} (at most {ERROR_LIMIT})"
    )
