"""A decode trace as a notebook runs it: the calls of some forwards in one graph, every arm checked, timed, compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pandas.io.formats.style import Styler

from kda_lab.notebook import display
from kda_lab.notebook.chain_run import ChainRun
from kda_lab.notebook.session import Session
from kda_lab.ops.arms import SourceArm
from kda_lab.ops.registry import load_op
from kda_lab.report import style
from kda_lab.report.foot import order_words
from kda_lab.report.style import Picture
from kda_lab.report.trace_figure import TraceSize, trace, trace_table
from kda_lab.timing.chain.arms import ChainArm
from kda_lab.timing.chain.comparison import CHAIN, compare
from kda_lab.timing.chain.trace import calls_of, plan_trace, trace_faults
from kda_lab.timing.statistics import RowResult
from kda_lab.verify.verdict import Verdict

FILE = "trace.jsonl"
FIGURE = "trace"
ROLES: dict[str, Any] = {"candidate": "policy", "baseline": "reference", "peer": "peer"}
"""Roles of a run in the words of a chain."""


@dataclass
class TraceSession(ChainRun):
    """One run of a trace. Every method is one step and returns what the notebook shows."""

    noun = "trace"

    @classmethod
    def open(
        cls,
        session: Session,
        op: str,
        topology: str,
        *,
        size: tuple[int, int],
        kinds: Sequence[str],
        layers: Sequence[int],
        seed: int,
    ) -> TraceSession:
        """A trace in a session's run folder.

        Args:
            size: requests decoded together, and forwards.
            kinds, layers: of the target and of the draft, as for `timing.chain.trace.plan_trace`.

        Raises:
            ParameterError: an argument allows no trace.
        """
        loaded = load_op(op)
        plan = plan_trace(loaded, topology, requests=size[0], forwards=size[1], kinds=kinds, layers=layers)
        return cls(session, loaded, plan, seed)

    def geometry(self) -> Styler:
        """Calls of a forward with their bytes, and of the whole trace."""
        labels = [row.label for row in self.plan.rows]
        facts = {f"{label}, calls a forward": labels.count(label) for label in dict.fromkeys(labels)}
        moved = self._bytes_of_a_forward() * self.plan.layers
        return display.facts({
            **facts,
            "forwards": self.plan.layers,
            "calls of the trace": calls_of(self.plan),
            "bytes of the trace, MB": f"{moved / 1e6:.4g}",
        })  # fmt: skip

    def choose_arms(self, kernels: Sequence[str], baselines: Sequence[str]) -> Styler:
        """Candidates, the baseline that every ratio divides by, and peers.

        Raises:
            ParameterError: an unknown name, or no kernel or baseline.
        """
        found = self.session.arms(self.op.spec.name, kernels, baselines)
        self.arms = [ChainArm(arm, ROLES[role]) for arm, role in found]
        return self.session.arm_table(found)

    def time(self, trials: int) -> str:
        """Every arm's trace in a CUDA graph, in alternating order with an A/A control; nothing on a CPU."""
        reason = self._time(trials)
        passes = self._timed[0].get("passes_per_graph", 0) if self._timed else 0
        return reason or f"{len(self._timed)} records of traces, {passes} passes a graph"

    def results(self, against: str = "") -> list[RowResult]:
        """Every arm against the baseline, or against another arm."""
        found = compare(self.records, [], reference=against, protocol=self.protocol) if self._timed else []
        return [r for r in found if r.row == CHAIN]

    def table(self, against: str = "") -> Styler | str:
        """Mean of a call, total and ratio of every arm."""
        if not self._timed:
            return self._why_not()
        return display.report_table(trace_table(self.results(against), self._size))

    def figure(self) -> Picture | str:
        """Mean time of a call of every arm; also written into the run's folder."""
        if not self._timed:
            return self._why_not()
        picture = trace(self.results(), self._size, foot=trace_foot(self._timed))
        style.save(picture, self.session.run.path, FIGURE)
        return picture

    def verdict(self) -> Verdict:
        """Judge values, completeness and what ran, never a speed; written into the run's folder, not raised."""
        sources = [a.arm for a in self.arms if isinstance(a.arm, SourceArm)]
        promised = {arm.name: arm.declaration.kernels_per_call for arm in sources}
        failures = trace_faults(self.records, self.plan, kernels_per_call=promised, protocol=self.protocol)
        checks = self._checks
        right = sum(r["recheck"]["passed"] for r in checks)
        evidence = {"traces_checked": len(checks), "traces_right": right, "timed_trials": len(self._timed)}
        words = f"{right} of {len(checks)} traces of {calls_of(self.plan)} calls right; {self._words()}"
        verdict = Verdict.of(words, evidence, failures)
        verdict.write(self.session.run)
        return verdict

    @property
    def _path(self) -> Path:
        return self.session.run.path / FILE

    @property
    def _size(self) -> TraceSize:
        return TraceSize(len(self.plan.rows), self.plan.layers, self._timed[0]["roof_us"])

    def _bytes_of_a_forward(self) -> int:
        moved = {}
        for row in self.plan.rows:
            if row.label not in moved:
                call = self.op.cases.make_sets(row, 1, self.seed, self.session.device)[0]
                moved[row.label] = self.op.work.work(call).bytes_moved
        return sum(moved[row.label] for row in self.plan.rows)

    def _words(self) -> str:
        if not self._timed:
            return self._why_not()
        size = self._size
        mine = [r for r in self.results() if r.role == "policy"]
        told = [f"{r.arm} {size.call_us(r) or 0:.3g} µs a call ({r.verdict or r.reason})" for r in mine]
        return "; ".join(told)


def trace_foot(timed: Sequence[dict[str, Any]]) -> str:
    """The small print: GPU, bytes beside the L2, passes, trials and order, from the records of one run."""
    first = timed[0]
    moved = first["layers"] * max(r["product_bytes"] for r in timed)
    cold = "cold" if first["cold_products"] else "NOT COLD"
    parts = [
        str(first["provenance"].get("device", {}).get("name", "unknown device")),
        f"{first['axes']['model']}, {moved / 1e6:.4g} MB a pass, {moved / first['l2_bytes']:.3g}× L2 ({cold})",
        f"{first['passes_per_graph']} passes a graph",
        f"{len({r['trial'] for r in timed})} trials an arm, {sum(bool(r['dropped']) for r in timed)} dropped",
        order_words(timed),
        f"protocol {first['protocol']}",
    ]
    return " · ".join(part for part in parts if part)
