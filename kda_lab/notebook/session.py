"""A replay or sweep as a notebook runs it: captures, arms, verification, timing, pictures, verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pandas.io.formats.style import Styler

import kda_lab
from kda_lab import runtime
from kda_lab.captures.generated import GeneratedCaptures
from kda_lab.captures.rows import capture_rows
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import ParameterError, Reason
from kda_lab.notebook import display
from kda_lab.ops.arms import SourceArm, chosen_arms
from kda_lab.ops.protocol import Arm, Row
from kda_lab.ops.registry import load_op
from kda_lab.report import figures, tables
from kda_lab.report.comparisons import Comparisons, compare
from kda_lab.report.foot import foot
from kda_lab.report.records import RunRecords, read_run
from kda_lab.report.style import Picture
from kda_lab.run_folder import RunFolder, write_json
from kda_lab.timing.protocol import Protocol
from kda_lab.timing.rows import TimingRun, time_rows
from kda_lab.timing.statistics import RowResult
from kda_lab.verify.sweep import ReplayRun, run_replays, run_stress
from kda_lab.verify.verdict import Verdict, judge

CANDIDATES = "notebooks/candidates"
NO_TIMES = "not timed (interpreter)"
Arms = list[tuple[Arm, str]]


@dataclass(frozen=True)
class Selected:
    """Some captures of a set, with the set's interface."""

    captures: CaptureSet
    chosen: tuple[str, ...]

    @property
    def op(self) -> str:
        return self.captures.op

    def names(self) -> list[str]:
        """Names of the chosen captures, in the order of the set."""
        return list(self.chosen)

    def load(self, name: str, device: torch.device | str = "cpu") -> Any:
        """One capture, checked."""
        return self.captures.load(name, device)


