"""Replay of an exported kernel: the candidate's bits, proof that this very kernel ran, and the op's own gates.

In a process of its own, so that Triton's interpreter and the hooks leave this one alone. A kernel in CUDA C++ has no
interpreter: without a GPU it is not replayed, and says so, instead of letting its torch twin stand in for it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kda_lab import runtime
from kda_lab.audit.exported_files import candidate_of, moved_files
from kda_lab.audit.exported_model import Exported, Outcome
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import CaptureError

TIMEOUT_S = 900
STDERR_TAIL_CHARACTERS = 600
MOST_NAMES = 3
"""Captures that are named one by one; more are counted."""
CHECKS_OF_REPLAY = ("replay", "path", "gates")
_WORKER = Path(__file__).with_name("exported_replay_worker.py")


def check_replay(kernel: Exported, every: bool, device: str = "auto") -> list[Outcome]:
    """The checks `replay`, `path` and `gates` on the op's captures.

    Args:
        kernel: the exported kernel.
        every: all captures; else the one with the fewest bytes.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        UnavailableError: the device is not there.
    """
    found = runtime.resolve_device(device)
    if kernel.contract.language == "cuda" and found.type != "cuda":
        return _none(kernel, "not replayed: no GPU, and CUDA C++ has no interpreter")
    folder = kernel.places.captures / kernel.contract.op
    try:
        names = chosen(CaptureSet.open(folder), every)
    except CaptureError as error:
        return _none(kernel, f"not replayed: {error}")
    candidate = candidate_of(kernel)
    request = {
        "folder": str(kernel.folder.resolve()),
        "candidate": "" if candidate is None else str(candidate.resolve()),
        "captures": str(folder.resolve()),
        "names": names,
        "functions": sorted(_functions(kernel)),
        "device": str(found),
    }
    answer, fault = _run(request)
    if answer is None:
        found_fault = kernel.finding("replay", "crash", fault, "replay one capture", kernel.host.name)
        rest = [kernel.not_run(c, "the replay did not finish") for c in CHECKS_OF_REPLAY[1:]]
        return [kernel.judged("replay", [found_fault], ""), *rest]
    if answer["unavailable"]:
        return _none(kernel, f"not replayed: {answer['unavailable']}")
    return [_bits(kernel, candidate, names, answer), _path(kernel, answer), _gates(kernel, names, answer)]


def _none(kernel: Exported, reason: str) -> list[Outcome]:
    return [kernel.not_run(check, reason) for check in CHECKS_OF_REPLAY]


def chosen(captures: CaptureSet, every: bool) -> list[str]:
    """Names of all captures, or of the one whose inputs have the fewest elements."""
    if every:
        return list(captures.names())
    sizes = {}
    for name in captures.names():
        tensors = captures.entry(name).tensors.values()
        sizes[name] = sum(_count(tensor.shape) for tensor in tensors)
    return sorted(sizes, key=lambda name: (sizes[name], name))[:1]


def _count(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _run(request: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The worker's answer, or None and why there is none."""
    command = [sys.executable, str(_WORKER)]
    try:
        done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, f"the replay took more than {TIMEOUT_S} s"
    if done.returncode != 0:
        lines = done.stderr.strip()[-STDERR_TAIL_CHARACTERS:].splitlines()
        return None, f"the replay ended with exit code {done.returncode}: {lines[-1] if lines else 'no word why'}"
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer, ""


def _where(names: Sequence[str], answer: dict[str, Any]) -> str:
    interpreted = " in the interpreter" if answer["device"] == "cpu" else ""
    told = ", ".join(names) if len(names) <= MOST_NAMES else f"{len(names)} captures"
    return f"{told} on {answer['device']}{interpreted}"


def _bits(kernel: Exported, candidate: Path | None, names: Sequence[str], answer: dict[str, Any]) -> Outcome:
    """Every bit of every output is the candidate's, as far as the candidate is still what was exported."""
    where = _where(names, answer)
    if candidate is None:
        return kernel.not_run("replay", f"no candidate to compare with; it ran on {where}")
    fault = answer["candidate_fault"]
    if moved_files(kernel, candidate):
        words = f"other bits on {', '.join(answer['different'])}" if answer["different"] else "the same bits"
        words = f"does not run here ({fault})" if fault else f"gives {words}"
        return kernel.noted("replay", f"the candidate moved on and {words}; {where}")
    if fault:
        lost = f"the candidate, the same bytes, does not run where the export does: {fault}"
        return kernel.judged("replay", [kernel.finding("replay", "crash", lost, "run the candidate")], "")
    test = "replay the capture with both sources"
    findings = [
        kernel.finding("replay", "silent-wrong", f"other bits than the candidate on {name}", test, kernel.host.name)
        for name in answer["different"]
    ]
    # Equal bytes of source compare one text with itself: that the values are right is said by the gates.
    return kernel.judged("replay", findings, f"the candidate's bits, loaded through the contract; {where}")


def _path(kernel: Exported, answer: dict[str, Any]) -> Outcome:
    """The kernel under test is what ran: its own functions, from its own folder, as often as the contract says."""
    functions = _functions(kernel)
    findings = []
    for name, counts in answer["launches"].items():
        own = sum(count for seen, count in counts.items() if _names(seen, functions))
        if own != kernel.contract.kernels_per_call:
            lost = f"one call on {name} launched {own} of its kernels; the contract says {kernel.contract.kernels_per_call}"
            test = "count the launches of one call"
            findings.append(kernel.finding("path", "silent-wrong", lost, test, kernel.host.name))
    for function in answer["foreign"]:
        lost = f"{function} comes from a file outside the kernel's folder"
        findings.append(kernel.finding("path", "silent-wrong", lost, "print its file", kernel.host.name, function))
    ran = sorted({seen for counts in answer["launches"].values() for seen in counts})
    return kernel.judged("path", findings, f"{', '.join(ran)} ran, from the exported folder")


def _functions(kernel: Exported) -> set[str]:
    """Names of the device functions of the compile units; `f<1, 2>` is an instantiation of f."""
    return {unit.function.split("<")[0].strip() for unit in kernel.contract.compile_units}


def _names(seen: str, functions: set[str]) -> bool:
    """Whether a launched name is one of these: Triton gives the function's, a profiler a whole signature."""
    return any(re.search(rf"(?<!\w){re.escape(function)}(?!\w)", seen) for function in functions)


def _gates(kernel: Exported, names: Sequence[str], answer: dict[str, Any]) -> Outcome:
    """The exported kernel passes the gates of its op again."""
    findings = [
        kernel.finding(
            "gates", "silent-wrong", f"on {name} the checks {', '.join(failed)} failed", "replay it", kernel.host.name
        )
        for name, failed in answer["failed"].items()
    ]
    return kernel.judged("gates", findings, f"every gate of {kernel.contract.op} passed; {_where(names, answer)}")
