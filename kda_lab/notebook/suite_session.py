"""The suites of an op as a notebook runs them: one arm, every suite bounded in time, a table and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pandas.io.formats.style import Styler

import kda_lab
from kda_lab import runtime
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import ParameterError, Reason
from kda_lab.notebook import display
from kda_lab.notebook.session import CANDIDATES, Session
from kda_lab.ops.arms import chosen_arms, find_arm
from kda_lab.ops.protocol import Arm
from kda_lab.ops.registry import load_op
from kda_lab.run_folder import write_json_lines
from kda_lab.suites import qsa_packed_decode
from kda_lab.suites.bench import Bench
from kda_lab.suites.suite import Result, Suite, chosen, run_suites, to_record
from kda_lab.verify.verdict import Verdict

FILE = "suites.jsonl"
SUITES: dict[str, tuple[Suite, ...]] = {"qsa.packed_decode": qsa_packed_decode.SUITES}


@dataclass
class SuiteSession:
    """One run of an op's suites on one arm. Every method is one step and returns what the notebook shows."""

    session: Session
    bench: Bench
    suites: list[Suite]
    results: list[Result] = field(default_factory=list)

    @classmethod
    def open(
        cls, session: Session, capture_set: str, kernel: str, names: Sequence[str], stress_launches: int, seed: int
    ) -> SuiteSession:
        """Suites of the op of a capture set.

        Args:
            session: gives the run's folder and the device.
            capture_set: below the project; the stress suite launches its captures.
            kernel: a candidate's stem, an exported kernel, or one of the op's own arms.
            names: suites to run, all of the op's where empty.
            stress_launches: a capture, on a GPU; at least 1.
            seed: of the synthetic calls.

        Raises:
            ParameterError: the op has no suites, or a name is unknown.
        """
        captures = CaptureSet.open(runtime.project_path(capture_set))
        reasons = []
        if captures.op not in SUITES:
            reasons.append(Reason("op of the capture set", repr(captures.op), ", ".join(SUITES)))
        if stress_launches < 1:
            reasons.append(Reason("stress_launches", repr(stress_launches), "1 or more"))
        if reasons:
            raise ParameterError("notebook", reasons)
        op, suites = load_op(captures.op), chosen(SUITES[captures.op], names)
        bench = Bench(op, _arm(captures.op, kernel), session.device, captures, seed, stress_launches)
        return cls(session, bench, suites)

    def geometry(self) -> Styler:
        """What is run: the arm and its source, where, and every suite with what must hold."""
        arm = self.bench.arm
        here = arm.unavailable(self.session.device) or self.bench.stand_in or "runs here"
        found = {"arm": arm.name, "source": arm.source_sha256[:12] or "library", "here": here}
        found |= {"of overlapping launches its contract says": self.bench.concurrency or "nothing: it has none"}
        return display.facts({**found, **{suite.name: suite.what for suite in self.suites}})

    def run(self, seconds: float) -> Styler:
        """Every suite in its order, each for about `seconds`; written to suites.jsonl."""
        self.results = run_suites(self.suites, self.bench, seconds)
        write_json_lines(self.session.run.path / FILE, [to_record(result, self.bench) for result in self.results])
        heads = ("suite", "cases", "of", "right", "launches", "seconds", "verdict")
        lines = [
            (r.suite, r.cases, r.planned, r.passed_cases, r.launches, f"{r.seconds:.1f}", word(r)) for r in self.results
        ]
        return display.shown(heads, lines)

    def remarks(self) -> Styler:
        """Faults and notes of the first cases of each suite that had any."""
        lines = [(r.suite, "fault", text) for r in self.results for text in r.faults]
        return display.shown(
            ("suite", "kind", "case"), lines + [(r.suite, "note", t) for r in self.results for t in r.notes]
        )

    def verdict(self) -> Verdict:
        """Passed when every suite that could run is right; written into the run's folder, not raised."""
        ran = [r for r in self.results if not r.skipped]
        failures = [f"{r.suite}: {text}" for r in ran for text in r.faults]
        failures += [] if ran else ["no suite was run"]
        cases, right = sum(r.cases for r in ran), sum(r.passed_cases for r in ran)
        launches = sum(r.launches for r in ran)
        words = f"{right} of {cases} cases of {len(ran)} suites right in {launches} launches of {self._name}"
        for title, names in (
            ("cut short", [r.suite for r in ran if r.cut]),
            ("not run", [r.suite for r in self.results if r.skipped]),
        ):
            words += f"; {title}: {', '.join(names)}" if names else ""
        evidence = {"suites": len(ran), "cases": cases, "right": right, "launches": launches}
        verdict = Verdict.of(words, evidence, failures)
        verdict.write(self.session.run)
        return verdict

    @property
    def _name(self) -> str:
        return f"{self.bench.arm.name}{f' ({self.bench.stand_in})' if self.bench.stand_in else ''}"


def word(result: Result) -> str:
    """A suite's verdict in a word or a sentence."""
    if result.skipped:
        return f"not run: {result.skipped}"
    return ("right" if result.passed else "WRONG") + (", cut short" if result.cut else "")


def _arm(op: str, kernel: str) -> Arm:
    """A kernel's arm, or one of the op's own: its baselines obey the same laws."""
    if kernel in [arm.name for arm in load_op(op).baselines.ARMS]:
        return find_arm(op, kernel)
    exported = Path(kda_lab.__file__).parent / "kernels"
    return chosen_arms(op, [kernel], [], runtime.project_path(CANDIDATES), exported)[0][0]
