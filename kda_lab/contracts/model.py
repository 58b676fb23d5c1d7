"""The contract: when an exported kernel may be called, with what fallback, on which evidence.

`Declaration` is what a candidate says of itself (its `CONTRACT` literal). `Contract` adds what
the export found out: source hashes, provenance, evidence, gate power, benchmark rows.
Data only; the rules that read it are in `predicate.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from kda_lab.contracts.dimensions import Dimension, axis_of, extent_of, parse_dimension
from kda_lab.contracts.fields import Data, Name, OpName, RelativePath, Sha256
from kda_lab.contracts.gates import ScalarGate, TensorGate
from kda_lab.contracts.shapes import AxisRange, Extents, ShapeRule, always_multiple, require_within

__all__ = [
    "AxisRange",
    "BenchRow",
    "CompileUnit",
    "Contract",
    "Declaration",
    "Dimension",
    "Evidence",
    "Fallback",
    "GatePower",
    "Headline",
    "MutantResult",
    "Provenance",
    "Qualification",
    "Resources",
    "ScalarGate",
    "ShapeRule",
    "SourceFile",
    "State",
    "TensorGate",
    "Tolerance",
    "axis_of",
    "extent_of",
    "json_schema",
    "parse_dimension",
]

CONTRACT_VERSION = 1
Verdict = Literal["faster", "slower", "same", "ambiguous"]


class CompileUnit(Data):
    """One Triton function with one specialisation, compiled ahead of time by the export."""

    function: str
    signature: dict[str, str]
    """Argument name to Triton type: `*bf16`, `*fp32`, `*i32`, `i32`, `fp32`, `constexpr`."""
    constants: dict[str, int | float | bool | str]
    divisible_by_16: tuple[str, ...] = ()
    """Arguments known to be multiples of 16 (pointers, strides)."""
    num_warps: int = 4
    num_stages: int = 2
    maxnreg: int | None = Field(default=None, ge=16, le=255)
    """Most registers of a thread, as the launch says; None leaves it to the compiler. Language `triton` only."""
    capabilities: tuple[tuple[int, int], ...] = ()
    """Architectures this unit is launched on; empty: all."""
    dynamic_shared_bytes: int = Field(default=0, ge=0)
    """Shared memory the launch asks for beside the static one, in bytes; language `cuda` only."""
    options: tuple[str, ...] = ()
    """Options of the compiler, as the kernel passes them: `-std=c++17`; language `cuda` only."""


class Fallback(Data):
    """What runs when the contract does not match."""

    kind: Literal["raise", "chain"]
    chain: tuple[str, ...] = ()
    """Names in order; empty exactly when `kind` is `raise`."""

    @model_validator(mode="after")
    def _chain_has_names(self) -> Self:
        if (self.kind == "chain") != bool(self.chain):
            raise ValueError(
                f"fallback kind is {self.kind!r} with chain {self.chain!r}; a chain has names, a raise none"
            )
        _require_unique("a fallback chain", self.chain)
        return self


class State(Data):
    """Device memory that outlives a call."""

    scratch_bytes: int
    """Most bytes held per device and workspace."""
    concurrency: str
    """Which launches may overlap, in one sentence."""
    reset: str
    """How the state returns to its start after an aborted launch."""


class Tolerance(Data):
    """One gate of the verification with its limit and where the limit comes from."""

    gate: str
    metric: str
    limit: float
    source: str


class Declaration(Data):
    """What a candidate declares of itself, before there is evidence."""

    op: OpName
    kernel: Name
    entry: Name
    """Function in the source file that takes the op's arguments."""
    language: Literal["triton", "cuda"]
    license: str
    author: str
    task: str
    """What the kernel was written for, or where the idea comes from."""
    tensors: dict[str, TensorGate]
    scalars: dict[str, ScalarGate]
    same_device: bool = True
    """All tensors on one device."""
    callable: tuple[ShapeRule, ...] = Field(min_length=1)
    range_axis: str | None = None
    """Axis whose measured values bracket what is dispatched, where `callable` gives several axes as ranges.

    None: the only one that it gives so; with several, each measured shape is dispatched by itself.
    """
    fallback: Fallback
    state: State
    kernels_per_call: int = Field(ge=1)
    compile_units: tuple[CompileUnit, ...]

    @model_validator(mode="after")
    def _range_axis_is_one(self) -> Self:
        ranges = sorted({n for rule in self.callable for n, v in rule.axes.items() if isinstance(v, AxisRange)})
        if self.range_axis is not None and self.range_axis not in ranges:
            raise ValueError(
                f"range_axis is {self.range_axis!r}; allowed: an axis that callable gives as a range: "
                f"{', '.join(ranges) or 'none'}"
            )
        return self

    @model_validator(mode="after")
    def _axes_are_shown(self) -> Self:
        _require_axes("callable", self.callable, self.tensors.values())
        for gate in self.tensors.values():
            for dimension in gate.shape:
                if isinstance(dimension, str):
                    _require_checkable(dimension, self.tensors.values(), self.callable)
        return self

    @model_validator(mode="after")
    def _register_limits_reach_a_compiler(self) -> Self:
        limited = [unit for unit in self.compile_units if unit.maxnreg is not None]
        if self.language != "triton" and limited:
            raise ValueError(
                f"maxnreg of {limited[0].function} is {limited[0].maxnreg} with language {self.language!r}; "
                "allowed: None (write __launch_bounds__ or -maxrregcount)"
            )
        return self


