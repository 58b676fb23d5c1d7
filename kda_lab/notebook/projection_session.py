"""A study of projection fusion as a notebook runs it: policy, weights, equality, times, traces, verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pandas.io.formats.style import Styler

from kda_lab import runtime
from kda_lab.errors import ParameterError, Reason
from kda_lab.notebook import display
from kda_lab.notebook.session import Session
from kda_lab.projection import equality, policy, results
from kda_lab.projection.arms import FIVE, SIDE, SideRule, capturing
from kda_lab.projection.bench import cuda_bench
from kda_lab.projection.equality import EqualityRow
from kda_lab.projection.error_figure import input_errors
from kda_lab.projection.figure import fusion_speedup
from kda_lab.projection.inputs import RANDOM, Inputs, RealRows, open_inputs
from kda_lab.projection.plan import Plan
from kda_lab.projection.results import Result, summarise
from kda_lab.projection.sizes import K3, SMALL, Splits, splits
from kda_lab.projection.study import Study, run_study, write_traces
from kda_lab.projection.traces import compare_traces
from kda_lab.referee.slices import outputs, pictures, tables
from kda_lab.referee.slices.comparison import SliceComparison
from kda_lab.report import style
from kda_lab.report.numbers import scientific, significant
from kda_lab.report.style import Picture
from kda_lab.run_folder import write_json_lines
from kda_lab.timing.machine import why_not_timed
from kda_lab.verify.verdict import Verdict

FIGURE, ERROR_FIGURE = "projection_fusion", "projection_errors"
EQUALITY_FILE = "equality.jsonl"
EQUALITY_TP = 8
TRACED_CALL = (8, 4)
EQUALITY_TOKENS = (1, 4, 12, 32)
REAL_TOKENS = (*EQUALITY_TOKENS, 128)
"""Real rows differ from each other, so more of them are looked at."""


@dataclass
class ProjectionSession:
    """One run. Every method is one step and returns what the notebook shows."""

    session: Session
    plan: Plan
    rows: list[EqualityRow] = field(default_factory=list)
    laws: list[str] = field(default_factory=list)
    study: Study | None = None
    slices: SliceComparison | None = None
    inputs: Inputs = field(default_factory=lambda: open_inputs(""))

    @classmethod
    def open(
        cls, session: Session, plan: Plan, x_source: str = "", trace_at: Sequence[int] = TRACED_CALL
    ) -> ProjectionSession:
        """A study in a session's run folder; without a GPU it is one of small heads, and nothing is timed.

        Args:
            plan: its model and x are replaced.
            x_source: folder of captured rows; empty: they are drawn. Real rows keep their width, whatever that of the model is.
            trace_at: attention-parallel size and tokens of the calls that will be traced; looked at before hours of measuring.

        Raises:
            ParameterError: an unknown source, a plan with more tokens than it has, or calls to trace that no plan could hold.
            CaptureError: the capture set is not what its manifest says.
        """
        inputs = open_inputs(x_source)
        model = K3 if session.device.type == "cuda" else SMALL
        if inputs.hidden is not None:
            model = replace(model, hidden=inputs.hidden)
        plan = replace(plan, model=model, x=inputs.timed)
        if len(trace_at) != 2:
            raise ParameterError(
                "projection", [Reason("trace_at", repr(trace_at), "attention-parallel size and tokens")]
            )
        replace(plan, attn_tp=trace_at[:1], tokens=trace_at[1:])
        return cls(session, plan, inputs=inputs)

    @property
    def why_not(self) -> str:
        """`not timed (no GPU)`, or empty."""
        return why_not_timed(self.session.device)

    def truth_table(self) -> Styler:
        """Every setting with the decision of each version; the rows that the thread changed are marked."""
        changed = policy.changed_settings("before", "thread")
        lines = [
            (
                _yes(row.setting.full_rank_gate),
                _yes(row.setting.equal_sizes),
                _yes(row.setting.unquantised),
                *("fused" if row.fused[name] else "—" for name in policy.VERSIONS),
                "changed" if row.setting in changed else "",
            )
            for row in policy.truth_table()
        ]
        return display.shown(("full-rank gate", "attn_tp = tp", "unquantised", *policy.VERSIONS, ""), lines)

    def sizes(self) -> Styler:
        """Rows of every weight for each attention-parallel size, from that size alone."""
        lines = []
        for attn_tp in self.plan.attn_tp:
            s = splits(attn_tp, self.plan.model)
            parts = (f"{s.qkv} / {s.projection}", s.bfa, s.padded_bfa, f"{s.weight_bytes / 1e6:.4g}")
            lines.append((attn_tp, s.heads, s.projection, s.qkvg, *parts))
        heads = ("attn_tp", "heads", "P", "QKVG rows", "split", "BFA rows", "padded", "weights MB")
        return display.shown(heads, lines)

    def check(self, seed: int) -> Styler:
        """Every arm against FP64 and against the unfused arm, launched eagerly; laws of the builders too.

        Where x is real, drawn rows are compared on the same weights. equality.jsonl holds every line.
        """
        device = self.session.device
        size = self._compared_size
        rule = SideRule(None, policy.side_token_limit(runtime.capability(device)), capturing)
        tokens = EQUALITY_TOKENS if self.inputs.hidden is None else REAL_TOKENS
        self.rows = equality.compare_arms(size, tokens, rule, device, seed, self.inputs.compared)
        self.laws = equality.law_faults(size, device, seed)
        sizes = {"attn_tp": size.attn_tp_size, "hidden": size.model.hidden}
        write_json_lines(self.session.run.path / EQUALITY_FILE, [r.record() | sizes for r in self.rows])
        lines = [
            (
                r.x.label,
                f"{r.extent.largest:.3g}",
                f"{r.extent.peak:.3g}",
                r.tokens,
                r.arm,
                f"{r.error:.2e}",
                *(_yes(r.bits[n]) for n in r.bits),
                r.row_strides["qkv"],
                r.row_strides["b"],
            )
            for r in self.rows
        ]
        heads = (
            "x",
            "largest |x|",
            "over rms",
            "M",
            "arm",
            "error",
            *(f"{n} same bits" for n in self.rows[0].bits),
            "qkv row stride",
            "b row stride",
        )
        return display.shown(heads, lines)

    def errors(self) -> Picture | str:
        """Errors on drawn and on real x beside each other, also written into the run's folder; of drawn x alone a sentence."""
        if self.inputs.hidden is None:
            return f"x is drawn: {self._told(RANDOM)}"
        size = self._compared_size
        how = f"one call each, launched eagerly, {size.heads} heads of {size.model.head_dim}"
        picture = input_errors(self.rows, f"{self._device} · {self._told_x()} · {how}")
        style.save(picture, self.session.run.path, ERROR_FIGURE)
        return picture

    def measure(self) -> str:
        """Every cell that the plan's seconds allow; nothing without a GPU."""
        if self.why_not:
            return self.why_not
        self.study = run_study(self.plan, cuda_bench(self.session.device), self.session.run.path)
        cells = len({results.cell_of(r) for r in self.study.measured})
        return f"{cells} cells in {self.study.seconds:.3g} s, {len(self.study.skipped)} not reached"

    @property
    def found(self) -> list[Result]:
        """Every fused arm against the unfused one."""
        return summarise(self.study.measured) if self.study else []

    def table(self) -> Styler | str:
        """Times, speedups and verdicts of every cell."""
        lines = [
            (
                r.cell.attn_tp, r.cell.tokens, r.cell.mode, r.arm, r.branch, f"{r.five_us:.4g}", f"{r.arm_us:.4g}",
                f"{r.speedup:.3f}", f"{r.low:.3f} to {r.high:.3f}", r.word, f"{r.p:.2g}", f"{r.control_percent:+.2f}",
                f"{r.floor_us:.4g}",
            )
            for r in self.found
        ]  # fmt: skip
        heads = (
            "attn_tp",
            "M",
            "mode",
            "arm",
            "branch",
            "five µs",
            "arm µs",
            "speedup",
            "95 %",
            "verdict",
            "p",
            "A/A %",
            "floor µs",
        )
        return display.shown(heads, lines) if lines else self._nothing()

    def figure(self) -> Picture | str:
        """Speedup against tokens; also written into the run's folder."""
        found = self.found
        if not found:
            return self._nothing()
        picture = fusion_speedup(found, self._foot())
        style.save(picture, self.session.run.path, FIGURE)
        return picture

    def sums(self) -> Styler | str:
        """Graph cells on the side stream: the wall, the sum of kernel durations and the overlap. Sums are no time."""
        chosen = [r for r in self.found if r.branch == "side" and r.summed_percent is not None]
        lines = [
            (
                r.cell.attn_tp, r.cell.tokens, f"{100 * (r.arm_us / r.five_us - 1):+.2f}", f"{r.summed_percent:+.2f}",
                f"{r.overlap_us:.3g}", "sum rises, wall falls" if r.contradicts else "",
            )
            for r in chosen
        ]  # fmt: skip
        heads = ("attn_tp", "M", "wall %", "summed kernels %", "overlap µs", "")
        return display.shown(heads, lines) if lines else self._nothing()

    def bits(self) -> Styler | str:
        """How often the fused arms gave the unfused arm's bits in the timed configuration."""
        lines = results.bit_counts(self.study.measured) if self.study else []
        heads = ("mode", "arm", "cells", "where the unfused arm repeats itself", "same bits")
        return display.shown(heads, lines) if lines else self._nothing()

    def trace(self, at: Sequence[int]) -> Styler | str:
        """Marked graphs of five GEMMs and of three with a side stream, cut and compared by the slice tool.

        Args:
            at: attention-parallel size and tokens.
        """
        if self.why_not:
            return self._nothing()
        files = write_traces((at[0], at[1]), self.plan, cuda_bench(self.session.device), self.session.run.path)
        if not {FIVE, SIDE} <= set(files):
            return "the profiler recorded no kernel"
        self.slices = compare_traces(files[FIVE], files[SIDE])
        folder = Path(self.session.run.path) / "slices"
        outputs.write_outputs(self.slices, folder, pictures.drawn_files(self.slices))
        return display.shown(tables.PART_HEADS, tables.part_lines(self.slices))

    def lanes(self) -> Picture | str:
        """The two representative calls, a lane a stream."""
        return pictures.lanes_figure(self.slices) if self.slices else self._nothing()

    def verdict(self) -> Verdict:
        """Judge policy, values and completeness, never a speed; written into the run's folder, not raised."""
        records = self.study.measured if self.study else ()
        values = [*equality.equality_faults(self.rows), *equality.missing_faults(self.rows, self.inputs.compared)]
        failures = [*policy.table_faults(), *self.laws, *values, *results.faults(records)]
        cells = len({results.cell_of(r) for r in records})
        if not self.why_not and not cells:
            failures.append("a GPU is here and no cell was measured")
        evidence = {"policy_rows": len(policy.truth_table()), "equality_rows": len(self.rows), "timed_cells": cells}
        verdict = Verdict.of(self._sentence(cells), evidence, failures)
        verdict.write(self.session.run)
        return verdict

    def _sentence(self, cells: int) -> str:
        right = sum(not equality.equality_faults([r]) for r in self.rows)
        parts = [f"truth tables of {len(policy.VERSIONS)} versions", f"{right} of {len(self.rows)} arms right"]
        if self.inputs.hidden is not None:
            sources = (RANDOM, self.inputs.timed.record()["source"])
            parts += [f"x {source}: {self._told(source)}" for source in sources]
        if not cells:
            return f"{', '.join(parts)}; {self.why_not or 'nothing timed'}"
        found = self.found
        for mode in self.plan.modes:
            chosen = [r for r in found if r.cell.mode == mode and r.arm == SIDE]
            faster = sum(r.word == "faster" for r in chosen)
            slower = sum(r.word == "slower" for r in chosen)
            parts.append(
                f"{SIDE} {mode} geomean {results.geomean(chosen):.3f}x, {faster} faster, {slower} slower of {len(chosen)}"
            )
        return "; ".join(parts)

    def _nothing(self) -> str:
        return self.why_not or "no cell was measured"

    def _foot(self) -> str:
        first: dict[str, Any] = dict(self.study.measured[0]) if self.study else {}
        device = first.get("provenance", {}).get("device", {}).get("name", "unknown device")
        measured = self.study.measured if self.study else ()
        rotated = min(r["sets"] * r["weight_bytes"] / r["l2_bytes"] for r in measured)
        return (
            f"{device} · {self.plan.rounds} rounds in mirrored order · weights rotate over at least {rotated:.2g}× L2 · "
            f"copy rate {first['copy_gb_s']:.0f} GB/s · {self._told_x()}"
        )

    @property
    def _compared_size(self) -> Splits:
        on_gpu = self.session.device.type == "cuda"
        return splits(EQUALITY_TP if on_gpu else self.plan.attn_tp[-1], self.plan.model)

    @property
    def _device(self) -> str:
        return str(runtime.device_facts(self.session.device)["name"])

    def _told_x(self) -> str:
        """What x and the weights are, for the foot of a figure."""
        timed, width = self.inputs.timed, self.plan.model.hidden
        if isinstance(timed, RealRows):
            return f"x real, {width} wide: {timed.model}, {timed.label} where timed · weights drawn"
        return f"x, {width} wide, and weights drawn"

    def _told(self, source: str) -> str:
        """Worst error on the rows of a source, and how far their largest element stands out."""
        error, peak = equality.worst_of(self.rows, source)
        return f"worst error {scientific(error)}, |x| up to {significant(peak, 2)} times its rms"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
