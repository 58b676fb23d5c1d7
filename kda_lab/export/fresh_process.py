"""Gates that need a fresh process: a computed declaration, a folder that imports alone, the candidate's very bits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kda_lab.contracts.model import Contract
from kda_lab.errors import ExportError, Reason

TIMEOUT_S = 900
STDERR_TAIL_CHARACTERS = 1500


def evaluated_contract(source: Path) -> Any:
    """The CONTRACT of a candidate that computes it, evaluated in a process of its own, as JSON types.

    Raises:
        ExportError: gate `declaration`, with the tail of the child's stderr.
    """
    return json.loads(_run("declaration", "contract_worker.py", [str(source.resolve())], None).splitlines()[-1])


def check_alone(staged: Path, contract: Contract) -> None:
    """Gate `alone`: the Python source imports in a process where kda_lab is not to be found, and has its entry.

    Device code is no module: the host code reads it from the same folder when it is imported.

    Raises:
        ExportError: with the tail of the child's stderr.
    """
    for source in (s for s in contract.sources if s.path.endswith(".py")):
        _run("alone", "alone_worker.py", [str(staged / source.path), contract.entry], None)


def check_bits(staged: Path, candidate: Path, captures: Sequence[Path], device: str) -> int:
    """Gate `bits`: the staged kernel, loaded through its contract, gives the candidate's bits on every capture.

    Args:
        staged: the kernel's folder before it is put in place.
        candidate: source that the evidence was made with.
        captures: folders of capture sets.
        device: `auto`, `cpu` or `cuda`.

    Returns:
        Number of captures compared.

    Raises:
        ExportError: the process failed, a capture differs, or there was none to compare.
    """
    request = {
        "folder": str(staged.resolve()),
        "candidate": str(candidate.resolve()),
        "captures": [str(c.resolve()) for c in captures],
        "device": device,
    }
    answer: dict[str, Any] = json.loads(_run("bits", "bits_worker.py", [], request).splitlines()[-1])
    if answer["different"]:
        raise ExportError(
            "export.bits", f"the staged kernel differs from the candidate on {', '.join(answer['different'])}"
        )
    if answer["replayed"] < 1:
        raise ExportError("export.bits", [Reason("captures replayed", "0", "at least one", "Name a capture set.")])
    return int(answer["replayed"])


def _run(gate: str, worker: str, arguments: list[str], request: dict[str, Any] | None) -> str:
    command = [sys.executable, str(Path(__file__).with_name(worker)), *arguments]
    try:
        done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise ExportError(f"export.{gate}", f"{worker} took more than {TIMEOUT_S} s") from error
    if done.returncode != 0:
        tail = done.stderr.strip()[-STDERR_TAIL_CHARACTERS:]
        raise ExportError(f"export.{gate}", f"fresh process failed (exit {done.returncode}): {tail}")
    return done.stdout
