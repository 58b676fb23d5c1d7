"""Replay and speculative verification as a notebook runs them: identities between kernels, then both published signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pandas.io.formats.style import Styler

from kda_lab import runtime
from kda_lab.errors import ParameterError, Reason
from kda_lab.notebook import display, ssm_checks
from kda_lab.notebook.qsa_stages import kernel_arm
from kda_lab.notebook.row_choice import matching_rows
from kda_lab.notebook.session import Session
from kda_lab.notebook.ssm_calls import Geometry, draw
from kda_lab.ops.kda.geometry import LOWER_BOUND
from kda_lab.ops.protocol import Arm
from kda_lab.ops.registry import load_op
from kda_lab.report.comparisons import compare
from kda_lab.report.numbers import scientific
from kda_lab.report.qsa_stage_figure import StageCheck
from kda_lab.report.records import read_run
from kda_lab.run_folder import write_json_lines
from kda_lab.timing.machine import why_not_timed
from kda_lab.timing.protocol import Protocol
from kda_lab.timing.rows import time_rows
from kda_lab.timing.statistics import RowResult
from kda_lab.verify.verdict import Verdict

IDENTITIES_FILE = "identities.jsonl"
OPS = ("kda.packed_decode", "kda.replay_decode", "kda.verify_snapshots", "kda.verify_ring", "kda.fold")
Axes = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Sign:
    """A published comparison of two ops on the same shapes."""

    what: str
    first: tuple[str, str]
    """Op and way of the arm that is said to be faster."""
    second: tuple[str, str]
    source: str


SIGNS = (
    Sign(
        "packed decode beats a replay with raw keys",
        ("kda.packed_decode", ""),
        ("kda.replay_decode", "raw"),
        "sglang PR 28511: per-channel gates make a record costly",
    ),
    Sign(
        "a replay with pre-decayed keys beats packed decode",
        ("kda.replay_decode", "predecayed"),
        ("kda.packed_decode", ""),
        "sglang PR 37739, measured on an H200",
    ),
    Sign(
        "verification with a ring beats snapshots",
        ("kda.verify_ring", ""),
        ("kda.verify_snapshots", ""),
        "sglang PR 36821",
    ),
)


@dataclass
class SsmSession:
    """One run. Every method is one step and returns what the notebook shows."""

    session: Session
    arms: dict[str, Arm]
    """Op to its kernel."""
    places: int
    seed: int
    checks: list[StageCheck] = field(default_factory=list)
    not_timed: str = "not timed yet"

    @classmethod
    def open(cls, session: Session, places: int, seed: int) -> SsmSession:
        """The first candidate of each op, or its torch baseline where none can run here.

        Args:
            places: of the ring of a replay, 2 to 16.

        Raises:
            ParameterError: another number of places.
        """
        if type(places) is not int or not 2 <= places <= 16:
            raise ParameterError("notebook", [Reason("places", repr(places), "2 to 16")])
        return cls(session, {op: kernel_arm(op) for op in OPS}, places, seed)

    def arm_table(self) -> Styler:
        """The kernel of each op and its source."""
        lines = [
            (op, arm.name, arm.source_sha256[:12], arm.unavailable(self.session.device) or "runs here")
            for op, arm in self.arms.items()
        ]
        return display.shown(("op", "kernel", "source", "here"), lines)

    def verify(self, tokens: int) -> Styler:
        """Ring against snapshots and fold against both, on `tokens` drafted tokens a request."""
        drawn = draw(Geometry(), tokens, LOWER_BOUND, self.seed, self.session.device)
        return self._table(ssm_checks.verify_checks(self.arms, drawn))

    def replay(self) -> Styler:
        """Two rings full of tokens and one more, through raw and through pre-decayed keys, against packed decode."""
        drawn = draw(Geometry(), 2 * self.places + 1, LOWER_BOUND, self.seed + 1, self.session.device)
        found = []
        for predecayed in (False, True):
            found += ssm_checks.replay_checks(self.arms, drawn, self.places, predecayed)
        found += ssm_checks.replay_checks(self.arms, drawn, 1, predecayed=False)
        return self._table(found)

    def time(self, heads: int, batch: int, tokens: int, trials: int) -> str:
        """Packed decode, both replays and both verifications on shapes of a rank, by the cold protocol; not on a CPU."""
        device, run = self.session.device, self.session.run
        self.not_timed = why_not_timed(device)
        if self.not_timed:
            return self.not_timed
        wanted: dict[str, Axes] = {op: {"HV": [heads], "B": [batch]} for op in OPS if op != "kda.fold"}
        for op in ("kda.verify_snapshots", "kda.verify_ring"):
            wanted[op] = {**wanted[op], "T": [tokens]}
        protocol = replace(Protocol(), trials=trials)
        for op, axes in wanted.items():
            arms: list[tuple[Arm, str]] = [(self.arms[op], "candidate"), (load_op(op).baselines.ARMS[0], "baseline")]
            # By their own labels the rows of both verifications would take each other's place in the records.
            rows = [replace(row, label=f"{row.label}-{op.removeprefix('kda.')}") for row in matching_rows(op, axes)]
            time_rows(op, rows, arms, run, device=device, protocol=protocol)
        return f"{len(run.read_timing())} records"

    def signs(self) -> Styler | str:
        """Each published sign with this machine's ratio; a sentence where nothing was timed."""
        if self.not_timed:
            return self.not_timed
        rows = self._rows()
        lines = [(sign.what, *self._ratio(sign, rows), sign.source) for sign in SIGNS]
        return display.shown(("published", "here", "ratio", "source"), lines)

    def verdict(self) -> Verdict:
        """Judge every identity and, on a GPU, that every sign has its times; never which way a sign fell."""
        write_json_lines(self.session.run.path / IDENTITIES_FILE, [self._record(c) for c in self.checks])
        failures = [f"{c.stage} ({c.arm}): {c.detail or 'above its limit'}" for c in self.checks if not c.passed]
        failures += [] if self.checks else ["no identity was checked"]
        told = self.not_timed
        if not self.not_timed:
            rows = self._rows()
            found = {sign.what: self._ratio(sign, rows)[0] for sign in SIGNS}
            failures += [f"{what}: {word}" for what, word in found.items() if word == "not timed"]
            told = "; ".join(f"{what}: {word}" for what, word in found.items())
        right = sum(c.passed for c in self.checks)
        evidence = {"checks": len(self.checks), "right": right}
        verdict = Verdict.of(f"{right} of {len(self.checks)} identities hold; {told}", evidence, failures)
        verdict.write(self.session.run)
        return verdict

    def _table(self, found: list[StageCheck]) -> Styler:
        self.checks += found
        lines = [
            (c.stage, c.arm, scientific(c.error), scientific(c.limit), c.metric, c.detail or "holds") for c in found
        ]
        return display.shown(("identity", "kernel", "error", "limit", "of", "verdict"), lines)

    @staticmethod
    def _ratio(sign: Sign, rows: Sequence[RowResult]) -> tuple[str, str]:
        """`as published`, `the other way` or `same within noise`, and second time over first; `not timed` without both."""
        first, second = (_row(rows, op, way) for op, way in (sign.first, sign.second))
        if first is None or second is None or not first.arm_us or not second.arm_us:
            return "not timed", ""
        ratio = second.arm_us / first.arm_us
        noise = max(first.noise or 0.0, second.noise or 0.0)
        word = "as published" if ratio > 1 + noise else "the other way" if ratio < 1 - noise else "same within noise"
        return word, f"{ratio:.3g}× ± {100 * noise:.2g} %"

    def _rows(self) -> list[RowResult]:
        """The candidates' results of this run: read and compared once for all signs."""
        return [r for r in compare(read_run(self.session.run)).rows if r.role == "candidate"]

    def _record(self, check: StageCheck) -> dict[str, Any]:
        return {"kind": "identity", **asdict(check), "passed": check.passed, "interpreter": runtime.interpreter_on()}


def _row(rows: Sequence[RowResult], op: str, way: str) -> RowResult | None:
    found = (r for r in rows if r.op == op)
    return next((r for r in found if not way or bool(r.axes.get("predecayed")) == (way == "predecayed")), None)
