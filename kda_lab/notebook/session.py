"""A replay or sweep as a notebook runs it: captures, arms, verification, timing, pictures, verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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
from kda_lab.notebook.arm_choice import given_or_all
from kda_lab.notebook.row_choice import chosen_rows, matching_rows
from kda_lab.ops.arms import SourceArm, chosen_arms
from kda_lab.ops.protocol import Arm, Row
from kda_lab.ops.registry import Op
from kda_lab.report import figures, tables
from kda_lab.report.comparisons import Comparisons, compare
from kda_lab.report.eight_figure import rotated_shares
from kda_lab.report.foot import foot
from kda_lab.report.records import RunRecords, read_run
from kda_lab.report.style import Picture
from kda_lab.run_folder import RunFolder, write_json
from kda_lab.timing.protocol import SUFFIXES, Mode, Protocol
from kda_lab.timing.rows import TimingRun, time_rows
from kda_lab.timing.statistics import RowResult
from kda_lab.verify.sweep import ReplayRun, run_replays, run_stress
from kda_lab.verify.verdict import Verdict, judge

CANDIDATES = "notebooks/candidates"
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
    fallbacks: frozenset[str] = frozenset()
    """Arms whose kernel the op falls back on: being slower than the baseline is no failure of theirs."""

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

    def captures(self, path: str, names: Sequence[str] = (), op: str = "") -> Selected:
        """Captures of a set below the project, all of them when `names` is empty.

        Raises:
            CaptureError: the set or one of its captures is not what its manifest says.
            ParameterError: they are of another op than the one that is named.
        """
        captures = CaptureSet.open(runtime.project_path(path))
        if op and captures.op != op:
            raise ParameterError(
                "notebook", [Reason(f"op of {path}", repr(captures.op), repr(op), "Name a set of the op.")]
            )
        for name in names:
            captures.entry(name)
        return Selected(captures, tuple(n for n in captures.names() if not names or n in names))

    def synthetic(self, op: str, rows: Sequence[Row], seed: int) -> GeneratedCaptures:
        """The rows of a sweep as captures, drawn from the seed."""
        return GeneratedCaptures(op, rows, seed)

    def rows(self, op: str, groups: Sequence[str], batches: Sequence[int], kinds: Sequence[str]) -> list[Row]:
        """Rows of the op's cases, or those that its source published: see `row_choice.chosen_rows`."""
        return chosen_rows(op, groups, batches, kinds)

    def rows_where(self, op: str, axes: Mapping[str, Sequence[Any]]) -> list[Row]:
        """Rows of the op's cases whose axes have one of these values: see `row_choice.matching_rows`."""
        return matching_rows(op, axes)

    def capture_table(self, captures: Any) -> Styler:
        """Name, kind, axes, lengths (or class, for an op without lengths) and hash of each capture."""
        lines, head = [], "class"
        for name in captures.names():
            capture = captures.load(name)
            facts = capture.call.facts
            axes = ", ".join(f"{k}={v}" for k, v in facts.items() if isinstance(v, int))
            if "lengths" in facts:
                head = "KV rows"
            told = display.few(facts["lengths"]) if "lengths" in facts else str(facts.get("kind", ""))
            lines.append((name, capture.kind, axes, told, capture.sha256[:12]))
        return display.shown(("capture", "kind", "axes", head, "sha256"), lines)

    def arms(
        self,
        op: str,
        kernels: Sequence[str],
        baselines: Sequence[str],
        trials: int | None = None,
        modes: Sequence[Mode] | None = None,
    ) -> Arms:
        """Candidates, the baseline and its peers.

        Args:
            kernels: as `chosen_arms`; empty: every candidate of the op.
            baselines: as `chosen_arms`; empty: all of the op's arms, in its order.
            trials, modes: what the run is to be timed with later, where it is: refused here and not after the replays.

        Raises:
            ParameterError: a name or mode is unknown, trials is below 1, or there is no candidate, arm or mode.
        """
        _protocols(Protocol().trials if trials is None else trials, ("cold",) if modes is None else modes)
        candidates = runtime.project_path(CANDIDATES)
        kernels, baselines = given_or_all(op, kernels, baselines, candidates)
        exported = Path(kda_lab.__file__).parent / "kernels"
        arms = chosen_arms(op, kernels, baselines, candidates, exported)
        sources = [a for a, _ in arms if isinstance(a, SourceArm)]
        self.kernels_per_call = {a.name: a.declaration.kernels_per_call for a in sources}
        self.fallbacks = frozenset(a.name for a in sources if a.declaration.kernel in a.spec.fallback)
        return arms

    def arm_table(self, arms: Arms) -> Styler:
        """Each arm with its role, its source and whether it can run here."""
        lines = [
            (a.name, role, a.source_sha256[:12] or "library", a.unavailable(self.device) or _how(a, self.device))
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

    def time_captures(
        self, captures: Selected, arms: Arms, trials: int, modes: Sequence[Mode] = ("cold",)
    ) -> TimingRun:
        """Time every arm on copies of the recorded tensors; nothing on a CPU. `modes` as for `time_rows`."""
        op, rows = capture_rows(captures.captures, captures.names())
        return self.time_rows(op, rows, arms, trials, modes)

    def time_rows(
        self, op: str | Op, rows: Sequence[Row], arms: Arms, trials: int, modes: Sequence[Mode] = ("cold",)
    ) -> TimingRun:
        """Time every arm on the rows of a sweep; nothing on a CPU.

        Args:
            modes: `cold` with all arms; `eight`, `warm` or `eager` as labelled rows beside them, without the peers; none of
                them for a run that only replays.

        Returns:
            All modes' records together.

        Raises:
            ParameterError: a mode is unknown or given twice, or trials is below 1.
        """
        runs = []
        for protocol in _protocols(trials, modes):
            taken = [(a, role) for a, role in arms if protocol.mode == "cold" or role != "peer"]
            runs.append(time_rows(op, rows, taken, self.run, device=self.device, protocol=protocol))
        self.timed = TimingRun(
            [record for run in runs for record in run.records],
            sum(run.timed_rows for run in runs),
            sum(run.resumed_rows for run in runs),
            next((run.reason for run in runs if run.reason), ""),
        )
        return self.timed

    def speedup_figure(self) -> Picture | str:
        """Speedup of the first candidate over the baseline, one line a row."""
        return self._timing_figure(figures.speedup)

    def peer_figure(self, peer: str = "") -> Picture | str:
        """Speedup of the first candidate over a peer, the strongest when `peer` is empty; a sentence when it was not timed."""
        return self._timing_figure(figures.speedup, peer or self._comparisons().strongest_peer, needed=True)

    def batch_figure(self, peer: str = "") -> Picture | str:
        """Speedup against the batch, one line a class; over the baseline, or over `peer` where one is named."""
        return self._timing_figure(figures.speedup_by_batch, peer, needed=bool(peer))

    def each_figure(self) -> Picture | str:
        """Speedup against the batch over the baseline and every peer, one line each."""
        found = self._comparisons()
        if not found.rows:
            return self._why_not_timed()
        candidate = self._candidate(found.rows)
        return figures.speedup_over_each(found.all, candidate=candidate, foot=foot(self._records()))

    def roof_figure(self) -> Picture | str:
        """Share of the memory roofline that each arm reaches, one line a row."""
        rows = self._comparisons().rows
        return _drawn(figures.roof_shares, rows, foot=foot(self._records())) if rows else self._why_not_timed()

    def eight_figure(self) -> Picture | str:
        """Speedup over the baseline with eight input sets beside the cold one; a sentence when they were not timed."""
        found, records = self._comparisons(), self._records()
        if not found.labelled:
            return "no row was timed with eight sets" if found.rows else self._why_not_timed()
        rows, shares = [*found.rows, *found.labelled], rotated_shares(records.trials)
        return figures.eight_sets(rows, candidate=self._candidate(rows), l2_shares=shares, foot=foot(records))

    def latency_figure(self) -> Picture | str:
        """Latency of every arm against the roofline."""
        rows = self._comparisons().rows
        return _drawn(figures.latency, rows, foot=foot(self._records())) if rows else self._why_not_timed()

    def row_table(self) -> Styler | str:
        """Every timed row, refused ones included."""
        found = self._comparisons()
        rows = [*found.rows, *found.labelled]
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
        found, compared = judge(records.verify), compare(records)
        times, failures = self._timing_findings(records, compared)
        evidence = {**found.evidence, "timed_rows": len({r.row for r in compared.rows})}
        sentence = found.sentence.split(": ", 1)[1]
        verdict = found
        if found.word != "ambiguous":
            again = f"; judged again: {because}" if because else ""
            verdict = Verdict.of(f"{sentence}; {times}{again}", evidence, [*found.failures, *failures])
        verdict.write(self.run)
        print(verdict.sentence)  # noqa: T201
        return verdict

    def _timing_findings(self, records: RunRecords, compared: Comparisons) -> tuple[str, list[str]]:
        """One phrase on the times, and what about them fails the run."""
        mine = [r for r in compared.rows if r.role == "candidate"]
        if not mine:
            return self._why_not_timed(), []
        failures = [f"{r.arm} on {r.row}: {r.state or 'not timed'}, {r.reason}" for r in mine if r.state != "cold"]
        # Rows of another mode are warm on purpose; a wrong answer or a refusal fails there too.
        others = [r for r in compared.labelled if r.role == "candidate" and r.state in ("invalid", "refused")]
        failures += [f"{r.arm} on {r.row}: {r.state}, {r.reason}" for r in others]
        slower = [r for r in mine if r.verdict == "slower" and r.arm not in self.fallbacks]
        failures += [f"{r.arm} on {r.row}: slower, {r.ratio:.3g}x" for r in slower]
        for record in records.trials:
            wanted = self.kernels_per_call.get(record["arm"])
            ran = sum((record.get("kernels") or {}).values())
            if record["role"] == "candidate" and wanted is not None and ran != wanted:
                failures.append(f"{record['arm']} on {record['row']}: {ran} kernels a call, declared {wanted}")
        told = [_counts([r for r in mine if r.arm not in self.fallbacks], "rows timed")]
        told += [
            _counts([r for r in mine if r.arm == arm], f"rows of fallback {arm}") for arm in sorted(self.fallbacks)
        ]
        return "; ".join(filter(None, told)), sorted(set(failures))

    def _records(self) -> RunRecords:
        return read_run(self.run)

    def _comparisons(self) -> Comparisons:
        return compare(self._records())

    def _candidate(self, rows: Sequence[Any]) -> str:
        return next(r.arm for r in rows if r.role == "candidate")

    def _timing_figure(self, draw: Callable[..., Picture], peer: str = "", needed: bool = False) -> Picture | str:
        """Draw the rows against the baseline, or against a peer; where that was not timed, say so."""
        found = self._comparisons()
        if not found.rows:
            return self._why_not_timed()
        if needed and peer not in found.against_peers and peer != found.rows[0].baseline:
            return f"peer {peer} was not timed" if peer else "no peer was timed"
        rows = found.against_peers.get(peer, found.rows)
        return _drawn(draw, rows, candidate=self._candidate(rows), foot=foot(self._records()))

    def _why_not_timed(self) -> str:
        return self.timed.reason if self.timed and self.timed.reason else self._records().not_timed


def _drawn(draw: Callable[..., Picture], rows: Sequence[RowResult], **how: Any) -> Picture | str:
    """The figure; where its rows leave nothing to draw (all warm, say), the reason: the verdict must still be reached."""
    try:
        return draw(rows, **how)
    except ParameterError as error:
        return str(error)


def _how(arm: Arm, device: torch.device) -> str:
    """How an arm that can run does so here: itself, or on a CPU what stands in for its device code."""
    if device.type == "cpu" and isinstance(arm, SourceArm):
        twin = arm.declaration.language == "cuda"
        return "its torch twin: the device code is not run here" if twin else "in Triton's interpreter"
    return "runs here"


def _counts(rows: Sequence[RowResult], noun: str) -> str:
    """`15 rows timed: 15 faster`; empty without rows."""
    counts = {word: sum(r.verdict == word for r in rows) for word in ("faster", "same", "ambiguous", "slower")}
    words = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
    return f"{len(rows)} {noun}: {words or 'no verdict'}" if rows else ""


def _protocols(trials: int, modes: Sequence[Mode]) -> list[Protocol]:
    """One protocol a mode, in order."""
    reasons = []
    if isinstance(trials, bool) or not isinstance(trials, int):
        reasons.append(Reason("trials", repr(trials), "a whole number, at least 1"))
    if isinstance(modes, str) or len(set(modes)) != len(modes):
        given = repr(modes if isinstance(modes, str) else list(modes))
        reasons.append(Reason("modes", given, f"a list of {', '.join(SUFFIXES)}, each at most once"))
    if reasons:
        raise ParameterError("notebook", reasons)
    protocol = replace(Protocol(), trials=trials)
    return [protocol.in_mode(mode) for mode in modes]
