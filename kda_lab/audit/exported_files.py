"""Files of an exported kernel: source hashes, the candidate they came from, licence, and the evidence that is cited."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from kda_lab.audit.exported_model import Exported, Outcome, sha256_of
from kda_lab.audit.finding import Finding
from kda_lab.contracts.model import Evidence, Qualification
from kda_lab.dispatch.kernel_files import digest_of
from kda_lab.dispatch.loader import CODE_SUFFIXES

LICENCE_FILE = "LICENSE.txt"
SPDX = "SPDX-License-Identifier:"
EXPORT_AGAIN = "export the kernel again and compare the folders"


def check_sources(kernel: Exported) -> Outcome:
    """Each source has the hash of the contract, lies in the folder, and no other code lies beside it."""
    findings = []
    if not kernel.folder.resolve().is_relative_to(kernel.places.kernels.resolve()):
        lost = f"the folder is a link to {kernel.folder.resolve()}, outside the folder of exported kernels"
        findings.append(kernel.finding("sources", "silent-wrong", lost, "follow the link"))
    for source in kernel.contract.sources:
        path = kernel.folder / source.path
        lost = _source_fault(path, kernel.folder, source.sha256)
        if lost:
            findings.append(kernel.finding("sources", "silent-wrong", lost, EXPORT_AGAIN, source.path))
    listed = {source.path for source in kernel.contract.sources}
    for path in sorted(kernel.folder.rglob("*")):
        name = path.relative_to(kernel.folder).as_posix()
        if path.suffix in CODE_SUFFIXES and "__pycache__" not in path.parts and name not in listed:
            lost = f"{name} is code that the contract does not list, so nothing says what it is"
            findings.append(kernel.finding("sources", "crash", lost, "load the kernel: it is refused", name))
    return kernel.judged("sources", findings, f"{len(listed)} files have the hashes of the contract")


def _source_fault(path: Path, folder: Path, sha256: str) -> str:
    """What is wrong with one source; empty when it is the file that was hashed."""
    if not path.is_file():
        return f"{path.name} is missing; the contract gives it the hash {sha256[:12]}"
    if not path.resolve().is_relative_to(folder.resolve()):
        return f"{path.name} is a link to {path.resolve()}, outside the kernel's folder"
    found = sha256_of(path.read_bytes())
    return "" if found == sha256 else f"{path.name} has the hash {found[:12]}; the contract says {sha256[:12]}"


def candidate_of(kernel: Exported) -> Path | None:
    """The candidate that a kernel was exported from: the same bytes, else the same kernel name; None without one."""
    suffixes = [Path(source.path).suffix for source in kernel.contract.sources]
    exported = [_bytes(kernel.folder / source.path) for source in kernel.contract.sources]
    hosts = sorted((kernel.places.candidates / kernel.contract.op).glob("*.py"))
    for host in hosts:
        if [_bytes(host.with_suffix(suffix)) for suffix in suffixes] == exported:
            return host
    return next((host for host in hosts if _declared_name(host) == kernel.name), None)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _declared_name(host: Path) -> str | None:
    """The kernel name in a candidate's CONTRACT; None where it has none that can be read without running it."""
    try:
        tree = ast.parse(host.read_bytes())
    # A candidate under work may be no Python at all; ValueError: NUL bytes; the rest: nested too deeply.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "kernel" and isinstance(value, ast.Constant):
                    return str(value.value)
    return None


def check_candidate(kernel: Exported) -> Outcome:
    """Whether the candidate is still, byte for byte, what was exported; moving on is no fault of the export."""
    candidate = candidate_of(kernel)
    if candidate is None:
        folder = kernel.places.candidates / kernel.contract.op
        return kernel.not_run("candidate", f"no candidate of this kernel stands in {_shown(folder, kernel)}")
    where = _shown(candidate, kernel)
    moved = moved_files(kernel, candidate)
    if not moved:
        return kernel.passed("candidate", f"byte for byte {where}")
    words = f"candidate moved on since version {kernel.contract.version}: {where} differs in {', '.join(moved)}"
    return kernel.noted("candidate", words)


def moved_files(kernel: Exported, candidate: Path) -> list[str]:
    """Endings of the files in which a candidate is no longer what was exported."""
    suffixes = [Path(source.path).suffix for source in kernel.contract.sources]
    exported = [kernel.folder / source.path for source in kernel.contract.sources]
    pairs = zip(suffixes, exported, strict=True)
    return [suffix for suffix, path in pairs if _bytes(candidate.with_suffix(suffix)) != _bytes(path)]


