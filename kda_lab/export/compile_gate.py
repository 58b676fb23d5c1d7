"""Compile gate: every declared unit compiles ahead of time, without a GPU, from an empty cache.

Each unit is compiled in a fresh process (this one may run Triton's interpreter, whose functions cannot
be compiled) with its own cache folder, which must be empty before and must hold exactly one new cubin
after. Registers and spills are read from that cubin, not from what the compiler says it did. A Python file
goes to Triton, a `.cu` file to NVRTC, whose shared memory is what it reports plus what a launch asks for.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kda_lab import runtime
from kda_lab.contracts.model import CompileUnit, Resources
from kda_lab.dispatch.kernel_files import DEVICE_SUFFIX
from kda_lab.errors import ExportError, Reason

TIMEOUT_S = 600
MOST_COMPILERS = 4
STDERR_TAIL_CHARACTERS = 1500
SHARED_LIMIT_BYTES = {
    (9, 0): 227 * 1024,
    (10, 0): 227 * 1024,
    (10, 3): 227 * 1024,
    (12, 0): 99 * 1024,
    (12, 1): 99 * 1024,
}
"""Most shared memory a block may opt in to, per capability: CUDA C++ programming guide, compute capabilities."""

_WORKER = Path(__file__).with_name("compile_worker.py")
_CUDA_WORKER = Path(__file__).with_name("cuda_compile_worker.py")
_USAGE = re.compile(r"Function (\S+):\s+REG:(\d+)\s+STACK:(\d+)\s+SHARED:\d+\s+LOCAL:(\d+)")


@dataclass(frozen=True)
class Artifacts:
    """What one compile left in its cache folder."""

    cubin: Path
    metadata: dict[str, Any]


def shared_limit_bytes(capability: tuple[int, int]) -> int:
    """Most shared memory a block may use on a capability.

    Raises:
        ExportError: the capability is not in `SHARED_LIMIT_BYTES`.
    """
    if capability not in SHARED_LIMIT_BYTES:
        allowed = ", ".join(str(c) for c in SHARED_LIMIT_BYTES)
        raise ExportError("export.compile", [Reason("capability", repr(capability), allowed)])
    return SHARED_LIMIT_BYTES[capability]


def compile_unit(source: Path, unit: CompileUnit, capability: tuple[int, int], cache_dir: Path) -> Resources:
    """Compile one unit for one architecture in a fresh process and read what it uses.

    Args:
        source: Python file with the Triton function, or `.cu` file with the CUDA C++ function.
        unit: function, signature and specialisation.
        capability: `(major, minor)` of the target; it need not be in this machine.
        cache_dir: empty or absent folder for the artifacts; they stay there.

    Raises:
        ExportError: the cache is not empty, the compile fails (the tail of its stderr is in the text),
            no new cubin appears, or the unit needs more shared memory than a block can have.
    """
    limit_bytes = shared_limit_bytes(capability)
    _require_empty(cache_dir)
    started_ns = time.time_ns()
    _run_worker(source, unit, capability, cache_dir)
    artifacts = _new_artifacts(cache_dir, unit, started_ns)
    shared_bytes = int(artifacts.metadata["shared"]) + unit.dynamic_shared_bytes
    if shared_bytes > limit_bytes:
        remedy = f"{_label(unit, capability)}: use smaller blocks or fewer stages."
        raise ExportError(
            "export.compile", [Reason("shared_bytes", repr(shared_bytes), f"at most {limit_bytes}", remedy)]
        )
    registers, spill_bytes = _register_use(artifacts)
    return Resources(
        function=unit.function,
        constants=unit.constants,
        num_warps=unit.num_warps,
        num_stages=unit.num_stages,
        shared_bytes=shared_bytes,
        registers=registers,
        spill_bytes=spill_bytes,
        cubin_sha256=hashlib.sha256(artifacts.cubin.read_bytes()).hexdigest(),
    )


def compile_units(
    source: Path, units: Sequence[CompileUnit], capability: tuple[int, int], cache_dir: Path
) -> tuple[Resources, ...]:
    """Compile every unit that is launched on one architecture, each into its own empty folder under `cache_dir`.

    Raises:
        ExportError: no unit is meant for the architecture, or one of them fails as in `compile_unit`.
    """
    meant = [unit for unit in units if not unit.capabilities or capability in unit.capabilities]
    if not meant:
        remedy = "Declare in CONTRACT.compile_units what is launched there."
        raise ExportError("export.compile", [Reason(f"units for {capability}", "none", "at least one unit", remedy)])
    folders = [cache_dir / "sm{}{}-{}".format(*capability, i) for i in range(len(meant))]
    with ThreadPoolExecutor(max_workers=MOST_COMPILERS) as pool:
        jobs = [pool.submit(compile_unit, source, u, capability, f) for u, f in zip(meant, folders, strict=True)]
        return tuple(job.result() for job in jobs)


def _require_empty(cache_dir: Path) -> None:
    cache_dir.mkdir(parents=True, exist_ok=True)
    held = sorted(p.name for p in cache_dir.iterdir())
    if held:
        remedy = "A cached artifact would prove nothing about this source: name an empty folder."
        raise ExportError("export.compile", [Reason("cache_dir", repr(str(cache_dir)), "an empty folder", remedy)])


def _run_worker(source: Path, unit: CompileUnit, capability: tuple[int, int], cache_dir: Path) -> None:
    folder = str(cache_dir.resolve())
    request = {"source": str(source.resolve()), "unit": unit.model_dump(mode="json"), "capability": list(capability)}
    worker = _CUDA_WORKER if source.suffix == DEVICE_SUFFIX else _WORKER
    # Neither compiler may answer from a cache of its own.
    changes = {"TRITON_INTERPRET": None, "TRITON_CACHE_DIR": folder, "CUDA_CACHE_DISABLE": "1"}
    environment = runtime.child_environment(changes)
    try:
        done = subprocess.run(
            [sys.executable, str(worker)],
            input=json.dumps({**request, "folder": folder}),
            capture_output=True,
            text=True,
            env=environment,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ExportError("export.compile", f"{_label(unit, capability)} took more than {TIMEOUT_S} s") from error
    if done.returncode != 0:
        tail = done.stderr.strip()[-STDERR_TAIL_CHARACTERS:]
        raise ExportError(
            "export.compile", f"{_label(unit, capability)} does not compile (exit {done.returncode}): {tail}"
        )


def _label(unit: CompileUnit, capability: tuple[int, int]) -> str:
    return f"{unit.function} {unit.constants} for capability {capability}"


def _new_artifacts(cache_dir: Path, unit: CompileUnit, started_ns: int) -> Artifacts:
    cubins = list(cache_dir.rglob("*.cubin"))
    described = [p for p in cache_dir.rglob("*.json") if not p.name.startswith("__grp__")]
    if len(cubins) != 1 or len(described) != 1:
        found = f"{len(cubins)} cubin and {len(described)} metadata files"
        raise ExportError(
            "export.compile", [Reason(f"artifacts of {unit.function}", repr(found), "exactly one of each")]
        )
    # File systems may round a time stamp down to a second; an artifact from before this process is older than that.
    if cubins[0].stat().st_mtime_ns < started_ns - 2 * 10**9:
        raise ExportError("export.compile", f"{cubins[0]} is older than the compile that should have written it")
    return Artifacts(cubins[0], json.loads(described[0].read_text()))


def _register_use(artifacts: Artifacts) -> tuple[int | None, int | None]:
    """Registers a thread and bytes of stack (spills) a thread; None where `cuobjdump` is not at hand."""
    tool, cubin = _cuobjdump(), artifacts.cubin
    if tool is None:
        return None, None
    done = subprocess.run([str(tool), "--dump-resource-usage", str(cubin)], capture_output=True, text=True, timeout=60)
    # One cubin of CUDA C++ can hold more functions than the one that was asked for.
    used = {name: (int(r), int(stack) + int(local)) for name, r, stack, local in _USAGE.findall(done.stdout)}
    wanted = artifacts.metadata.get("name")
    if done.returncode != 0 or wanted not in used:
        raise ExportError(
            "export.compile", f"cuobjdump cannot read {cubin.name}: {(done.stderr or done.stdout).strip()[-300:]}"
        )
    return used[wanted]


def _cuobjdump() -> Path | None:
    triton = runtime.import_optional("triton")
    if triton.module is None or triton.module.__file__ is None:
        return None
    tool = Path(triton.module.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return tool if tool.exists() else None
