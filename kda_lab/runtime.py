"""The machine: devices, capability, interpreter mode, environment variables, versions, provenance.

This is the only module that reads environment variables or asks what hardware is there.
Importing it does nothing but import torch.

Environment variables (all of them):

| variable                  | meaning                                                            |
|---------------------------|--------------------------------------------------------------------|
| KDA_LAB_KERNEL            | force one exported kernel by name for every op it implements       |
| KDA_LAB_DISPATCH          | `off`: only the op's fallback chain runs, its exported kernels too |
| KDA_LAB_ALLOW_COMPILED    | `1` also dispatches architectures that are compiled, not qualified |
| KDA_LAB_CAPTURE           | recorder for a process one cannot edit: `target=op:directory`      |
| TRITON_INTERPRET          | `1` runs Triton kernels on the CPU (Triton's own variable)         |
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import kda_lab
from kda_lab.errors import ParameterError, Reason, UnavailableError

ENVIRONMENT_VARIABLES = (
    "KDA_LAB_KERNEL",
    "KDA_LAB_DISPATCH",
    "KDA_LAB_ALLOW_COMPILED",
    "KDA_LAB_CAPTURE",
    "TRITON_INTERPRET",
)
_ENVIRONMENT_KEYS = tuple(getattr(os.environ, "encodekey", str)(name) for name in ENVIRONMENT_VARIABLES)
PREFIX = "KDA_LAB_"
TRITON_TRUE = ("1", "true", "on", "yes", "y")
"""What Triton takes for true, in any case."""
PACKAGES = (
    "torch",
    "triton",
    "cuda-core",
    "nvidia-cuda-nvrtc",
    "flashinfer-python",
    "numpy",
    "scipy",
    "papermill",
)
"""What provenance names with a version; the two of CUDA build kernels of language `cuda`."""


def environment(name: str) -> str:
    """Value of one variable of the table above, stripped; empty when unset.

    Raises:
        KeyError: the name is not in the table, so nobody would find it documented.
    """
    if name not in ENVIRONMENT_VARIABLES:
        raise KeyError(f"{name} is not in runtime.ENVIRONMENT_VARIABLES")
    return os.environ.get(name, "").strip()


def unknown_variables() -> tuple[str, ...]:
    """Names in the environment that start with `KDA_LAB_` and are not in the table, sorted: misspelt ones."""
    return tuple(sorted(name for name in os.environ if name.startswith(PREFIX) and name not in ENVIRONMENT_VARIABLES))


def environment_token() -> tuple[Any, ...]:
    """Opaque value that differs as soon as a variable of the table does, or the interpreter turns faithful.

    About 0.4 us, for cache keys.

    `os.environ` takes 0.8 us a variable, because a missing one goes through an exception; its
    backing mapping takes 0.03 us. Where Python keeps none, the documented way is used.
    """
    raw = getattr(os.environ, "_data", None)
    if raw is None:
        return (*map(os.environ.get, ENVIRONMENT_VARIABLES), *_faithful)
    return (*map(raw.get, _ENVIRONMENT_KEYS), *_faithful)


def visible_gpus() -> tuple[str, ...]:
    """The GPUs of this process, each as CUDA_VISIBLE_DEVICES would name it alone; empty where there is none."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "")
    count = torch.cuda.device_count()
    return tuple(named.split(","))[:count] if named else tuple(map(str, range(count)))


def project_path(path: str | Path) -> Path:
    """A path below the project: absolute ones stay, others start at the nearest checkout above the working folder.

    Notebooks run from `notebooks/` in JupyterLab and nbval, and from anywhere through papermill. Outside a
    checkout the path stays relative to the working folder.
    """
    path = Path(path)
    if path.is_absolute():
        return path
    here = Path.cwd()
    roots = (folder for folder in (here, *here.parents) if (folder / "kda_lab" / "runtime.py").is_file())
    return next(roots, here) / path


def capability(device: torch.device | str | int = "cuda") -> tuple[int, int] | None:
    """Exact compute capability `(major, minor)` of a device; None for a CPU or without CUDA."""
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return _cuda_capability(device.index if device.index is not None else torch.cuda.current_device())


