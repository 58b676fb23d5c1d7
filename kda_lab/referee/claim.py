"""The claim: what somebody says of two arms, with every number, fact and setting that stands behind it.

One `Claim` is one comparison: one question, one metric, one operating point. Readers make claims, `judge` reads
them. Nothing is computed here, so that a claim written out and read back is the same claim. NaN and zero are
allowed in a run: the judge says what they mean.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, field_validator, model_validator
from typing_extensions import Self

from kda_lab.contracts.fields import Data
from kda_lab.referee.metrics import METRICS, Metric, convert, metric_of, to_metric

__all__ = ["METRICS", "Metric", "convert", "metric_of", "to_metric"]

Setting = str | int | float | bool | None
CacheState = Literal["", "cold", "warm", "cleared", "flushed"]
"""State of compiled-code caches and prefix caches before the run: `cold` not yet built, `warm` built before,
`cleared` removed before the run, `flushed` prefix cache emptied, empty text where nobody said."""
Mode = Literal["", "eager", "graph"]
Question = Literal["speed", "equality", "score", "gate"]
Requirement = Literal["control", "rounds", "resolved", "hardware", "commit", "cache_state", "equal_occupancy"]


class Fact(Data):
    """Base of every part of a claim: frozen, no unknown field, and NaN survives being written as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Source(Fact):
    """Where a number was read."""

    file: str = ""
    line: int = Field(default=0, ge=0)
    """1 for the first line; 0 where the file has no lines."""
    note: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return " ".join(p for p in (place, f"({self.note})" if self.note else "") if p)


class Run(Fact):
    """One run of one arm, or one printed number that summarises several (`summarises` > 1)."""

    arm: str = Field(min_length=1)
    round: int | None = None
    """Runs of the same round stand beside each other in time and are compared as a pair; None without rounds."""
    order: int | None = None
    """Place in the order of execution, over all arms; None where nobody said."""
    commit: str = ""
    hardware: str = ""
    concurrency: int | None = Field(default=None, ge=1)
    input_tokens: int | None = Field(default=None, ge=0)
    """A request, every one the same; None where they vary or nobody said."""
    output_tokens: int | None = Field(default=None, ge=0)
    metrics: dict[str, float] = Field(default_factory=dict)
    """Metric of `METRICS` to value in that metric's unit."""
    samples: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """The values of single requests, under the metric of their mean: `ttft_mean_ms`, `tpot_mean_ms`, `e2e_mean_ms`."""
    resolved: dict[str, Setting] = Field(default_factory=dict)
    """Configuration that held at run time: memory split, backends, parallel layout, library versions, environment."""
    files: dict[str, str] = Field(default_factory=dict)
    """Path to SHA-256 of the arm's source files."""
    cache_state: CacheState = ""
    mode: Mode = ""
    summarises: int = Field(default=1, ge=1)
    """How many runs stand behind the numbers; above 1 their spread is lost."""
    summary: Literal["", "median", "mean"] = ""
    superseded: bool = False
    """Whether the author replaced the number, or it was taken before the commit under judgement."""
    source: Source = Source()

    @field_validator("metrics", "samples")
    @classmethod
    def _known_metrics(cls, value: dict[str, object]) -> dict[str, object]:
        unknown = sorted(set(value) - set(METRICS))
        if unknown:
            raise ValueError(f"metrics are {unknown!r}; allowed: {', '.join(sorted(METRICS))}")
        return value

    @model_validator(mode="after")
    def _a_summary_is_named(self) -> Self:
        if (self.summarises > 1) != bool(self.summary):
            raise ValueError(
                f"summary is {self.summary!r} and summarises is {self.summarises}; allowed: both, or neither"
            )
        return self


class Control(Fact):
    """One A/A control: the arm whose runs repeat another arm's code."""

    arm: str
    """Arm of the repeated runs; may be the repeated arm itself where two of its runs stand in one round."""
    repeats: str
    """Arm whose code it runs; the baseline, as a rule."""
    adjacent: bool = False
    """Whether the control was run next to the candidate's runs."""


class Published(Fact):
    """One derived number as its author printed it, to be recomputed."""

    metric: str = ""
    """Metric or score that it is about."""
    statistic: Literal["change", "difference", "ratio", "geomean", "mean", "median", "share", "value"]
    """`change` = candidate / baseline - 1; `difference` = candidate - baseline; `ratio` = baseline / candidate."""
    value: float
    unit: str = "percent"
    """`percent`, `points` (percentage points), `x`, or a unit of `UNITS`."""
    digits: int = Field(default=2, ge=0)
    """Digits after the point that were printed."""
    arm: str = ""
    """Arm that a mean, a median or a value belongs to."""
    source: Source = Source()


