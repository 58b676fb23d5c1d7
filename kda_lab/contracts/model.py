"""The contract: when an exported kernel may be called, with what fallback, on which evidence.

`Declaration` is what a candidate says of itself (its `CONTRACT` literal). `Contract` adds what
the export found out: source hashes, provenance, evidence, gate power, benchmark rows.
Data only; the rules that read it are in `predicate.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from typing_extensions import Self

CONTRACT_VERSION = 1
DIMENSION = re.compile(r"([A-Za-z][A-Za-z0-9_]*?)(?:([+-])(\d+))?")


def split_dimension(dimension: str) -> tuple[str, int]:
    """`B` to `("B", 0)`, `B+1` to `("B", 1)`.

    Raises:
        ValueError: it is neither an axis name nor a name plus or minus a constant.
    """
    match = DIMENSION.fullmatch(dimension)
    if match is None:
        raise ValueError(f"{dimension!r} is no axis name like B, and no name plus a constant like B+1")
    name, sign, constant = match.groups()
    return name, int(f"{sign or '+'}{constant or 0}")


def _checked_dimension(dimension: int | str) -> int | str:
    if isinstance(dimension, str):
        split_dimension(dimension)
    elif dimension < 0:
        raise ValueError(f"an extent is {dimension}; allowed: 0 or more")
    return dimension


def _power_of_two(alignment_bytes: int) -> int:
    if alignment_bytes not in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        raise ValueError(f"alignment_bytes is {alignment_bytes}; allowed: a power of two from 1 to 256")
    return alignment_bytes


def _inside_folder(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path:
        raise ValueError(f"a path is {path!r}; allowed: relative, with /, without ..")
    return path


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
OpName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$")]
RelativePath = Annotated[str, AfterValidator(_inside_folder)]
Dimension = Annotated[int | str, AfterValidator(_checked_dimension)]
"""A fixed extent, an axis name (`B`), or an axis plus a constant (`B+1`)."""
Verdict = Literal["faster", "slower", "same", "ambiguous"]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorGate(_Data):
    """What one tensor must be."""

    dtypes: tuple[str, ...] = Field(min_length=1)
    """Allowed dtypes without the `torch.` prefix: `bfloat16`."""
    shape: tuple[Dimension, ...]
    """One entry a dimension; the same axis name must mean the same extent in every tensor."""
    contiguous: bool = True
    """Row-major without gaps. False allows any strides."""
    alignment_bytes: Annotated[int, AfterValidator(_power_of_two)] = 1
    """The data pointer must be a multiple of this: a power of two, at most 256."""
    optional: bool = False
    """May be None: an output buffer that the kernel then allocates."""
    device: Literal["cuda"] = "cuda"


class ScalarGate(_Data):
    """What one scalar must be. A bound of None does not bind."""

    kind: Literal["int", "float", "bool"]
    minimum: float | None = None
    maximum: float | None = None
    allowed: tuple[int | float | bool, ...] | None = None
    optional: bool = False
    remedy: str = ""
    """Sentence appended to the refusal."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum:g} is above maximum {self.maximum:g}")
        return self


class AxisRange(_Data):
    """Inclusive range of an axis."""

    minimum: int
    maximum: int

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is above maximum {self.maximum}")
        return self


class ShapeRule(_Data):
    """One set of shapes: every named axis within its value, values or range. Unnamed axes are free."""

    axes: dict[str, int | tuple[int, ...] | AxisRange]
    basis: str = ""
    """Why this set: `measured rows …`, `source thread`, …"""


class CompileUnit(_Data):
    """One Triton function with one specialisation, compiled ahead of time by the export."""

    function: str
    signature: dict[str, str]
    """Argument name to Triton type: `*bf16`, `*fp32`, `*i32`, `i32`, `fp32`, `constexpr`."""
    constants: dict[str, int | float | bool | str]
    divisible_by_16: tuple[str, ...] = ()
    """Arguments known to be multiples of 16 (pointers, strides)."""
    num_warps: int = 4
    num_stages: int = 2
    capabilities: tuple[tuple[int, int], ...] = ()
    """Architectures this unit is launched on; empty: all."""


class Fallback(_Data):
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
        return self


class State(_Data):
    """Device memory that outlives a call."""

    scratch_bytes: int
    """Most bytes held per device and workspace."""
    concurrency: str
    """Which launches may overlap, in one sentence."""
    reset: str
    """How the state returns to its start after an aborted launch."""


