"""What makes two runs the same run: the notebook, its parameters, the files they name, the code and the machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import kda_lab
from kda_lab import runtime
from kda_lab.batch.parameters import INJECTED
from kda_lab.errors import ParameterError, Reason
from kda_lab.run_folder import RunFolder

RECORD_NAMES = (
    "executed.ipynb",
    "log.txt",
    "parameters.json",
    "provenance.json",
    "verdict.json",
    "verify.jsonl",
    "timing.jsonl",
    "chain.jsonl",
    "equality.jsonl",
    "identities.jsonl",
    "judgements.jsonl",
    "projection.jsonl",
    "stages.jsonl",
    "suites.jsonl",
    "trace.jsonl",
    "index.html",
    "notebook.html",
    "summary.json",
    "rows.csv",
    "rows.parquet",
)
"""Files of a run that `fresh` removes; anything else in the folder is left alone."""

CANDIDATES = "notebooks/candidates"
"""Folder whose files a notebook names by stem, so that no parameter holds their path."""

LONGEST_PATH = 1000
"""Characters; longer text is not a path, and asking the file system about it would raise."""


@dataclass(frozen=True)
class Identity:
    """Content of `parameters.json`."""

    notebook: str
    notebook_sha256: str
    parameters: dict[str, Any]
    """Every parameter of the notebook with its value in this run, `run_dir` left out."""
    inputs: dict[str, str]
    """Parameter name (`kernels[0]` inside a list) to SHA-256 of the file, or the capture set's manifest, that it
    names, where it names one; and `notebooks/candidates` to the hash over all files there."""
    code_sha256: str
    """Of the sources of kda_lab itself."""
    machine: dict[str, str]
    """Device type and name that the run resolves to, and the versions of torch and triton."""

    def as_json(self) -> dict[str, Any]:
        """The same as JSON types, so that it compares equal to what is read back."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self), allow_nan=False))
        return found


def identify(notebook: Path, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Identity:
    """Identity of a run of `notebook` with these typed parameters."""
    values = {n: given.get(n, default) for n, default in defaults.items() if n != INJECTED}
    named = {n: _named_file(v) for n, v in _texts(values)}
    inputs = {n: _sha256(p.read_bytes()) for n, p in named.items() if p is not None}
    # All of them, since which one a stem means is the notebook's affair: an edit too many costs only a second run.
    inputs |= _candidates_input()
    return Identity(
        notebook.name, _sha256(notebook.read_bytes()), values, inputs, code_sha256(), _machine(values.get("device"))
    )


def _texts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every text among the parameters, with its name; those in lists as `name[index]`."""
    for name, value in values.items():
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield from _texts({f"{name}[{index}]": item for index, item in enumerate(value)})


def _named_file(value: str) -> Path | None:
    """The file that a text parameter names; for a capture set's folder its manifest, which hashes the rest."""
    if not value or len(value) > LONGEST_PATH or "\0" in value:
        return None
    path = runtime.project_path(value)
    try:
        return next((p for p in (path, path / "manifest.json") if p.is_file()), None)
    # Text that is no path can be too long for a file's name.
    except OSError:
        return None


def _candidates_input() -> dict[str, str]:
    root = runtime.project_path(CANDIDATES)
    files = sorted(p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {CANDIDATES: _sha256_of(root, files)} if files else {}


def _machine(device: object) -> dict[str, str]:
    """Device and compiler that the verdict holds for; a pass on a CPU says nothing of a GPU."""
    versions = runtime.versions()
    found = {"torch": versions["torch"], "triton": versions["triton"]}
    try:
        facts = runtime.device_facts(runtime.resolve_device(device if isinstance(device, str) else "auto"))
    # The notebook itself says what is wrong with its device (a number too high: RuntimeError); the identity only notes it.
    except (ParameterError, RuntimeError):
        return {**found, "device_type": str(device), "device_name": "unavailable"}
    return {**found, "device_type": str(facts["type"]), "device_name": str(facts["name"])}


def code_sha256() -> str:
    """SHA-256 over the names and contents of kda_lab's Python files."""
    root = Path(kda_lab.__file__).parent
    return _sha256_of(root, sorted(root.rglob("*.py")))


def _sha256_of(root: Path, files: Sequence[Path]) -> str:
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def already_passed(run: RunFolder, identity: Identity) -> bool:
    """Whether the folder holds a passed run of exactly this: same notebook, parameters, inputs, code, machine."""
    return _read(run.parameters) == identity.as_json() and bool((_read(run.verdict) or {}).get("passed") is True)


def check_same_run(run: RunFolder, identity: Identity) -> None:
    """Refuse to mix two runs in one folder; one that has measured nothing leaves it to other parameters.

    Raises:
        ParameterError: the folder holds records of another notebook or of other parameters; each difference is named.
    """
    held = [n for n in RECORD_NAMES if (run.path / n).exists()]
    if not held:
        return
    before, now = _read(run.parameters), identity.as_json()
    if before is None:
        remedy = "Name an empty folder, or start over with --fresh."
        raise ParameterError(
            "batch",
            [Reason("out", f"a folder with {held} and no readable parameters.json", "a run of this notebook", remedy)],
        )
    remedy = "Name another folder, or start over with --fresh."
    reasons = [
        Reason(f"{field} in {run.path}", repr(now[field]), repr(before.get(field)), remedy)
        for field in ("notebook", "notebook_sha256")
        if before.get(field) != now[field]
    ]
    old = before.get("parameters", {})
    reasons += [
        Reason(f"parameter {name} in {run.path}", repr(now["parameters"].get(name)), repr(old.get(name)), remedy)
        for name in {**old, **now["parameters"]}
        if old.get(name) != now["parameters"].get(name)
    ]
    if reasons and (before.get("notebook") != now["notebook"] or _measured(run)):
        raise ParameterError("batch", reasons)


def _measured(run: RunFolder) -> bool:
    """Whether the folder holds records or a verdict: a run whose parameters the notebook refused has neither."""
    return run.verdict.exists() or any(run.path.glob("*.jsonl"))


def _read(path: Path) -> Any:
    """JSON content; None where the file is missing or torn, as a killed run may leave it."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def clear(run: RunFolder) -> None:
    """Remove the record files of an earlier run, nothing else."""
    for name in RECORD_NAMES:
        (run.path / name).unlink(missing_ok=True)
