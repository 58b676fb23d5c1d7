"""A chain of layers as a notebook runs it: policies, checks, isolated and in-chain times, picture, verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pandas.io.formats.style import Styler

import kda_lab
from kda_lab import runtime
from kda_lab.errors import ParameterError, Reason
from kda_lab.notebook import display
from kda_lab.notebook.chain_run import ChainRun
from kda_lab.notebook.session import CANDIDATES, Session
from kda_lab.ops.arms import SourceArm, chosen_arms
from kda_lab.ops.protocol import Arm
from kda_lab.ops.registry import load_op
from kda_lab.report import figures
from kda_lab.report.pipeline_figure import chain_foot, pipeline_table
from kda_lab.report.style import Picture
from kda_lab.timing.chain.arms import ChainArm
from kda_lab.timing.chain.comparison import CHAIN, compare, findings
from kda_lab.timing.chain.faults import faults
from kda_lab.timing.chain.plan import ChainPlan, plan_chain
from kda_lab.timing.chain.policies import PolicyArm, policy_arms
from kda_lab.timing.chain.records import chain_records
from kda_lab.timing.machine import why_not_timed
from kda_lab.timing.protocol import Mode, Protocol
from kda_lab.timing.rows import time_rows
from kda_lab.timing.statistics import RowResult
from kda_lab.verify.verdict import Verdict

FIGURE = "pipeline"
MODES: tuple[Mode, ...] = ("cold", "eight")
"""How the products are timed apart: by protocol v1, and as the source thread did."""


@dataclass
class PipelineSession(ChainRun):
    """One run of a chain. Every method is one step and returns what the notebook shows."""

    noun = "chain"
    isolated: list[dict[str, Any]] = field(default_factory=list)
    """Lines of timing.jsonl."""

    @classmethod
    def open(
        cls, session: Session, op: str, *, model: str, batch: int, layers: int, state_mb: float, seed: int
    ) -> PipelineSession:
        """A chain of one model size in a session's run folder.

        Raises:
            ParameterError: an argument allows no chain.
        """
        loaded = load_op(op)
        return cls(session, loaded, plan_chain(loaded, model, batch=batch, layers=layers, state_mb=state_mb), seed)

    def geometry(self) -> Styler:
        """Products of a layer with their bytes, the state, and the L2 that they share."""
        device = self.session.device
        calls = {row.label: self.op.cases.make_sets(row, 1, self.seed, device)[0] for row in self.plan.rows}
        products = {label: self.op.work.work(call).bytes_moved for label, call in calls.items()}
        return display.facts(_geometry(self.plan, products, runtime.device_facts(device).get("l2_bytes")))

    def choose_arms(self, kernel: str, policies: Sequence[str], baseline: str, peers: Sequence[str]) -> Styler:
        """One kernel under each policy, the first of them the reference; the op's baseline; other kernels as peers.

        Raises:
            ParameterError: an unknown name, or a kernel that is no candidate's source.
        """
        exported = Path(kda_lab.__file__).parent / "kernels"
        found = chosen_arms(self.op.spec.name, [kernel, *peers], [baseline], runtime.project_path(CANDIDATES), exported)
        source, *others = [arm for arm, _ in found]
        if not isinstance(source, SourceArm):
            raise ParameterError("notebook", [Reason("kernel", repr(kernel), "a candidate or an exported kernel")])
        self.arms = chain_arms(policy_arms(source, policies), others[-1], others[:-1], bool(self.plan.state_bytes))
        lines = [
            (a.name, a.role, a.source_sha256[:12] or "library", a.unavailable(self.session.device) or "runs here")
            for a in self.arms
        ]
        return display.shown(("arm", "role", "source", "here"), lines)

    def time_isolated(self, trials: int) -> str:
        """Each product in a loop of its own: cold with every arm, and with eight sets as the source thread did."""
        device = self.session.device
        reason = why_not_timed(device)
        if reason:
            return reason
        for mode in MODES:
            protocol = replace(Protocol(), trials=trials).in_mode(mode)
            arms = isolated_arms(self.arms, with_others=mode == "cold")
            time_rows(self.op, list(self.plan.rows), arms, self.session.run, device=device, protocol=protocol)
        self.isolated = self.session.run.read_timing()
        return f"{len(self.isolated)} records of isolated products"

    def time_chain(self, trials: int) -> str:
        """Every arm's chain in one CUDA graph; nothing on a CPU."""
        return self._time(trials) or f"{len(self._timed)} records of chains"

    def results(self, against: str = "") -> list[RowResult]:
        """Isolated and in-chain comparisons with the reference, or with another arm."""
        return compare(self.records, self.isolated, reference=against, protocol=self.protocol) if self._timed else []

    def figure(self) -> Picture | str:
        """Each policy isolated and in the chain, beside the noise; also written into the run's folder."""
        if not self._timed:
            return self._why_not()
        picture = figures.pipeline(self.results(), foot=chain_foot(self._timed))
        figures.save(picture, self.session.run.path, FIGURE)
        return picture

    def table(self, against: str = "") -> Styler | str:
        """Every arm in every place, in microseconds of one layer."""
        if not self._timed:
            return self._why_not()
        return display.report_table(pipeline_table(self.results(against)))

    def findings(self) -> Styler | str:
        """What became of each isolated result in the chain."""
        if not self._timed:
            return self._why_not()
        return display.shown(("what became of each isolated result",), [(text,) for text in findings(self.results())])

    def verdict(self) -> Verdict:
        """Judge values, bits, noise and completeness, never a speed; written into the run's folder, not raised."""
        promised = {a.name: a.arm.kernels_per_call for a in self.arms if isinstance(a.arm, PolicyArm)}
        failures = faults(self.records, kernels_per_call=promised, protocol=self.protocol)
        checks = self._checks
        passed = sum(r["recheck"]["passed"] for r in checks)
        words = chain_words(self.results()) if self._timed else why_not_timed(self.session.device) or "not timed"
        evidence = {"chains_checked": len(checks), "chains_right": passed, "timed_trials": len(self._timed)}
        verdict = Verdict.of(f"{passed} of {len(checks)} chains right; {words}", evidence, failures)
        verdict.write(self.session.run)
        return verdict

    @property
    def _path(self) -> Path:
        return chain_records(self.session.run)


