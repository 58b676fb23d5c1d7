"""A small checkout with one exported toy kernel, its candidate, evidence, captures and door, to be tampered with."""

from __future__ import annotations

import hashlib
import json
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kda_lab import runtime
from kda_lab.audit import exported_compile
from kda_lab.audit.exported_model import Exported, ExportedAudit, Places
from kda_lab.audit.finding import Audit
from kda_lab.audit.trees import audit_trees
from kda_lab.captures.synthetic import synthetic_set
from kda_lab.contracts.model import CompileUnit, Contract, Resources
from kda_lab.dispatch.loader import read_contract
from kda_lab.export import compile_gate
from kda_lab.export.candidate import read_candidate

ROOT = Path(__file__).parents[2]
TOY = ROOT / "tests" / "export" / "toy_candidate.py"
OP = "qsa.packed_decode"
NAME = "toy_decode"
TIMES = {"baseline_us": 20.0, "ratio": 2.0, "low": 1.9, "high": 2.1, "noise": 0.01}
"""The toy's one timed row: numbers that contract and evidence share."""


@dataclass(frozen=True)
class ToyExport:
    """A checkout at `root` that holds one exported kernel; each method tampers with one thing."""

    root: Path

    @property
    def places(self) -> Places:
        return Places(self.root, self.root / "kda_lab" / "kernels")

    @property
    def folder(self) -> Path:
        return self.places.kernels / NAME

    @property
    def source(self) -> Path:
        return self.folder / "kernel.py"

    @property
    def candidate(self) -> Path:
        return self.places.candidates / OP / "toy.py"

    @property
    def evidence(self) -> Path:
        return self.root / "reports" / "evidence" / NAME / "v1" / "sm90.json"

    @property
    def kernel(self) -> Exported:
        return Exported(self.folder, read_contract(self.folder), self.places)

    def edit_contract(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the parsed contract in place and write it."""
        contract = json.loads((self.folder / "contract.json").read_text())
        change(contract)
        (self.folder / "contract.json").write_text(json.dumps(contract, indent=2))

    def edit_evidence(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the evidence and cite it by its new hash."""
        content = json.loads(self.evidence.read_text())
        change(content)
        self.evidence.write_text(json.dumps(content))
        digest = hashlib.sha256(self.evidence.read_bytes()).hexdigest()
        self.edit_contract(lambda c: c["architectures"][0]["evidence"].update(sha256=digest))

    def export_source(self, text: str) -> None:
        """Another source, exported as it is: hashes in contract and evidence agree, and the candidate is the same."""
        for path in (self.source, self.candidate):
            path.write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.edit_contract(lambda c: c["sources"][0].update(sha256=digest))
        self.edit_evidence(lambda e: e.update(source_sha256=digest))

    def failed(self, audit: ExportedAudit) -> set[str]:
        """Names of the checks that failed."""
        return {outcome.check for outcome in audit.outcomes if outcome.status == "failed"}


@pytest.fixture(scope="session")
def toy_built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, exported_compile.Built]:
    """The toy's one unit, really compiled for SM90: its cubin, and what the audit's own build says of it."""
    folder = tmp_path_factory.mktemp("built")
    (unit,) = read_candidate(TOY).declaration.compile_units
    kernel: Any = type("Source", (), {"compiled": TOY})
    built = exported_compile.build(kernel, (9, 0), unit, None, folder / "cache")
    return next((folder / "cache").rglob("*.cubin")), built


@pytest.fixture(scope="session")
def pristine_toy(tmp_path_factory: pytest.TempPathFactory, toy_built: tuple[Path, exported_compile.Built]) -> ToyExport:
    """The checkout as an export would leave it; copied for each test."""
    toy = ToyExport(tmp_path_factory.mktemp("pristine") / "checkout")
    for path in (toy.source, toy.candidate):
        path.parent.mkdir(parents=True)
        shutil.copy(TOY, path)
    shutil.copy(ROOT / "kda_lab" / "qsa.py", toy.places.doors / "qsa.py")
    synthetic_set(OP, toy.places.captures / OP, seed=3, labels=["tp2-B2-short", "tp2-B1-short"])
    digest = hashlib.sha256(TOY.read_bytes()).hexdigest()
    evidence = {
        "kernel": NAME,
        "op": OP,
        "capability": [9, 0],
        "source_sha256": digest,
        "provenance": {"versions": runtime.versions()},
        "rows": [{**TIMES, "row": "tp2-B1", "baseline": "slow", "arm_us": 10.0, "verdict": "faster", "trials": 5}],
        "power": [{"capture": "c", "mutants": [{"name": "all_zero", "applies": True, "killed": True}]}],
    }
    toy.evidence.parent.mkdir(parents=True)
    toy.evidence.write_text(json.dumps(evidence))
    used = toy_built[1].used
    assert used is not None
    contract = toy_contract(digest, hashlib.sha256(toy.evidence.read_bytes()).hexdigest(), used)
    (toy.folder / "contract.json").write_text(contract.model_dump_json(indent=2))
    (toy.folder / "LICENSE.txt").write_text("kernel.py: SPDX-License-Identifier: Apache-2.0\nAuthor: the authors\n")
    return toy


