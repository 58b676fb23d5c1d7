"""The QSA pipeline as a notebook runs it: from hidden states to outputs, each stage checked, then timed on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from pandas.io.formats.style import Styler

from kda_lab import runtime
from kda_lab.errors import ParameterError, Reason
from kda_lab.notebook import display
from kda_lab.notebook.qsa_draft import DRAFT_STAGES, DraftRun, run_draft
from kda_lab.notebook.qsa_stages import DoorArm, check_stage, kernel_arm, run_stage, timing_row, ways_to_attend
from kda_lab.notebook.session import Session
from kda_lab.ops.protocol import Arm, Call
from kda_lab.ops.qsa import pipeline
from kda_lab.ops.qsa.geometry import BUDGET_TOKENS, HEAD_DIM, INDEX_DIM, INDEX_HEADS, RATIO, TOPK_BLOCKS
from kda_lab.ops.qsa.pipeline import Paging
from kda_lab.ops.qsa.rope import cos_sin_table
from kda_lab.ops.qsa.synthetic_text import HIDDEN, Projections, Text, draw_projections, draw_text
from kda_lab.ops.qsa_packed_decode.cases import TOPOLOGIES
from kda_lab.ops.qsa_topk_blocks.selection import selection_faults
from kda_lab.ops.registry import load_op
from kda_lab.report import style
from kda_lab.report.comparisons import compare
from kda_lab.report.foot import foot
from kda_lab.report.numbers import scientific
from kda_lab.report.qsa_count_figure import CountedRow, selected_counts
from kda_lab.report.qsa_draft_figure import draft_row
from kda_lab.report.qsa_selection_figure import SelectedRow, selection
from kda_lab.report.qsa_stage_figure import StageCheck, stage_errors, stage_times
from kda_lab.report.records import read_run
from kda_lab.report.style import Picture
from kda_lab.run_folder import write_json_lines
from kda_lab.timing.machine import why_not_timed
from kda_lab.timing.protocol import Protocol
from kda_lab.timing.rows import time_rows
from kda_lab.verify import metrics
from kda_lab.verify.verdict import Verdict

STAGES_FILE = "stages.jsonl"
ROTARY_DIM = 64
PROMPT = "keys of the prompt"
SELECTING = ("key of the step", "scores", "blocks", "tokens")
"""Stages of a decode step before its attention."""
PARTS = ("compaction", "packed attention")
PAGED = "paged attention"
SCORE_TOLERANCE = 1e-2
"""How far a block left out may lie above a chosen one, as a share of the row's largest score: BF16 keys were scored."""
CALLS_PER_GRAPH = 1024
"""Fewer than the protocol allows, and enough for 1 ms of the fastest stage: the small ones move some kilobytes and stay in
the L2 whatever is rotated; 16384 calls would take minutes to capture."""
GRAPH_US = 20_000.0
"""Of a graph: the torch baselines of the small stages launch ten kernels a call, of 270 us."""
SHOWN_ROWS = 8


@dataclass(frozen=True)
class Indexed:
    """What the indexer made of the hidden states."""

    q_index: torch.Tensor
    """[B, 4, 128] bf16: index queries of the rows."""
    raw_keys: torch.Tensor
    """[T, 128] bf16: one a token, as projected."""
    cache: torch.Tensor
    """[S/4, 128] bf16: compressed keys where the pages have them."""


