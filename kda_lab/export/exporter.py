"""Export a candidate: re-check every gate on its records, prove the staged folder, then swap it into the package.

Gates in order: imports, sources, declaration, evidence, replays, power, timing, dispatched, compile, alone, bits,
publish. The first that fails raises `ExportError` with the room `export.<gate>`; the package is untouched.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kda_lab import runtime
from kda_lab.captures.store import CaptureSet
from kda_lab.contracts.model import Contract, Evidence, Qualification, ShapeRule
from kda_lab.contracts.shapes import require_within
from kda_lab.dispatch.fallback import chain_reasons
from kda_lab.dispatch.kernel_files import CUDA, source_digest
from kda_lab.dispatch.loader import read_contracts
from kda_lab.errors import ExportError, ParameterError, Reason, UnavailableError
from kda_lab.export import assembly, evidence, fresh_process
from kda_lab.export.candidate import Candidate, read_candidate
from kda_lab.export.compile_gate import compile_units
from kda_lab.export.evidence import ArchitectureEvidence, Capability
from kda_lab.export.publish import SCRATCH_PREFIX, export_lock, put_in_place, remove_leftovers, staged_folder
from kda_lab.export.shapes import dispatched_rules
from kda_lab.ops.protocol import OpSpec
from kda_lab.ops.registry import load_op
from kda_lab.run_folder import RunFolder

ARCHITECTURES: tuple[Capability, ...] = ((9, 0), (12, 0), (12, 1))


@dataclass(frozen=True)
class Judged:
    """A candidate whose records passed every gate that needs no compiler and no kernel launch."""

    candidate: Candidate
    evidences: Mapping[Capability, ArchitectureEvidence]
    dispatched: tuple[ShapeRule, ...]


@dataclass(frozen=True)
class Destination:
    """Where an export goes."""

    kernels_dir: Path
    """Package folder of exported kernels."""
    evidence_dir: Path
    """Committed evidence, `reports/evidence`; an export adds `<kernel>/v<N>/`."""


def export_kernel(
    runs: Sequence[RunFolder],
    candidate: Path,
    destination: Destination,
    *,
    captures: Sequence[Path],
    architectures: Sequence[Capability] = ARCHITECTURES,
    device: str = "auto",
    leave_to: Sequence[str] = (),
) -> Path:
    """Export one candidate and return its folder in the package.

    Args:
        runs: folders with `verify.jsonl` and `timing.jsonl` of this very source, made on a GPU.
        candidate: the source file.
        destination: where it goes.
        captures: folders of capture sets; every capture must have been replayed, and is replayed again.
        architectures: compiled ahead of time. Those with evidence become `qualified`, the others `compiled`,
            or `refused` where they do not compile.
        device: where the bits are compared: `auto`, `cpu` or `cuda`.
        leave_to: exported kernels of the same op whose dispatched shapes this one shall not take.

    Raises:
        ExportError: a gate failed; the room names it, and the package is as it was.
        ParameterError: a name in `leave_to` is no exported kernel of the op.
    """
    judged = judge(runs, candidate, captures, _served(destination.kernels_dir, candidate, leave_to))
    with export_lock(destination.kernels_dir):
        return _export(judged, destination, captures, tuple(architectures), device)


def _served(kernels_dir: Path, candidate: Path, names: Sequence[str]) -> tuple[ShapeRule, ...]:
    """What the named kernels take."""
    if not names:
        return ()
    op = read_candidate(candidate).declaration.op
    contracts = {folder.contract.kernel: folder.contract for folder in read_contracts(kernels_dir)}
    own = sorted(name for name, contract in contracts.items() if contract.op == op)
    if unknown := [name for name in names if name not in own]:
        raise ParameterError(
            "export", [Reason("leave_to", repr(unknown), f"kernels of {op}: {', '.join(own) or 'none'}")]
        )
    return tuple(rule for name in names for rule in contracts[name].dispatched)


def judge(
    runs: Sequence[RunFolder], candidate: Path, captures: Sequence[Path], served: Sequence[ShapeRule] = ()
) -> Judged:
    """Gates declaration to dispatched: what the source says and what the records prove; launches nothing.

    `served` are shapes that other kernels take.

    Raises:
        ExportError: the first of these gates that failed.
    """
    read = read_candidate(candidate)
    spec = load_op(read.declaration.op).spec
    _require_op(read, spec)
    evidences = dict(sorted(evidence.collect(runs, read).items()))
    known = _capture_hashes(captures, read.declaration.op)
    for found in evidences.values():
        evidence.check_replays(found, known)
        evidence.check_scalars(found, read.declaration)
        evidence.check_power(found)
        evidence.check_timing(found, read.declaration)
    rules = dispatched_rules(read.declaration, _pooled(evidences), served)
    # What stands in the op's fallback chain serves every callable shape, faster or not.
    if not rules and read.declaration.kernel not in spec.fallback:
        verdicts = ", ".join(f"{r.row} {r.verdict or r.reason}" for e in evidences.values() for r in e.rows)
        reason = Reason("rows", repr(verdicts), "at least one batch whose rows are all faster beyond noise")
        raise ExportError("export.dispatched", [reason])
    try:
        require_within(rules, read.declaration.callable)
    except ValueError as error:
        remedy = "A row was timed outside CONTRACT.callable: widen it, or leave the row out of the runs."
        raise ExportError("export.dispatched", f"{error}. {remedy}") from error
    return Judged(read, evidences, rules)


def _require_op(candidate: Candidate, spec: OpSpec) -> None:
    """The declaration's tensors, scalars and fallback are those of its op.

    Raises:
        ExportError: gate `declaration`, with each name that is missing or foreign.
    """
    declaration, where = candidate.declaration, f"{candidate.path.name}: CONTRACT"
    reasons = chain_reasons(declaration, spec, where)
    for part, declared, of_op, needed in (
        ("tensors", declaration.tensors, tuple(dict.fromkeys((*spec.tensors, *spec.outputs))), spec.tensors),
        ("scalars", declaration.scalars, spec.scalars, spec.scalars),
    ):
        missing = [name for name in needed if name not in declared]
        foreign = [name for name in declared if name not in of_op]
        for words, names in (("without", missing), ("with", foreign)):
            given = f"{words} {', '.join(names)}"
            reasons += [Reason(f"{where}.{part}", given, f"those of {spec.name}: {', '.join(of_op)}")] if names else []
    for name in spec.updated:
        if name in declaration.tensors and declaration.tensors[name].optional:
            allowed = f"False: {spec.name} updates it in place, so a call always gives it"
            reasons.append(Reason(f"{where}.tensors.{name}.optional", "True", allowed))
    if reasons:
        raise ExportError("export.declaration", reasons)


def _capture_hashes(folders: Sequence[Path], op: str) -> dict[str, str]:
    known: dict[str, str] = {}
    for folder in folders:
        captures = CaptureSet.open(folder)
        if captures.op != op:
            raise ExportError("export.replays", [Reason(f"op of {folder}", repr(captures.op), repr(op))])
        known |= {name: captures.sha256_of(name) for name in captures.names()}
    return known


def _pooled(evidences: Mapping[Capability, ArchitectureEvidence]) -> list:  # type: ignore[type-arg]
    """Rows of every architecture; where there are several, a shape must be faster on each that measured it."""
    if len(evidences) == 1:
        return list(next(iter(evidences.values())).rows)
    return [replace(r, axes={**r.axes, "architecture": e.name}) for e in evidences.values() for r in e.rows]


def _export(
    judged: Judged,
    destination: Destination,
    captures: Sequence[Path],
    architectures: tuple[Capability, ...],
    device: str,
) -> Path:
    kernels_dir, evidence_dir = destination.kernels_dir, destination.evidence_dir
    _require_device(judged.candidate, device)
    kernel = judged.candidate.declaration.kernel
    version = next_version(kernels_dir / kernel, evidence_dir / kernel)
    files = {f"{e.name}.json": evidence.consolidated(e, judged.candidate) for e in judged.evidences.values()}
    cited = _citations(files, f"{evidence_dir.parent.name}/{evidence_dir.name}/{kernel}/v{version}")
    qualified = qualifications(judged, architectures, cited)
    contract = assembly.assemble(judged.candidate, version, judged.evidences, judged.dispatched, qualified)
    exported = assembly.folder_files(contract, judged.candidate)
    with staged_folder(kernels_dir, kernel, exported) as staged:
        fresh_process.check_alone(staged, contract)
        fresh_process.check_bits(staged, judged.candidate.path, captures, device)
        _require_unchanged(judged.candidate)
        with _published_evidence(evidence_dir / kernel, version, files, lambda: _holds(kernels_dir / kernel, exported)):
            put_in_place(staged, kernels_dir / kernel)
    return kernels_dir / kernel


def _require_device(candidate: Candidate, device: str) -> None:
    """A CUDA C++ kernel has no interpreter: on a CPU the gate `bits` would compare its torch twin with itself."""
    if candidate.declaration.language != CUDA:
        return
    try:
        found = runtime.resolve_device(device)
    except UnavailableError as error:
        raise ExportError("export.bits", str(error)) from error
    if found.type != "cuda":
        remedy = "Export on a GPU machine: a CPU runs the torch twin, whose bits say nothing of the kernel."
        reason = Reason("device", repr(str(found)), "a CUDA device, for a kernel of language 'cuda'", remedy)
        raise ExportError("export.bits", [reason])


def _require_unchanged(candidate: Candidate) -> None:
    """Compiler and replays read the candidate's files again: they must still be the bytes that are exported."""
    if source_digest(candidate.path, candidate.declaration.language) != candidate.sha256:
        raise ExportError("export.publish", f"{candidate.path.name} changed while it was exported. Export it again.")