class Score(Fact):
    """One evaluation of one arm: a share of right answers."""

    arm: str = Field(min_length=1)
    name: str
    """Of the evaluation: `gsm8k`."""
    value: float
    """As printed, in percent: 95.814."""
    digits: int = Field(default=3, ge=0)
    """Digits after the point of the percentage that were printed."""
    correct: int | None = Field(default=None, ge=0)
    questions: int | None = Field(default=None, ge=1, le=1_000_000)
    """Questions that the author says were asked."""
    round: int | None = None
    commit: str = ""
    superseded: bool = False
    source: Source = Source()


class Equality(Fact):
    """One comparison of outputs, of two arms or of one arm with itself (the A/A control)."""

    left: str
    right: str
    """Equal to `left` for the control."""
    mode: str = "normal"
    """`normal`, `deterministic`, or the setting's own name."""
    what: str = "token ids"
    compared: int | None = Field(default=None, ge=1)
    """How many values; None where nobody said."""
    equal: int | None = Field(default=None, ge=0)
    identical: bool
    maximum_difference: float | None = None
    first_difference: str = ""
    """`prompt 3 token 17 (ids 5, 9)`."""
    source: Source = Source()


class Level(Fact):
    """One level at which the same change was measured, innermost first: kernel, slice, graph, step, serving."""

    name: str
    baseline_us: float
    candidate_us: float
    per_next: float = Field(default=1.0, gt=0)
    """How many of this level's items are in one item of the next level: 3 prologues in a slice."""
    overlapped: bool = False
    """Whether the values are sums of durations that ran on more than one stream."""
    source: Source = Source()


class Coverage(Fact):
    """What tests ran, where, and which hardware the claim speaks of."""

    name: str
    ran_on: str
    claimed_for: str = ""
    passed: int = Field(ge=0)
    failed: int = Field(default=0, ge=0)
    skipped: int = Field(default=0, ge=0)
    runs_the_change: bool | None = None
    """Whether the changed code was shown to have run; None where nobody said."""
    source: Source = Source()


class Gate(Fact):
    """A tolerance, and what it did with outputs that it must reject."""

    name: str
    accepts: dict[str, bool]
    """Wrong output to whether the gate accepts it: `all zero`, `state unchanged`, and each mutant."""
    accepts_candidate: bool | None = None
    tolerance: str = ""
    source: Source = Source()


class Claim(Fact):
    """One comparison of a candidate with a baseline."""

    name: str = Field(min_length=1)
    title: str = ""
    thread: str = ""
    """Where it was made: `sglang PR 36206`."""
    question: Question = "speed"
    metric: str = "throughput_tok_s"
    """Metric that the verdict is about; read for the question `speed` only."""
    baseline: str = "baseline"
    candidate: str = "candidate"
    runs: tuple[Run, ...] = ()
    controls: tuple[Control, ...] = ()
    published: tuple[Published, ...] = ()
    scores: tuple[Score, ...] = ()
    equality: tuple[Equality, ...] = ()
    levels: tuple[Level, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    gates: tuple[Gate, ...] = ()
    requires: tuple[Requirement, ...] = ()
    """Facts without which this claim is not decided."""
    margin_percent: float = Field(default=1.0, gt=0, lt=50, allow_inf_nan=False)
    """Change that counts as none: the margin of `equivalent`."""
    scope: tuple[str, ...] = ()
    """Patterns of the files in which the arms may differ: `python/sglang/kernels/*`."""
    commit: str = ""
    """The commit under judgement; a candidate's run at another one is superseded."""
    source: Source = Source()

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        if value not in METRICS:
            raise ValueError(f"metric is {value!r}; allowed: {', '.join(sorted(METRICS))}")
        return value

    @model_validator(mode="after")
    def _two_arms(self) -> Self:
        if self.baseline == self.candidate:
            raise ValueError(f"candidate is {self.candidate!r}; allowed: another arm than the baseline")
        return self

    def of(self, arm: str, metric: str = "") -> tuple[Run, ...]:
        """Runs of one arm that count: not superseded, and carrying the metric where one is named."""
        return tuple(r for r in self.runs if r.arm == arm and not r.superseded and (not metric or metric in r.metrics))
