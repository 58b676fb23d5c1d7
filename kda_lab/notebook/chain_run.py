"""What every notebook over a chain of calls in one graph does alike: check the arms, time them, keep the records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from pandas.io.formats.style import Styler

from kda_lab.notebook import display
from kda_lab.notebook.session import Session
from kda_lab.report.pipeline_figure import check_table
from kda_lab.run_folder import write_json_lines
from kda_lab.timing.chain.arms import ChainArm
from kda_lab.timing.chain.judgement import Judge, check_chain
from kda_lab.timing.chain.measure import time_chain
from kda_lab.timing.chain.plan import ChainPlan
from kda_lab.timing.machine import machine_for, why_not_timed
from kda_lab.timing.protocol import Protocol


@dataclass
class ChainRun:
    """One run of a chain of any kind. A subclass says what it is called and where its records go."""

    noun: ClassVar[str]
    """Of one chain, for sentences: `chain`, `trace`."""
    session: Session
    op: Any
    plan: ChainPlan
    seed: int
    arms: list[ChainArm] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    """Checks and timed trials, each a record of `timing.chain`."""
    protocol: Protocol = field(default_factory=Protocol)

    @property
    def _path(self) -> Path:
        """File of the records."""
        raise NotImplementedError

    def check(self) -> Styler:
        """Every arm's chain once, untimed: first and last layer against the oracle, outputs, states, and equal bits."""
        found = check_chain(self.op, self.plan, self.arms, device=self.session.device, seed=self.seed)
        self._keep(found)
        return display.report_table(check_table(found))

    def _time(self, trials: int) -> str:
        """Time every arm in one CUDA graph, in alternating order with an A/A control; the reason where nothing is timed."""
        self.protocol = replace(Protocol(), trials=trials)
        reason = why_not_timed(self.session.device)
        if reason:
            return reason
        machine = machine_for(self.session.device)
        judge = Judge(self.op, self.plan)
        timed = time_chain(self.op, self.plan, self.arms, machine=machine, protocol=self.protocol, judge=judge)
        self._keep([*(r for r in self.records if r["kind"] != "chain"), *timed])
        return ""

    @property
    def _timed(self) -> list[dict[str, Any]]:
        return [r for r in self.records if r["kind"] == "chain"]

    @property
    def _checks(self) -> list[dict[str, Any]]:
        return [r for r in self.records if r["kind"] == "check"]

    def _why_not(self) -> str:
        return why_not_timed(self.session.device) or f"the {self.noun} was not timed"

    def _keep(self, records: list[dict[str, Any]]) -> None:
        self.records = records
        write_json_lines(self._path, records)