def next_version(kernel: Path, kernel_evidence: Path) -> int:
    """One more than any version that is exported or has evidence, so that old evidence is never written over.

    Raises:
        ExportError: the exported folder has no readable contract.
    """
    versions = [int(p.name[1:]) for p in kernel_evidence.glob("v*") if p.name[1:].isdigit()]
    if kernel.exists():
        try:
            versions.append(Contract.model_validate(json.loads((kernel / "contract.json").read_text())).version)
        except (OSError, ValueError) as error:
            remedy = "Remove the folder, or put its committed version back."
            reason = Reason(f"{kernel}/contract.json", repr(str(error)[:200]), "a valid contract", remedy)
            raise ExportError("export.publish", [reason]) from error
    return 1 + max(versions, default=0)


def _citations(files: Mapping[str, bytes], folder: str) -> dict[str, Evidence]:
    return {name.split(".")[0]: assembly.evidence_entry(f"{folder}/{name}", data) for name, data in files.items()}


def qualifications(
    judged: Judged, architectures: Sequence[Capability], cited: Mapping[str, Evidence]
) -> tuple[Qualification, ...]:
    """Gate `compile`: one qualification an architecture, those with evidence first.

    Raises:
        ExportError: an architecture with evidence does not compile, or a named one is unknown.
    """
    named = dict.fromkeys([*judged.evidences, *architectures])
    # Compiler output is large and of no use afterwards: the hashes in the contract are what stays.
    with tempfile.TemporaryDirectory(prefix="kda_lab_compile_") as cache:
        return tuple(_qualification(judged, capability, cited, Path(cache)) for capability in named)


