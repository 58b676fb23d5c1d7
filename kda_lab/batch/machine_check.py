"""What this machine can do: the facts behind `kda-lab doctor`."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kda_lab import runtime

REQUIRED = (
    "torch",
    "triton",
    "numpy",
    "pydantic",
    "safetensors",
    "papermill",
    "nbclient",
    "ipykernel",
    "jupyter_client",
)
OPTIONAL: Mapping[str, str] = {
    "scipy": "scipy",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "matplotlib": "matplotlib",
    "nbconvert": "nbconvert",
    "jupyterlab": "jupyterlab",
    "pynvml": "nvidia-ml-py",
    "flashinfer": "flashinfer-python",
    "cuda.core": "cuda-core",
    "transformers": "transformers",
    "gguf": "gguf",
}
"""Import name to the name of the package on an index."""
PYTHON = ((3, 10), (3, 14))
"""First supported version, first unsupported one."""


@dataclass(frozen=True)
class Package:
    """One package: its version, or the reason why it cannot be used."""

    name: str
    required: bool
    state: str
    usable: bool


@dataclass(frozen=True)
class MachineReport:
    """Facts as readable text, packages, and what is missing of the required things."""

    facts: dict[str, str]
    packages: tuple[Package, ...]
    missing: tuple[str, ...]


def examine() -> MachineReport:
    """Look at the machine; imports every package of the lists once, launches nothing on a GPU."""
    facts = _facts()
    # Triton reads the switch when it is imported, so it is set before the packages are.
    runtime.use_interpreter_on_cpu()
    packages = [_package(name, name, True) for name in REQUIRED]
    packages += [_package(name, distribution, False) for name, distribution in OPTIONAL.items()]
    missing = [p.name for p in packages if p.required and not p.usable]
    if not PYTHON[0] <= sys.version_info[:2] < PYTHON[1]:
        missing.append("Python 3.10 to 3.13")
    interpreter, faithful = (
        _interpreter() if "triton" not in missing else ("unavailable, because triton is missing", True)
    )
    if not faithful:
        missing.append("a faithful interpreter")
    return MachineReport({**facts, "Triton interpreter": interpreter}, tuple(packages), tuple(missing))


def _facts() -> dict[str, str]:
    device = runtime.default_device()
    found = runtime.device_facts(device)
    capability = runtime.capability(device)
    free_gb = shutil.disk_usage(Path.cwd()).free / 1e9
    facts = {
        "Python": f"{sys.version.split()[0]} at {sys.executable}",
        "device": f"{device} ({found['name']})",
        "capability": "{}.{}".format(*capability)
        if capability
        else "none: no CUDA device; kernels run in the interpreter, nothing is timed",
        "free disk": f"{free_gb:.1f} GB",
    }
    if device.type == "cuda":
        facts["memory"] = f"{found['memory_bytes'] / 2**30:.0f} GiB, L2 {found['l2_bytes'] / 2**20:.0f} MiB"
        facts["driver"] = f"{found['driver']}, CUDA {found['cuda']}"
    held = {n: runtime.environment(n) for n in runtime.ENVIRONMENT_VARIABLES if runtime.environment(n)}
    facts["environment"] = ", ".join(f"{n}={v}" for n, v in held.items()) or "no variable set"
    return facts


def _package(name: str, distribution: str, required: bool) -> Package:
    found = runtime.import_optional(name)
    if found.module is None:
        return Package(name, required, found.reason, False)
    try:
        return Package(name, required, importlib.metadata.version(distribution), True)
    except importlib.metadata.PackageNotFoundError:
        return Package(name, required, "version unknown", True)


def _interpreter() -> tuple[str, bool]:
    """State of the interpreter's mend in words, and whether it can be trusted."""
    from kda_lab import interpreter  # lazy: triton
    from kda_lab.errors import UnavailableError  # lazy: triton

    if not runtime.interpreter_on():
        return "off: kernels run on the GPU", True
    try:
        facts = interpreter.mend_status()
    except UnavailableError as error:
        return str(error), False
    needed = [f.name for f in facts if f.needed]
    return f"on, {len(facts)} facts right; mended here: {', '.join(needed) or 'nothing'}", True