@functools.cache
def _cuda_capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def default_device() -> torch.device:
    """The device a run uses when none is named: the current CUDA device, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def resolve_device(name: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda` or `cuda:N` into a device.

    Raises:
        UnavailableError: a CUDA device is asked for and there is none.
        ParameterError: no such name.
    """
    if name == "auto":
        return default_device()
    try:
        device = torch.device(name)
    # A name that torch does not know; it knows more kinds than these, too.
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ParameterError("runtime", [Reason("device", repr(name), "auto, cpu, cuda or cuda:N")])
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnavailableError(
            "runtime", f"device is {name!r}; torch {torch.__version__} sees no CUDA device here. Use 'cpu' or 'auto'."
        )
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def interpreter_on() -> bool:
    """Whether Triton kernels run in Triton's interpreter instead of on a GPU."""
    return environment("TRITON_INTERPRET").lower() in TRITON_TRUE


_faithful: list[bool] = []


def declare_interpreter_faithful() -> None:
    """Say that the interpreter was mended and proved in this process; only `kda_lab.interpreter` may."""
    if not _faithful:
        _faithful.append(True)


def interpreter_faithful() -> bool:
    """Whether Triton's interpreter runs here and rounds as the hardware does."""
    return interpreter_on() and bool(_faithful)


def use_interpreter_on_cpu() -> bool:
    """Switch Triton's interpreter on when there is no GPU; must run before a kernel is defined.

    Returns whether the interpreter is on. On a GPU machine nothing changes.
    """
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    return interpreter_on()


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Environment for a child process: this one's, with some variables set, or removed where the value is None."""
    merged = {**os.environ, **{name: value for name, value in changes.items() if value is not None}}
    return {name: value for name, value in merged.items() if changes.get(name, "") is not None}


@dataclass(frozen=True)
class OptionalModule:
    """An optional package: either its module, or the reason why it cannot be used."""

    name: str
    module: ModuleType | None
    reason: str
    """Empty when the module is there; else `unavailable, because …`."""


@functools.cache
def import_optional(name: str) -> OptionalModule:
    """Import an optional package, whatever its import does.

    FlashInfer 0.6.18 raises AssertionError on a machine without a GPU, so no list of
    expected exceptions would be complete: any failure becomes a reason, never a crash.
    """
    try:
        return OptionalModule(name, importlib.import_module(name), "")
    # Expected: ImportError, AssertionError, OSError of a missing driver, RuntimeError of a version guard.
    except Exception as error:  # noqa: BLE001
        text = str(error).strip().splitlines()
        detail = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
        return OptionalModule(name, None, f"unavailable, because importing {name} raised {detail}")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages in `PACKAGES`; `absent` where not installed."""
    found = {"python": platform.python_version(), "kda-lab": kda_lab.__version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def git_state(folder: Path | None = None) -> dict[str, Any]:
    """Commit and dirty flag of the checkout that holds `folder`; `unknown` outside a checkout.

    A copy that travels without its history, to a GPU node say, may carry the file `.commit` beside the package:
    `git rev-parse HEAD > .commit`. Whether it was changed since cannot be told there.
    """
    folder = folder or Path(kda_lab.__file__).parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        stamp = Path(kda_lab.__file__).parents[1] / ".commit"
        return {"commit": stamp.read_text().strip() if stamp.is_file() else "unknown", "dirty": None}


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.strip()


def device_facts(device: torch.device | str) -> dict[str, Any]:
    """What a record must say of a device: name, capability, SMs, L2 bytes, memory, UUID, driver."""
    device = torch.device(device)
    if device.type != "cuda":
        return {
            "type": device.type,
            "name": platform.processor() or platform.machine(),
            "interpreter": interpreter_on(),
        }
    facts = torch.cuda.get_device_properties(device)
    return {
        "type": "cuda",
        "name": facts.name,
        "capability": list(capability(device) or ()),
        "sm_count": facts.multi_processor_count,
        "l2_bytes": facts.L2_cache_size,
        "memory_bytes": facts.total_memory,
        "uuid": str(facts.uuid),
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "interpreter": interpreter_on(),
    }


@functools.cache
def driver_version() -> str:
    """NVIDIA driver version through NVML; the reason when NVML cannot tell."""
    nvml = import_optional("pynvml")
    if nvml.module is None:
        return nvml.reason
    try:
        nvml.module.nvmlInit()
        return str(nvml.module.nvmlSystemGetDriverVersion())
    except nvml.module.NVMLError as error:
        return f"unavailable, because NVML says {error}"


def provenance(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Everything a record needs to be traced back: code, command, packages, device, variables."""
    return {
        "kda_lab": versions()["kda-lab"],
        "git": git_state(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:400],
        "versions": versions(),
        "device": device_facts(device),
        "environment": {name: environment(name) for name in ENVIRONMENT_VARIABLES if environment(name)},
    }