class SourceFile(Data):
    """One file of the kernel, as it was hashed."""

    path: RelativePath
    """Relative to the kernel's folder."""
    sha256: Sha256
    language: Literal["triton", "cuda", "python"]
    license: str


class Provenance(Data):
    """Where the kernel and its evidence come from."""

    task: str
    author: str
    commit: str
    run: str
    """Name of the run the evidence comes from."""
    kda_lab: str


class Evidence(Data):
    """A committed file that a claim rests on."""

    path: RelativePath
    """Relative to the repository root: `reports/evidence/…`."""
    sha256: Sha256


class Resources(Data):
    """What the ahead-of-time compile of one unit used."""

    function: str
    constants: dict[str, int | float | bool | str]
    num_warps: int
    num_stages: int
    shared_bytes: int
    registers: int | None = None
    spill_bytes: int | None = None
    cubin_sha256: Sha256 | None = None


class Qualification(Data):
    """How far one architecture is supported.

    `qualified`: ran on that hardware and passed every gate; may be dispatched.
    `compiled`: compiles for it, never ran; needs an explicit opt-in.
    `refused`: must not run there; `note` says why.
    """

    capability: tuple[int, int]
    status: Literal["qualified", "compiled", "refused"]
    evidence: Evidence | None = None
    note: str = ""
    resources: tuple[Resources, ...] = ()

    @model_validator(mode="after")
    def _claims_are_backed(self) -> Self:
        major, minor = self.capability
        if self.status == "qualified" and self.evidence is None:
            raise ValueError(f"{major}.{minor} is qualified without evidence; name the file and its hash")
        if self.status == "qualified" and self.evidence is not None:
            _require_evidence_of(f"sm{major}{minor}.json", self.evidence.path)
        if self.status == "refused" and not self.note:
            raise ValueError(f"{major}.{minor} is refused without a note; say why")
        return self


class MutantResult(Data):
    """What became of one mutant over all captures."""

    name: str
    killed: bool
    by: str
    """Name of the check that rejected it; empty when it survived."""
    captures: int
    """On how many captures it applied and was judged."""


class GatePower(Data):
    """The mutants that the gates rejected at the inputs the kernel was judged on."""

    killed: int
    total: int
    mutants: tuple[MutantResult, ...]