def _qualification(judged: Judged, capability: Capability, cited: Mapping[str, Evidence], cache: Path) -> Qualification:
    candidate, has_evidence = judged.candidate, capability in judged.evidences
    try:
        used = compile_units(candidate.compiled, candidate.declaration.compile_units, capability, cache)
    except ExportError as error:
        if has_evidence:
            raise
        return Qualification(capability=capability, status="refused", note=_one_line(str(error)))
    if has_evidence:
        proof = cited[judged.evidences[capability].name]
        return Qualification(capability=capability, status="qualified", evidence=proof, resources=used)
    note = "compiles ahead of time; never ran on this architecture"
    return Qualification(capability=capability, status="compiled", note=note, resources=used)


def _one_line(text: str, limit: int = 400) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit // 2]} … {flat[-limit // 2 :]}"


@contextmanager
def _published_evidence(
    folder: Path, version: int, files: Mapping[str, bytes], cited: Callable[[], bool]
) -> Iterator[Path]:
    """Evidence stands before the contract that cites it, and goes again when the contract does not come.

    `cited` says whether it came: an interrupt after the swap must not take the evidence of a kernel in service.
    """
    final = folder / f"v{version}"
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    with staged_folder(folder, final.name, files) as staged:
        put_in_place(staged, final)
    try:
        yield final
    except BaseException:
        if not cited():
            shutil.rmtree(final, ignore_errors=True)
        raise


def _holds(kernel: Path, files: Mapping[str, bytes]) -> bool:
    """Whether the exported folder's contract is the one of this export."""
    try:
        return (kernel / "contract.json").read_bytes() == files["contract.json"]
    except FileNotFoundError:
        return False
    except OSError:
        # Evidence too many does no harm; a kernel without its evidence does.
        return True


__all__ = ["ARCHITECTURES", "SCRATCH_PREFIX", "Judged", "export_kernel", "judge", "next_version", "qualifications"]