@dataclass
class Session:
    """One run of a notebook. Every method is one step and returns what the notebook shows."""

    run: RunFolder
    device: torch.device
    timed: TimingRun | None = None
    kernels_per_call: dict[str, int] = field(default_factory=dict)

    @classmethod
    def open(cls, name: str, run_dir: str = "", device: str = "auto") -> Session:
        """A session writing to `run_dir`, or to reports/local/<name> when that is empty.

        Raises:
            UnavailableError: the device is not there.
        """
        run = RunFolder.at(runtime.project_path(run_dir or f"reports/local/{name}"))
        return cls(run, runtime.resolve_device(device))

    @classmethod
    def reopen(cls, run_dir: str | Path) -> Session:
        """A finished run, to be judged again from its records; needs no GPU.

        Raises:
            ParameterError: the folder holds no parameters of a run of this notebook room.
        """
        run = RunFolder(Path(run_dir))
        try:
            given = json.loads(run.parameters.read_bytes())["parameters"]
            session = cls(run, torch.device("cpu"))
            session.arms(
                given.get("op") or CaptureSet.open(runtime.project_path(given["capture_set"])).op,
                given["kernels"],
                given["baselines"],
            )
        except (OSError, ValueError, KeyError) as error:
            remedy = "Name a folder that a replay or sweep notebook was run into."
            raise ParameterError(
                "notebook", [Reason("run", repr(str(run_dir)), "a finished run", f"{error!r}. {remedy}")]
            ) from error
        return session

    def provenance(self) -> Styler:
        """What this run stands on: code, packages, device. Written to provenance.json when nobody else has."""
        found = runtime.provenance(self.device)
        if not self.run.provenance.exists():
            write_json(self.run.provenance, found)
        wanted = ("torch", "triton", "flashinfer-python")
        facts = {"device": found["device"]["name"], "interpreter": runtime.interpreter_on()}
        facts |= {n: found["versions"][n] for n in ("kda-lab", *wanted)}
        return display.facts(facts)

    def captures(self, path: str, names: Sequence[str] = ()) -> Selected:
        """Captures of a set below the project, all of them when `names` is empty.

        Raises:
            CaptureError: the set or one of its captures is not what its manifest says.
        """
        captures = CaptureSet.open(runtime.project_path(path))
        for name in names:
            captures.entry(name)
        return Selected(captures, tuple(n for n in captures.names() if not names or n in names))

    def synthetic(self, op: str, rows: Sequence[Row], seed: int) -> GeneratedCaptures:
        """The rows of a sweep as captures, drawn from the seed."""
        return GeneratedCaptures(op, rows, seed)

    def rows(self, op: str, topologies: Sequence[str], batches: Sequence[int], kinds: Sequence[str]) -> list[Row]:
        """Rows of the op's cases, one for each topology, batch and length class."""
        return list(load_op(op).cases.rows(topologies, batches, kinds))

    def capture_table(self, captures: Any) -> Styler:
        """Name, kind, axes, lengths and hash of each capture."""
        lines = []
        for name in captures.names():
            capture = captures.load(name)
            facts = capture.call.facts
            axes = ", ".join(f"{k}={v}" for k, v in facts.items() if isinstance(v, int))
            lengths = _short(facts.get("lengths", []))
            lines.append((name, capture.kind, axes, lengths, capture.sha256[:12]))
        return display.shown(("capture", "kind", "axes", "KV rows", "sha256"), lines)

    def arms(self, op: str, kernels: Sequence[str], baselines: Sequence[str]) -> Arms:
        """Candidates, the baseline and its peers.

        Raises:
            ParameterError: a name is unknown, or there is no kernel or no baseline.
        """
        if not kernels or not baselines:
            given = f"{len(kernels)} kernels and {len(baselines)} baselines"
            raise ParameterError("notebook", [Reason("arms", repr(given), "at least one of each")])
        exported = Path(kda_lab.__file__).parent / "kernels"
        arms = chosen_arms(op, kernels, baselines, runtime.project_path(CANDIDATES), exported)
        self.kernels_per_call = {a.name: a.declaration.kernels_per_call for a, _ in arms if isinstance(a, SourceArm)}
        return arms

    def arm_table(self, arms: Arms) -> Styler:
        """Each arm with its role, its source and whether it can run here."""
        lines = [
            (a.name, role, a.source_sha256[:12] or "library", a.unavailable(self.device) or "runs here")
            for a, role in arms
        ]
        return display.shown(("arm", "role", "source", "here"), lines)

    def replay(self, captures: Any, arms: Arms, stress_launches: int = 0) -> ReplayRun:
        """Judge every capture through every arm, with gate power; resumes a killed run.

        On a GPU each candidate is also launched `stress_launches` times more on every capture, bits compared.
        """
        done = run_replays(captures.op, captures, arms, self.device, self.run)
        if stress_launches and self.device.type == "cuda":
            run_stress(captures.op, captures, arms, self.device, self.run, stress_launches)
        return done

    def replay_table(self) -> Styler:
        """Errors, limits and checks of every replay."""
        return display.report_table(tables.verify_table(self._records().replays))

    def power_table(self) -> Styler:
        """Every mutant: on how many captures it was killed, by which check, and where it does not apply."""
        return display.report_table(tables.mutant_table(self._records().power))

    def error_figure(self) -> Picture:
        """Error against tolerance, one line a capture."""
        records = self._records()
        return figures.errors(records.verify, foot=foot(records))

    def time_captures(self, captures: Selected, arms: Arms, trials: int) -> TimingRun:
        """Time every arm on copies of the recorded tensors; nothing on a CPU."""
        op, rows = capture_rows(captures.captures, captures.names())
        self.timed = time_rows(op, rows, arms, self.run, device=self.device, protocol=_protocol(trials))
        return self.timed

    def time_rows(self, op: str, rows: Sequence[Row], arms: Arms, trials: int) -> TimingRun:
        """Time every arm on the rows of a sweep; nothing on a CPU."""
        self.timed = time_rows(op, rows, arms, self.run, device=self.device, protocol=_protocol(trials))
        return self.timed

    def speedup_figure(self) -> Picture | str:
        """Speedup of the first candidate over the baseline, one line a row."""
        return self._timing_figure(figures.speedup)

    def peer_figure(self) -> Picture | str:
        """Speedup of the first candidate over the strongest peer; a sentence when no peer was timed."""
        found = self._comparisons()
        peer = found.strongest_peer
        if not peer:
            return self._why_not_timed() or "no peer was timed"
        rows = found.against_peers[peer]
        return figures.speedup(rows, candidate=self._candidate(rows), foot=foot(self._records()))

    def batch_figure(self) -> Picture | str:
        """Speedup over the baseline against the batch, one line a length class."""
        return self._timing_figure(figures.speedup_by_batch)

    def latency_figure(self) -> Picture | str:
        """Latency of every arm against the roofline."""
        rows = self._comparisons().rows
        return figures.latency(rows, foot=foot(self._records())) if rows else self._why_not_timed()

    def row_table(self) -> Styler | str:
        """Every timed row, refused ones included."""
        rows = self._comparisons().rows
        return display.report_table(tables.rows_table(rows)) if rows else self._why_not_timed()

    def batch_table(self) -> Styler | str:
        """Geomean and minimum of the ratio for each batch."""
        rows = self._comparisons().rows
        return display.report_table(tables.batch_table(rows)) if rows else self._why_not_timed()

    def verdict(self, because: str = "") -> Verdict:
        """Judge the run's records, write verdict.json and say the result in one line.

        Args:
            because: why finished records are judged again; it becomes part of the sentence.
        """
        records = self._records()
        found, rows = judge(records.verify), compare(records).rows
        times, failures = self._timing_findings(records, rows)
        evidence = {**found.evidence, "timed_rows": len({r.row for r in rows})}
        sentence = found.sentence.split(": ", 1)[1]
        verdict = found
        if found.word != "ambiguous":
            again = f"; judged again: {because}" if because else ""
            verdict = Verdict.of(f"{sentence}; {times}{again}", evidence, [*found.failures, *failures])
        verdict.write(self.run)
        print(verdict.sentence)  # noqa: T201
        return verdict

    def _timing_findings(self, records: RunRecords, rows: Sequence[RowResult]) -> tuple[str, list[str]]:
        """One phrase on the times, and what about them fails the run."""
        mine = [r for r in rows if r.role == "candidate"]
        if not mine:
            return self._why_not_timed(), []
        failures = [f"{r.arm} on {r.row}: {r.state or 'not timed'}, {r.reason}" for r in mine if r.state != "cold"]
        failures += [f"{r.arm} on {r.row}: slower, {r.ratio:.3g}x" for r in mine if r.verdict == "slower"]
        for record in records.trials:
            wanted = self.kernels_per_call.get(record["arm"])
            ran = sum((record.get("kernels") or {}).values())
            if record["role"] == "candidate" and wanted is not None and ran != wanted:
                failures.append(f"{record['arm']} on {record['row']}: {ran} kernels a call, declared {wanted}")
        counts = {word: sum(r.verdict == word for r in mine) for word in ("faster", "same", "ambiguous", "slower")}
        words = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
        return f"{len(mine)} rows timed: {words or 'no verdict'}", sorted(set(failures))

    def _records(self) -> RunRecords:
        return read_run(self.run)

    def _comparisons(self) -> Comparisons:
        return compare(self._records())

    def _candidate(self, rows: Sequence[Any]) -> str:
        return next(r.arm for r in rows if r.role == "candidate")

    def _timing_figure(self, draw: Callable[..., Picture]) -> Picture | str:
        rows = self._comparisons().rows
        if not rows:
            return self._why_not_timed()
        return draw(rows, candidate=self._candidate(rows), foot=foot(self._records()))

    def _why_not_timed(self) -> str:
        return self.timed.reason if self.timed and self.timed.reason else NO_TIMES


def _protocol(trials: int) -> Protocol:
    return replace(Protocol(), trials=trials)


def _short(lengths: Sequence[int]) -> str:
    if len(lengths) <= 4:
        return ", ".join(map(str, lengths))
    return f"{len(lengths)} rows, {min(lengths)} to {max(lengths)}"