@dataclass
class QsaSession:
    """One run of the pipeline. Every method is one step and returns what the notebook shows."""

    session: Session
    text: Text
    weights: Projections
    paging: Paging
    cos_sin: torch.Tensor
    """[T, 64] fp32."""
    calls: dict[str, Call] = field(default_factory=dict)
    """Stage to its call, outputs written."""
    arms: dict[str, Arm] = field(default_factory=dict)
    checks: list[StageCheck] = field(default_factory=list)
    indexed: Indexed | None = None
    draft: DraftRun | None = None
    left_out_errors: tuple[float, ...] = ()
    """rel-L2 of each row's selected attention from dense attention."""
    not_timed: str = "not timed yet"

    @classmethod
    def open(cls, session: Session, *, context: int, batch: int, topology: str, seed: int) -> QsaSession:
        """Draw text and weights, and give every request its pages.

        Raises:
            ParameterError: an unknown topology, or a context too short for the batch.
        """
        if topology not in TOPOLOGIES:
            allowed = ", ".join(map(repr, TOPOLOGIES))
            raise ParameterError("notebook", [Reason("topology", repr(topology), allowed)])
        device, lengths = session.device, pipeline.row_lengths(context, batch)
        return cls(
            session,
            draw_text(context, seed, device),
            draw_projections(*TOPOLOGIES[topology], seed, device),
            pipeline.page_requests(lengths, seed, device),
            cos_sin_table(context, ROTARY_DIM, device=device),
        )

    def inputs(self) -> Styler:
        """What the run starts from: nothing of it is real, and the table says so."""
        lengths = self.paging.lengths
        edges = int((self.text.topics[1:] != self.text.topics[:-1]).sum())
        return display.facts(
            {
                "hidden states": f"synthetic, drawn from a seed: {len(self.text.topics)} tokens x {HIDDEN}, BF16",
                "text": f"{edges + 1} passages on {len(self.text.topics.unique())} topics, which come back",
                "rows": f"{len(lengths)} requests, each a prefix of the text, one query at its last token",
                "lengths, tokens": _listed(lengths),
                "complete blocks": _listed([n // RATIO for n in lengths]),
                "tails, tokens": _listed([n % RATIO for n in lengths]),
                "query / KV heads": f"{len(self.weights.q) // HEAD_DIM} / {len(self.weights.k) // HEAD_DIM}",
                "pool": f"{self.paging.slots} slots in shuffled pages of 64; a slot without a token holds NaN",
            }
        )

    def compress(self) -> Styler:
        """Index projections, then one compressed key a complete block: of the prompt, then of the decode step."""
        raw = pipeline.project(self.text.hidden, self.weights.index, INDEX_DIM)
        raw_keys, at = raw[:, INDEX_HEADS].contiguous(), self._positions
        q_index = pipeline.index_queries(raw[at, :INDEX_HEADS], self.weights.index_q_norm, self.cos_sin[at])
        prompt = pipeline.prompt_call(raw_keys, self.weights.index_k_norm, self.cos_sin, self.paging)
        # In the interpreter the kernel takes 5 ms a token; there the prompt goes through the op's torch baseline.
        self._run(prompt, load_op(prompt.op).baselines.ARMS[0] if runtime.interpreter_on() else None)
        step = self._run(pipeline.step_call(prompt, raw_keys, self.paging))
        self.indexed = Indexed(q_index, raw_keys, pipeline.compressed_cache([prompt, step], self.paging))
        return self._table([prompt.label, step.label])

    def select(self) -> Picture:
        """Scores, top-k and expansion, and the check of the choice against scores in FP64 from the raw keys."""
        found = self._found
        scores = self._run(pipeline.score_call(found.q_index, found.cache, self.paging)).outputs["scores"]
        blocks = self._run(pipeline.topk_call(scores, self.paging)).outputs["blocks"]
        self._run(pipeline.expand_call(blocks, self.paging))
        self.checks.append(self._check_choice(blocks))
        rows = [
            SelectedRow(f"row {b}, {n} tokens", n, scores[b, : n // RATIO].float().cpu(), self._tokens_of(b), RATIO)
            for b, n in list(enumerate(self.paging.lengths))[:SHOWN_ROWS]
        ]
        return self._saved("selection", selection(rows, self.text.topics, foot=self._foot()))

    def counts(self) -> Picture:
        """The saw-tooth, with the rows of this run on it."""
        rows = [CountedRow(n, len(self._tokens_of(b))) for b, n in enumerate(self.paging.lengths)]
        longest = max(self.paging.lengths)
        return self._saved("counts", selected_counts(selected_count, BUDGET_TOKENS, longest, rows, foot=self._foot()))

    def attend(self, paged_kernel: str) -> Styler:
        """Attention twice: over compacted rows through the door, and straight over the pool; both end to end.

        Args:
            paged_kernel: candidate of `qsa.paged_decode`, by its file stem.

        Raises:
            ParameterError: no candidate of `qsa.paged_decode` has the name.
        """
        k, v = (pipeline.project(self.text.hidden, w, HEAD_DIM) for w in (self.weights.k, self.weights.v))
        q = pipeline.project(self.text.hidden[self._positions], self.weights.q, HEAD_DIM)
        pools = pipeline.scatter_rows(k, self.paging), pipeline.scatter_rows(v, self.paging)
        tokens = self.calls["tokens"].outputs["tokens"]
        compacted = self._run(pipeline.compact_call(tokens, self.paging, *pools))
        packed = self._run(pipeline.packed_call(q, compacted), DoorArm())
        paged = self._run(
            pipeline.paged_call(q, tokens, self.paging, *pools), kernel_arm("qsa.paged_decode", paged_kernel)
        )
        exact = pipeline.dense_attention(q, k, v, self.paging.lengths, self._mask())
        self.checks += [self._end_to_end(call, exact) for call in (packed, paged)]
        dense = pipeline.dense_attention(q, k, v, self.paging.lengths)
        self.left_out_errors = tuple(metrics.row_errors(exact.flatten(1), dense.flatten(1)).tolist())
        self.draft = run_draft(q, (k, v), pools, self.paging, self.arms)
        self.checks += self.draft.checks
        return self._table([*PARTS, PAGED, *(f"end to end: {name}" for name in (PARTS[1], PAGED))])

    def left_out(self) -> Styler:
        """How much of dense attention the selection leaves out, row by row: a property of the data, not judged."""
        lines = [
            (f"row {b}", n, len(self._tokens_of(b)), scientific(error))
            for b, (n, error) in enumerate(zip(self.paging.lengths, self.left_out_errors, strict=True))
        ]
        heads = ("row", "context, tokens", "attended, tokens", "rel-L2 from dense attention")
        return display.shown(heads, lines, "What the selection leaves out; 0 where it takes every token.")

    def draft_figure(self) -> Picture:
        """A draft row with holes, and what two ways to compact make of it."""
        if self.draft is None:
            raise ParameterError("notebook", "draft is None; allowed: a drafted row. Call attend() first.")
        told = f"the naive copy is {scientific(self.draft.naive_error)} (rel-L2) from the right output · {self._foot()}"
        return self._saved("draft", draft_row(self.draft.row, foot=told))

    def error_figure(self) -> Picture:
        """Every check of the run, with its limit; the records go into the run's folder."""
        write_json_lines(self.session.run.path / STAGES_FILE, [self._record(check) for check in self.checks])
        return self._saved("stage_errors", stage_errors(self.checks, foot=self._foot()))

    def time(self, trials: int, paged_kernels: Sequence[str]) -> str:
        """Each stage on copies of its own call, and the ways to attend, by the cold protocol; nothing on a CPU.

        Args:
            paged_kernels: candidates of `qsa.paged_decode` to time beside compaction and FlashInfer.
        """
        device, run = self.session.device, self.session.run
        self.not_timed = why_not_timed(device)
        if self.not_timed:
            return self.not_timed
        protocol = replace(Protocol(), trials=trials, max_calls_per_graph=CALLS_PER_GRAPH, max_graph_us=GRAPH_US)
        for stage in (*SELECTING, *PARTS):
            op, rows = timing_row(self.calls[stage])
            arms: list[tuple[Arm, str]] = [(self.arms[stage], "candidate"), (op.baselines.ARMS[0], "baseline")]
            time_rows(op, rows, arms, run, device=device, protocol=protocol)
        op, rows = timing_row(self.calls[PAGED])
        time_rows(op, rows, ways_to_attend(paged_kernels), run, device=device, protocol=protocol)
        return f"{len(run.read_timing())} records"

    def time_figure(self) -> Picture | str:
        """Microseconds of each stage and of each way to attend; a sentence where nothing was timed."""
        if self.not_timed:
            return self.not_timed
        rows = compare(read_run(self.session.run)).rows
        stages, parts = ([r for name in names for r in rows if r.row == name] for names in (SELECTING, PARTS))
        ways = [r for r in rows if r.row == PAGED]
        return self._saved("stage_times", stage_times(stages, ways, parts, foot=foot(read_run(self.session.run))))

    def verdict(self) -> Verdict:
        """Judge every check, and on a GPU that every stage has a time; never a speed. Written into the run's folder."""
        failures = [f"{c.stage} ({c.arm}): {c.detail or 'above its limit'}" for c in self.checks if not c.passed]
        found = {c.stage for c in self.checks}
        wanted = (PROMPT, *SELECTING, *PARTS, PAGED, *DRAFT_STAGES)
        failures += [f"{stage}: not checked" for stage in wanted if stage not in found]
        mine = [r for r in compare(read_run(self.session.run)).rows if r.role == "candidate"]
        failures += [f"{r.arm} on {r.row}: {r.state}, {r.reason}" for r in mine if r.state in ("invalid", "refused")]
        timed = {r.row for r in mine if r.arm_us}
        if not self.not_timed:
            failures += [f"{stage}: not timed" for stage in (*SELECTING, *PARTS, PAGED) if stage not in timed]
        right = sum(c.passed for c in self.checks)
        evidence = {"checks": len(self.checks), "right": right, "timed_stages": len(timed)}
        words = self.not_timed or f"{len(timed)} stages timed"
        verdict = Verdict.of(
            f"{right} of {len(self.checks)} checks along the pipeline right; {words}", evidence, failures
        )
        verdict.write(self.session.run)
        return verdict

    @property
    def _found(self) -> Indexed:
        if self.indexed is None:
            raise ParameterError("notebook", "indexed is None; allowed: what compress() makes. Call it first.")
        return self.indexed

    @property
    def _positions(self) -> torch.Tensor:
        return torch.tensor(self.paging.lengths, device=self.session.device) - 1

    def _run(self, call: Call, arm: Arm | None = None) -> Call:
        """Run a stage through its arm, check it, and keep both."""
        arm = arm or kernel_arm(call.op)
        run_stage(arm, call)
        self.calls[call.label], self.arms[call.label] = call, arm
        self.checks.append(check_stage(arm, call))
        return call

    def _tokens_of(self, row: int) -> torch.Tensor:
        tokens = self.calls["tokens"].outputs["tokens"][row].long().cpu()
        return tokens[(tokens >= 0) & (tokens < self.paging.lengths[row])]

    def _mask(self) -> torch.Tensor:
        mask = torch.zeros(len(self.paging.lengths), len(self.text.topics), dtype=torch.bool)
        for row in range(len(mask)):
            mask[row, self._tokens_of(row)] = True
        return mask.to(self.session.device)

    def _check_choice(self, blocks: torch.Tensor) -> StageCheck:
        """Every block left out scores at most a hundredth of the row's largest above the chosen ones, in FP64."""
        found = self._found
        exact = pipeline.block_scores_exact(found.q_index, found.raw_keys, self.weights.index_k_norm, self.cos_sin)
        worst, faults = 0.0, []
        for row, length in enumerate(self.paging.lengths):
            live = exact[row : row + 1, : length // RATIO]
            chosen = blocks[row : row + 1]
            size = torch.tensor([live.shape[1]], dtype=torch.int32, device=blocks.device)
            most = float(live.max()) if live.numel() else 1.0
            faults += selection_faults(chosen, live, size, SCORE_TOLERANCE * most)
            worst = max(worst, _regret(chosen[0], live[0]) / most)
        return StageCheck(
            "blocks against FP64",
            self.arms["blocks"].name,
            worst,
            SCORE_TOLERANCE,
            "share of a score",
            "; ".join(faults),
        )

    def _end_to_end(self, call: Call, exact: torch.Tensor) -> StageCheck:
        stage = next(c for c in self.checks if c.stage == call.label)
        error = metrics.rel_l2(call.outputs["out"], exact)
        detail = "" if error <= stage.limit else f"error is {error:.3g}; allowed: at most {stage.limit:.3g}"
        return StageCheck(f"end to end: {call.label}", stage.arm, error, stage.limit, detail=detail)

    def _table(self, stages: Sequence[str]) -> Styler:
        chosen = [c for c in self.checks if c.stage in stages]
        lines = [
            (c.stage, c.arm, scientific(c.error), scientific(c.limit), c.metric, c.detail or "right") for c in chosen
        ]
        return display.shown(("stage", "arm", "error", "limit", "of", "verdict"), lines)

    def _record(self, check: StageCheck) -> dict[str, Any]:
        call = self.calls.get(check.stage)
        return {"kind": "stage", "op": call.op if call else "", **asdict(check), "passed": check.passed}

    def _foot(self) -> str:
        facts = runtime.device_facts(self.session.device)
        how = ", kernels in Triton's interpreter" if runtime.interpreter_on() else ""
        return f"{facts['name']}{how} · synthetic hidden states, {len(self.text.topics)} tokens"

    def _saved(self, name: str, picture: Picture) -> Picture:
        style.save(picture, self.session.run.path, name)
        return picture


def selected_count(length: int) -> int:
    """Tokens that a row of `length` tokens attends to: whole blocks up to the budget, and its tail."""
    return min(length // RATIO, TOPK_BLOCKS) * RATIO + length % RATIO


def _regret(chosen: torch.Tensor, scores: torch.Tensor) -> float:
    """By how much the best block left out scores above the worst chosen one; 0 where the choice is exact."""
    taken = torch.zeros_like(scores, dtype=torch.bool)
    taken[chosen[chosen >= 0].long()] = True
    if bool(taken.all()) or not bool(taken.any()):
        return 0.0
    return max(0.0, float(scores[~taken].max() - scores[taken].min()))


def _listed(values: Sequence[int]) -> str:
    shown = ", ".join(map(str, values[:SHOWN_ROWS]))
    return shown if len(values) <= SHOWN_ROWS else f"{shown}, … {values[-1]}"