def toy_contract(source: str, evidence: str, used: Resources) -> Contract:
    """A contract of the toy: qualified on SM90 with these resources, refused on SM120."""
    cited = {"path": f"reports/evidence/{NAME}/v1/sm90.json", "sha256": evidence}
    qualified = {"capability": [9, 0], "status": "qualified", "evidence": cited, "resources": [used.model_dump()]}
    return Contract.model_validate(
        {
            **read_candidate(TOY).declaration.model_dump(),
            "version": 1,
            "sources": [{"path": "kernel.py", "sha256": source, "language": "triton", "license": "Apache-2.0"}],
            "provenance": {"task": "t", "author": "a", "commit": "c", "run": "r", "kda_lab": "0"},
            "dispatched": [{"axes": {"B": {"minimum": 1, "maximum": 4}, "HQ": 12, "HKV": 1}}],
            "architectures": [qualified, {"capability": [12, 0], "status": "refused", "note": "too large"}],
            "tolerances": [],
            "gate_power": {"killed": 1, "total": 1, "mutants": []},
            "benchmarks": [toy_row("slow"), toy_row("peer")],
            "headline": [{"baseline": name, "geomean": 2.0, "minimum": 2.0, "count": 1} for name in ("slow", "peer")],
        }
    )


def toy_row(baseline: str) -> dict[str, Any]:
    """A row of the toy's contract over one baseline; those over a peer stand in no evidence."""
    axes = {"HQ": 12, "HKV": 1, "B": 1}
    measured = {**TIMES, "kernel_us": 10.0, "verdict": "faster", "trials": 5}
    return {**measured, "capability": [9, 0], "row": "tp2-B1", "axes": axes, "baseline": baseline}


@pytest.fixture
def toy(pristine_toy: ToyExport, tmp_path: Path) -> ToyExport:
    """A checkout of this test's own."""
    return ToyExport(Path(shutil.copytree(pristine_toy.root, tmp_path / "checkout")))


@pytest.fixture
def compiled_before(toy_built: tuple[Path, exported_compile.Built], monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's answer is the one real compile of this session; a copy of its cubin is the new artifact."""
    cubin, built = toy_built

    def compile_unit(source: Path, unit: CompileUnit, capability: tuple[int, int], cache_dir: Path) -> Resources:
        cache_dir.mkdir(parents=True)
        (cache_dir / "toy.cubin").write_bytes(cubin.read_bytes())
        assert built.used is not None
        return built.used

    monkeypatch.setattr(compile_gate, "compile_unit", compile_unit)


@pytest.fixture
def replayed_before(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The worker's answer is this one, which a test may change: one launch, equal bits, every gate passed."""
    from kda_lab.audit import exported_replay

    answer: dict[str, Any] = {
        "device": "cpu",
        "unavailable": "",
        "different": [],
        "launches": {"tp2-B1-short": {"_toy_kernel": 1}},
        "foreign": [],
        "failed": {},
        "candidate_fault": "",
    }
    monkeypatch.setattr(exported_replay, "_run", lambda _request: (answer, ""))
    return answer


Files = dict[str, str | bytes]


@pytest.fixture
def write_files(tmp_path: Path) -> Callable[[str, Files], Path]:
    """Write files below a fresh folder of the test's own; texts are dedented."""

    def write(name: str, files: Files) -> Path:
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        for path, content in files.items():
            place = tmp_path / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).encode())
        return tmp_path / name

    return write


@pytest.fixture
def audit(write_files: Callable[[str, Files], Path]) -> Callable[[Files, Files], Audit]:
    """Audit two trees that are given as file names and texts."""

    def run(source: Files, export: Files, scope: Sequence[str] = (), base: Files | None = None) -> Audit:
        before = write_files("base", base) if base is not None else None
        return audit_trees(write_files("source", source), write_files("export", export), base=before, scope=scope)

    return run
