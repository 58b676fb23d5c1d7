"""The contract: when an exported kernel may be called, with what fallback, on which evidence.

`Declaration` is what a candidate says of itself (its `CONTRACT` literal). `Contract` adds what
the export found out: source hashes, provenance, evidence, gate power, benchmark rows.
Data only; the rules that read it are in `predicate.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

CONTRACT_VERSION = 1

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
OpName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$")]
Dimension = int | str
"""A fixed extent, an axis name (`B`), or an axis plus a constant (`B+1`)."""
Verdict = Literal["faster", "slower", "same", "ambiguous"]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorGate(_Data):
    """What one tensor must be."""

    dtypes: tuple[str, ...]
    """Allowed dtypes without the `torch.` prefix: `bfloat16`."""
    shape: tuple[Dimension, ...]
    """One entry a dimension; the same axis name must mean the same extent in every tensor."""
    contiguous: bool = True
    """Row-major without gaps. False allows any strides."""
    alignment_bytes: int = 1
    """The data pointer must be a multiple of this."""
    optional: bool = False
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


class AxisRange(_Data):
    """Inclusive range of an axis."""

    minimum: int
    maximum: int


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


class Fallback(_Data):
    """What runs when the contract does not match."""

    kind: Literal["raise", "chain"]
    chain: tuple[str, ...] = ()


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


class SourceFile(_Data):
    path: str
    """Relative to the kernel's folder."""
    sha256: Sha256
    language: Literal["triton", "cuda", "python"]
    license: str


class Provenance(_Data):
    task: str
    author: str
    commit: str
    run: str
    """Name of the run the evidence comes from."""
    kda_lab: str


class Evidence(_Data):
    """A committed file that a claim rests on."""

    path: str
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


class MutantResult(_Data):
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


def json_schema() -> dict[str, object]:
    """The published JSON Schema of `contract.json`."""
    return Contract.model_json_schema()