def _shown(path: Path, kernel: Exported) -> str:
    root = kernel.places.root
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def check_licence(kernel: Exported) -> Outcome:
    """The licence note names every source with the contract's licence, and no source says another one itself."""
    note = _text(kernel.folder / LICENCE_FILE)
    test = f"read {LICENCE_FILE} beside contract.json"
    if note is None:
        lost = f"{LICENCE_FILE} is missing or no text: the folder, copied alone, says nothing of its licence"
        return kernel.judged("licence", [kernel.finding("licence", "cosmetic", lost, test, LICENCE_FILE)], "")
    findings = []
    for source in kernel.contract.sources:
        if f"{source.path}: {SPDX} {source.license}" not in note.splitlines():
            lost = f"{LICENCE_FILE} has no line that gives {source.path} the licence {source.license}"
            findings.append(kernel.finding("licence", "cosmetic", lost, test, LICENCE_FILE, source.path))
        if source.license != kernel.contract.license:
            lost = f"the contract gives {source.path} the licence {source.license} and the kernel {kernel.contract.license}"
            findings.append(kernel.finding("licence", "cosmetic", lost, "read contract.json", symbol=source.path))
        findings += _header_findings(kernel, source.path, source.license)
    return kernel.judged("licence", findings, f"{kernel.contract.license} for {len(kernel.contract.sources)} sources")


def _header_findings(kernel: Exported, path: str, licence: str) -> list[Finding]:
    """A source need not carry a licence line, since the note beside it does; one that it carries must agree."""
    text = _text(kernel.folder / path) or ""
    said = [line.split(SPDX, 1)[1].strip(" */\"'#") for line in text.splitlines() if SPDX in line]
    return [
        kernel.finding(
            "licence", "cosmetic", f"{path} says {other!r}; the contract says {licence!r}", "read the header", path
        )
        for other in said
        if other != licence
    ]


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def check_evidence(kernel: Exported) -> Outcome:
    """Every cited file is there with its hash, and speaks of this kernel, this source and that architecture."""
    findings = []
    cited = [(a, a.evidence) for a in kernel.contract.architectures if a.evidence is not None]
    for architecture, evidence in cited:
        lost = _evidence_fault(kernel, architecture, evidence)
        if lost:
            test = "compare the file with the commit that the contract names"
            findings.append(kernel.finding("evidence", "silent-wrong", lost, test, symbol=evidence.path))
    if not cited:
        return kernel.not_run("evidence", "the contract cites none: no architecture is qualified")
    return kernel.judged("evidence", findings, f"{len(cited)} files have the cited hashes and name this source")


def _evidence_fault(kernel: Exported, architecture: Qualification, evidence: Evidence) -> str:
    path = kernel.places.root / evidence.path
    if not path.is_file():
        return f"{evidence.path} is missing"
    if not path.resolve().is_relative_to(kernel.places.root.resolve()):
        return f"{evidence.path} is a link to {path.resolve()}, outside the checkout"
    data = path.read_bytes()
    if sha256_of(data) != evidence.sha256:
        return f"{evidence.path} has the hash {sha256_of(data)[:12]}; the contract cites {evidence.sha256[:12]}"
    content = _json(data)
    if content is None:
        return f"{evidence.path} is no JSON object"
    wanted = {
        "kernel": kernel.name,
        "op": kernel.contract.op,
        "capability": list(architecture.capability),
        "source_sha256": digest_of([source.sha256 for source in kernel.contract.sources]),
    }
    wrong = [
        f"{key} {content.get(key)!r} instead of {value!r}" for key, value in wanted.items() if content.get(key) != value
    ]
    return f"{evidence.path} has {', '.join(wrong)}" if wrong else ""


def _json(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    # UnicodeDecodeError and JSONDecodeError are ValueErrors; deep nesting is a RecursionError.
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def evidence_content(kernel: Exported, evidence: Evidence) -> dict[str, Any] | None:
    """A cited file as JSON; None where it is missing or no JSON object."""
    return _json(_bytes(kernel.places.root / evidence.path) or b"")


def recorded_versions(kernel: Exported) -> dict[str, str]:
    """Package versions of the runs in the cited evidence; empty where none can be read.

    The contract does not name its compiler: the export compiles where its evidence was made, as far as is recorded.
    """
    for architecture in kernel.contract.architectures:
        if architecture.evidence is None:
            continue
        provenance = (evidence_content(kernel, architecture.evidence) or {}).get("provenance")
        versions = provenance.get("versions") if isinstance(provenance, dict) else None
        if isinstance(versions, dict) and versions:
            return {str(name): str(version) for name, version in versions.items()}
    return {}