class BenchRow(Data):
    """One timed row: this kernel against one baseline."""

    capability: tuple[int, int]
    row: str
    axes: dict[str, int | str]
    baseline: str
    baseline_us: float
    kernel_us: float
    ratio: float
    """baseline_us / kernel_us: above 1 the kernel is faster."""
    low: float
    high: float
    """Bootstrap 95 % interval of the ratio."""
    noise: float
    """Half width of the A/A band, relative: 0.012 is ±1.2 %."""
    verdict: Verdict
    trials: int


class Headline(Data):
    """Ratios over one baseline, in three numbers that belong together."""

    baseline: str
    geomean: float
    minimum: float
    count: int


class Contract(Declaration):
    """A kernel's full contract: the declaration and everything its export proved."""

    contract_version: Literal[1] = 1
    version: int = Field(ge=1)
    """Export number of this kernel; a new export is a new version."""
    sources: tuple[SourceFile, ...] = Field(min_length=1)
    provenance: Provenance
    dispatched: tuple[ShapeRule, ...]
    architectures: tuple[Qualification, ...]
    tolerances: tuple[Tolerance, ...]
    gate_power: GatePower
    benchmarks: tuple[BenchRow, ...]
    headline: tuple[Headline, ...]

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        _require_axes("dispatched", self.dispatched, self.tensors.values())
        _require_unique("sources", [source.path for source in self.sources])
        _require_unique("architectures", [architecture.capability for architecture in self.architectures])
        cited = [a.evidence for a in self.architectures if a.evidence is not None]
        _require_unique("architectures' evidence", [evidence.path for evidence in cited])
        _require_unique("architectures' evidence", [evidence.sha256 for evidence in cited])
        require_within(self.dispatched, self.callable)
        return self


def _require_axes(field: str, rules: Iterable[ShapeRule], gates: Iterable[TensorGate]) -> None:
    shown = {axis_of(d) for gate in gates for d in gate.shape if isinstance(d, str)}
    missing = sorted({axis for rule in rules for axis in rule.axes} - shown)
    if missing:
        raise ValueError(f"{field} names the axes {missing}; allowed: {sorted(shown)}, which the tensor shapes show")


def _require_checkable(dimension: str, gates: Iterable[TensorGate], rules: Sequence[ShapeRule]) -> None:
    """Demand that a rounded dimension has an extent to check, and never hides a rest of its division."""
    parts = parse_dimension(dimension)
    if parts.shows_axis:
        return
    always_given = [parse_dimension(d) for g in gates if not g.optional for d in g.shape if isinstance(d, str)]
    showing = [d for d in always_given if d.axis == parts.axis and d.shows_axis]
    if not showing:
        raise ValueError(
            f"a shape has {dimension!r}, but no required tensor shows {parts.axis}; "
            f"allowed: a rounded dimension of an axis that another one shows, such as {parts.axis!r}"
        )
    if any(d.divisor % parts.divisor == 0 and d.offset == 0 for d in showing):
        return
    loose = [rule for rule in rules if not _multiple_in(rule, parts.axis, parts.divisor)]
    if loose:
        raise ValueError(
            f"a shape has {dimension!r}, but the callable rule {loose[0].model_dump(exclude_defaults=True)['axes']} lets {parts.axis} be no "
            f"multiple of {parts.divisor}; allowed: such multiples only (multiple_of)"
        )


def _multiple_in(rule: ShapeRule, axis: str, divisor: int) -> bool:
    value: Extents | None = rule.axes.get(axis)
    return divisor == 1 or (value is not None and always_multiple(value, divisor))


def _require_unique(field: str, values: Sequence[object]) -> None:
    twice = sorted({repr(value) for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{field} names {', '.join(twice)} twice; allowed: once")


def _require_evidence_of(name: str, path: str) -> None:
    if PurePosixPath(path).name != name:
        raise ValueError(f"the evidence of a qualified architecture is {path!r}; allowed: a file called {name}")


def json_schema() -> dict[str, object]:
    """The published JSON Schema of `contract.json`."""
    return Contract.model_json_schema()
