"""From declaration and evidence to the contract, and the files of the exported folder."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kda_lab import runtime
from kda_lab.contracts.model import (
    BenchRow,
    Contract,
    Evidence,
    GatePower,
    Headline,
    MutantResult,
    Provenance,
    Qualification,
    ShapeRule,
    SourceFile,
    Tolerance,
)
from kda_lab.export.candidate import Candidate
from kda_lab.export.evidence import ArchitectureEvidence, Capability
from kda_lab.verify.checks import checks_of_name

SOURCE_NAME = "kernel.py"
DEVICE_NAME = "kernel.cu"
"""Device code of language `cuda`; the host code finds it as its own name with this ending."""
Evidences = Mapping[Capability, ArchitectureEvidence]


def assemble(
    candidate: Candidate,
    version: int,
    evidences: Evidences,
    dispatched: Sequence[ShapeRule],
    architectures: Sequence[Qualification],
) -> Contract:
    """The full contract of one export."""
    declaration = candidate.declaration
    benchmarks = _benchmarks(evidences)
    return Contract(
        **{name: getattr(declaration, name) for name in type(declaration).model_fields},
        version=version,
        sources=_sources(candidate),
        provenance=_provenance(candidate, evidences),
        dispatched=tuple(dispatched),
        architectures=tuple(architectures),
        tolerances=_tolerances(declaration.op, evidences),
        gate_power=_gate_power(evidences),
        benchmarks=benchmarks,
        headline=_headlines(benchmarks),
    )


def _sources(candidate: Candidate) -> tuple[SourceFile, ...]:
    """The files with their hashes, host code first: `kernel_files.digest_of` these hashes is what records carry."""
    license_name = candidate.declaration.license
    if candidate.files.device is None:
        return (SourceFile(path=SOURCE_NAME, sha256=candidate.sha256, language="triton", license=license_name),)
    host, device = candidate.files.hashes
    return (
        SourceFile(path=SOURCE_NAME, sha256=host, language="python", license=license_name),
        SourceFile(path=DEVICE_NAME, sha256=device, language="cuda", license=license_name),
    )


def evidence_entry(path: str, content: bytes) -> Evidence:
    """How a contract cites one committed file."""
    return Evidence(path=path, sha256=hashlib.sha256(content).hexdigest())


def folder_files(contract: Contract, candidate: Candidate) -> dict[str, bytes]:
    """File name to content of the exported folder: sources, contract, a page for people, the licence note."""
    # Not sorted: the order of the tensors is the declaration's, and refusals name axes by the first that shows them.
    text = json.dumps(contract.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
    device = {} if candidate.files.device is None else {DEVICE_NAME: candidate.files.device}
    return {
        SOURCE_NAME: candidate.files.host,
        **device,
        "contract.json": text.encode(),
        "README.md": _readme(contract).encode(),
        "LICENSE.txt": _license_note(contract).encode(),
    }


def _provenance(candidate: Candidate, evidences: Evidences) -> Provenance:
    found = [e.provenance for e in evidences.values()]
    commits = dict.fromkeys(str(p.get("git", {}).get("commit", "unknown")) for p in found)
    return Provenance(
        task=candidate.declaration.task,
        author=candidate.declaration.author,
        commit=", ".join(commits),
        run=", ".join(dict.fromkeys(name for e in evidences.values() for name in e.runs)),
        kda_lab=runtime.versions()["kda-lab"],
    )


def _tolerances(op: str, evidences: Evidences) -> tuple[Tolerance, ...]:
    """Largest limit that each check applied, by kind of capture: what the evidence was really judged with."""
    what = {check.name: check.what for check in checks_of_name(op)}
    limits: dict[tuple[str, str], list[float]] = {}
    for record in (r for e in evidences.values() for r in e.replays):
        for check in record["checks"]:
            limits.setdefault((check["name"], record["capture_kind"]), []).append(check["limit"])
    return tuple(
        Tolerance(
            gate=f"{name} ({kind})",
            metric=what.get(name, name),
            limit=max(found),
            source=f"largest limit of {len(found)} replays; each limit is in the evidence file",
        )
        for (name, kind), found in limits.items()
    )


def _gate_power(evidences: Evidences) -> GatePower:
    judged: dict[str, list[dict[str, Any]]] = {}
    for record in (p for e in evidences.values() for p in e.powers):
        for mutant in record["mutants"]:
            judged.setdefault(mutant["name"], []).extend([mutant] if mutant["applies"] else [])
    mutants = tuple(_mutant(name, found) for name, found in judged.items())
    applied = [m for m in mutants if m.captures]
    return GatePower(killed=sum(m.killed for m in applied), total=len(applied), mutants=mutants)


def _mutant(name: str, found: Sequence[Mapping[str, Any]]) -> MutantResult:
    by = Counter(m["by"] for m in found if m["by"]).most_common(1)
    killed = bool(found) and all(m["killed"] for m in found)
    return MutantResult(name=name, killed=killed, by=by[0][0] if by else "", captures=len(found))


def _benchmarks(evidences: Evidences) -> tuple[BenchRow, ...]:
    return tuple(
        BenchRow(
            capability=capability,
            row=row.row,
            axes={n: v for n, v in row.axes.items() if isinstance(v, (int, str))},
            baseline=row.baseline,
            baseline_us=row.baseline_us,
            kernel_us=row.arm_us,
            ratio=row.ratio,
            low=row.low,
            high=row.high,
            noise=row.noise,
            verdict=row.verdict,
            trials=row.trials,
        )
        for capability, evidence in evidences.items()
        for row in (*evidence.rows, *evidence.peer_rows)
        # An ambiguous row can lack an interval: it is in the evidence file, with its reason.
        if row.verdict and None not in (row.low, row.high, row.noise)
    )


def _headlines(benchmarks: Sequence[BenchRow]) -> tuple[Headline, ...]:
    """One line a baseline over all timed rows, the slow ones too."""
    ratios: dict[str, list[float]] = {}
    for row in benchmarks:
        ratios.setdefault(row.baseline, []).append(row.ratio)
    return tuple(
        Headline(baseline=name, geomean=math.exp(math.fsum(map(math.log, r)) / len(r)), minimum=min(r), count=len(r))
        for name, r in ratios.items()
    )


def _readme(contract: Contract) -> str:
    lines = [f"# {contract.kernel} {contract.version}: `{contract.op}`", "", contract.task, ""]
    needs = "torch and cuda.core (with NVRTC)" if contract.language == "cuda" else "torch and triton"
    lines += [f"Call `{contract.entry}` in `{SOURCE_NAME}`; it needs {needs}, nothing else. `contract.json` says"]
    lines += [
        "when it may be called and on what evidence. Written by an export: do not edit, a changed hash is refused.",
        "",
    ]
    lines += ["| architecture | status |", "|---|---|"]
    lines += ["| sm{}{} | {} |".format(*a.capability, f"{a.status} {a.note}".strip()) for a in contract.architectures]
    lines += [""]
    lines += [
        f"Against `{h.baseline}`: geomean {h.geomean:.3g}x, minimum {h.minimum:.3g}x over {h.count} rows."
        for h in contract.headline
    ]
    lines += [f"Gates rejected {contract.gate_power.killed} of {contract.gate_power.total} deliberately wrong kernels."]
    return "\n".join(lines) + "\n"


def _license_note(contract: Contract) -> str:
    files = "\n".join(f"{s.path}: SPDX-License-Identifier: {s.license}" for s in contract.sources)
    return f"{files}\nAuthor: {contract.author}\nTask: {contract.task}\n"