class Tolerance(_Data):
    """One gate of the verification with its limit and where the limit comes from."""

    gate: str
    metric: str
    limit: float
    source: str


class Declaration(_Data):
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
    callable: tuple[ShapeRule, ...]
    fallback: Fallback
    state: State
    kernels_per_call: int
    compile_units: tuple[CompileUnit, ...]

    @model_validator(mode="after")
    def _axes_are_shown(self) -> Self:
        _require_axes("callable", self.callable, self.tensors.values())
        return self


class SourceFile(_Data):
    """One file of the kernel, as it was hashed."""

    path: RelativePath
    """Relative to the kernel's folder."""
    sha256: Sha256
    language: Literal["triton", "cuda", "python"]
    license: str


class Provenance(_Data):
    """Where the kernel and its evidence come from."""

    task: str
    author: str
    commit: str
    run: str
    """Name of the run the evidence comes from."""
    kda_lab: str


class Evidence(_Data):
    """A committed file that a claim rests on."""

    path: RelativePath
    """Relative to the repository root: `reports/evidence/…`."""
    sha256: Sha256


class Resources(_Data):
    """What the ahead-of-time compile of one unit used."""

    function: str
    constants: dict[str, int | float | bool | str]
    num_warps: int
    num_stages: int
    shared_bytes: int
    registers: int | None = None
    spill_bytes: int | None = None
    cubin_sha256: Sha256 | None = None


class Qualification(_Data):
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


class MutantResult(_Data):
    """What became of one mutant over all captures."""

    name: str
    killed: bool
    by: str
    """Name of the check that rejected it; empty when it survived."""
    captures: int
    """On how many captures it applied and was judged."""


class GatePower(_Data):
    """The mutants that the gates rejected at the inputs the kernel was judged on."""

    killed: int
    total: int
    mutants: tuple[MutantResult, ...]


class BenchRow(_Data):
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


class Headline(_Data):
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
        _require_within(self.dispatched, self.callable)
        return self


def _require_axes(field: str, rules: Iterable[ShapeRule], gates: Iterable[TensorGate]) -> None:
    shown = {split_dimension(d)[0] for gate in gates for d in gate.shape if isinstance(d, str)}
    missing = sorted({axis for rule in rules for axis in rule.axes} - shown)
    if missing:
        raise ValueError(f"{field} names the axes {missing}; allowed: {sorted(shown)}, which the tensor shapes show")


def _require_unique(field: str, values: Sequence[object]) -> None:
    twice = sorted({repr(value) for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{field} names {', '.join(twice)} twice; allowed: once")


def _require_evidence_of(name: str, path: str) -> None:
    if PurePosixPath(path).name != name:
        raise ValueError(f"the evidence of a qualified architecture is {path!r}; allowed: a file called {name}")


def _require_within(dispatched: Iterable[ShapeRule], callable_rules: Sequence[ShapeRule]) -> None:
    for rule in dispatched:
        if not any(_rule_within(rule, wide) for wide in callable_rules):
            axes = rule.model_dump()["axes"]
            raise ValueError(f"a dispatched rule is {axes}; allowed: one that lies within one callable rule")


def _rule_within(rule: ShapeRule, wide: ShapeRule) -> bool:
    return all(name in rule.axes and _value_within(rule.axes[name], value) for name, value in wide.axes.items())


def _value_within(value: int | tuple[int, ...] | AxisRange, wide: int | tuple[int, ...] | AxisRange) -> bool:
    if isinstance(value, AxisRange):
        if isinstance(wide, AxisRange):
            return wide.minimum <= value.minimum and value.maximum <= wide.maximum
        listed = {wide} if isinstance(wide, int) else set(wide)
        # The length first: a contract may name a range of any size.
        extents = value.maximum - value.minimum + 1
        return extents <= len(listed) and listed.issuperset(range(value.minimum, value.maximum + 1))
    given = (value,) if isinstance(value, int) else value
    if isinstance(wide, AxisRange):
        return all(wide.minimum <= extent <= wide.maximum for extent in given)
    return set(given) <= ({wide} if isinstance(wide, int) else set(wide))


def json_schema() -> dict[str, object]:
    """The published JSON Schema of `contract.json`."""
    return Contract.model_json_schema()