def chain_arms(policies: Sequence[PolicyArm], baseline: Arm, peers: Sequence[Arm], has_state: bool) -> list[ChainArm]:
    """Arms of the chain in their order: reference, other policies, baseline, peers, and the state alone."""
    reference, *others = policies
    arms = [ChainArm(reference, "reference"), *(ChainArm(arm, "policy") for arm in others)]
    arms += [ChainArm(baseline, "baseline"), *(ChainArm(arm, "peer") for arm in peers)]
    return [*arms, ChainArm(None, "state")] if has_state else arms


def isolated_arms(arms: Sequence[ChainArm], with_others: bool) -> list[tuple[Arm, str]]:
    """The same arms for a loop over one product, where the reference is what every ratio divides."""
    roles = {"reference": "baseline", "policy": "candidate", "baseline": "peer", "peer": "peer"}
    chosen = [a for a in arms if a.role in roles and (with_others or a.role in ("reference", "policy"))]
    return [(a.arm, roles[a.role]) for a in chosen if a.arm is not None]


def chain_words(results: Sequence[RowResult]) -> str:
    """The chain's verdicts on the policies, counted."""
    mine = [r for r in results if r.role == "policy" and r.row == CHAIN]
    counts = {word: sum(r.verdict == word for r in mine) for word in ("faster", "same", "ambiguous", "slower")}
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"{len(mine)} policies timed in the chain: {told or 'no verdict'}"


def _geometry(plan: ChainPlan, products: Mapping[str, int], l2_bytes: int | None) -> dict[str, Any]:
    layer_mb = sum(products.values()) / 1e6
    facts = {f"{label}, MB": f"{size / 1e6:.3g}" for label, size in products.items()}
    return {
        "model": plan.model,
        "layers": plan.layers,
        **facts,
        "products of a pass, MB": f"{plan.layers * layer_mb:.4g}",
        "state of a layer, MB": f"{plan.state_bytes / 1e6:.4g}",
        "touches of the state a layer": plan.touches_per_layer,
        "L2, MB": f"{l2_bytes / 1e6:.3g}" if l2_bytes else "—",
    }
