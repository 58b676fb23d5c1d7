"""Arms made of kernel sources: a candidate file, an exported kernel, or what dispatch picks."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kda_lab import interpreter, runtime
from kda_lab.contracts.model import Declaration
from kda_lab.dispatch.dispatcher import DISPATCHER
from kda_lab.dispatch.kernel_files import CUDA, DEVICE_SUFFIX, KernelFiles, digest_of, kernel_files, require_held
from kda_lab.dispatch.loader import import_bytes, load_kernel, read_source
from kda_lab.errors import KernelLoadError, ParameterError, Reason, UnavailableError
from kda_lab.ops.protocol import Arm, Call, Launcher, OpSpec
from kda_lab.ops.registry import load_op


def launcher(entry: Callable[..., Any], spec: OpSpec, call: Call) -> Launcher:
    """A launcher that calls `entry` with the op's signature on the buffers of `call`; what is updated is passed once."""
    tensors = [call.outputs[name] if name in call.updated else call.inputs[name] for name in spec.tensors]
    scalars = {name: dtype_of(v) if name in spec.dtypes else v for name, v in call.scalars.items()}
    keywords = {**scalars, **{name: t for name, t in call.outputs.items() if name not in call.updated}}
    return lambda: entry(*tensors, **keywords)


def dtype_of(name: object) -> object:
    """The torch dtype of a name in a call or capture: `bfloat16`; None stays None.

    Raises:
        ParameterError: torch has no dtype of that name.
    """
    found = getattr(torch, name, name) if isinstance(name, str) else name
    if found is None or isinstance(found, torch.dtype):
        return found
    raise ParameterError("ops", [Reason("dtype", repr(name), "the name of a torch dtype, such as 'bfloat16'")])


def cuda_or_interpreter(device: torch.device, name: str) -> str:
    """Why a Triton kernel cannot run on `device`; empty when it can."""
    if device.type == "cuda" or runtime.interpreter_on():
        return ""
    return f"unavailable, because {name} is a Triton kernel, the device is {device.type} and TRITON_INTERPRET is not 1"


def cuda_or_twin(device: torch.device, name: str, module: ModuleType, declaration: Declaration) -> str:
    """Why a CUDA C++ kernel cannot run on `device`; empty when it can.

    On a CPU its entry may compute the same values in torch, its twin, which it says with `CPU_TWIN = True`. On a
    GPU the very capability must be one that a compile unit is launched on, and `cuda.core` must be there.
    """
    if device.type != "cuda":
        twin = getattr(module, "CPU_TWIN", False) is True
        return "" if twin else f"unavailable, because {name} is CUDA C++ and says no CPU_TWIN for a {device.type}"
    found = runtime.capability(device)
    units = declaration.compile_units
    if not any(not unit.capabilities or found in unit.capabilities for unit in units):
        known = ", ".join(sorted({f"{a}.{b}" for unit in units for a, b in unit.capabilities})) or "none"
        here = "unknown" if found is None else "{}.{}".format(*found)
        return f"unavailable, because {name} has no compile unit for capability {here}; it has: {known}"
    return runtime.import_optional("cuda.core").reason


@dataclass(frozen=True)
class SourceArm:
    """A kernel source with its declaration: a candidate, or an exported kernel's own file."""

    name: str
    path: Path
    spec: OpSpec
    module: ModuleType
    declaration: Declaration
    source_sha256: str
    reads_live_lengths: bool = True

    def unavailable(self, device: torch.device) -> str:
        """Why the kernel, its interpreted form or its twin cannot run on `device`; empty when it can."""
        if self.declaration.language == CUDA:
            return cuda_or_twin(device, self.name, self.module, self.declaration)
        return cuda_or_interpreter(device, self.name)

    def stand_in(self, device: torch.device) -> str:
        """What is judged on `device` in the kernel's place: `torch twin`, `interpreter`; empty where it runs itself."""
        if device.type == "cuda":
            return "interpreter" if runtime.interpreter_on() and self.declaration.language != CUDA else ""
        return "torch twin" if self.declaration.language == CUDA else "interpreter"

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        """One launcher a call; on a CPU the interpreter is mended first, where it is on."""
        if calls and calls[0].device.type == "cpu" and self._needs_interpreter():
            interpreter.ensure_faithful()
        entry = getattr(self.module, self.declaration.entry)
        return [launcher(entry, self.spec, call) for call in calls]

    def _needs_interpreter(self) -> bool:
        # A twin is plain torch and must also run where the interpreter is off.
        return self.declaration.language != CUDA or runtime.interpreter_on()

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """State that must be all zero between calls; empty when the kernel keeps none."""
        probe = getattr(self.module, "state_tensors", None)
        return probe() if probe is not None else {}


@functools.cache
def candidate_arm(path: Path) -> SourceArm:
    """The arm of a candidate file; its name is the file's stem.

    Raises:
        UnavailableError: the file is missing, its `CONTRACT` is not a Declaration, or language `cuda` is declared
            and the `.cu` file is missing or not what the module read.
    """
    path = Path(path)
    if not path.is_file():
        raise UnavailableError(
            "ops", f"candidate is {str(path)!r}; there is no such file. Name a file below notebooks/candidates/."
        )
    data = read_source(path)
    module = import_bytes(path.resolve(), data, f"kda_lab_candidate_{path.stem}")
    try:
        declaration = Declaration.model_validate(module.CONTRACT)
    except (AttributeError, ValueError) as error:
        raise UnavailableError("ops", f"candidate {str(path)!r} has no valid CONTRACT: {error}") from error
    digest = _judged_files(path, data, module, declaration.language).sha256
    return SourceArm(path.stem, path, load_op(declaration.op).spec, module, declaration, digest)


def _judged_files(path: Path, data: bytes, module: ModuleType, language: str) -> KernelFiles:
    """The files of a candidate, whose module holds the very device code that is hashed."""
    try:
        files = kernel_files(path, data, language)
        if files.device is not None:
            require_held(module, path.with_suffix(DEVICE_SUFFIX).name, files.device)
    except KernelLoadError as error:
        raise UnavailableError("ops", f"candidate {str(path)!r}: {error}") from error
    return files


def exported_arm(folder: Path) -> SourceArm:
    """The arm of an exported kernel's folder; hashes are checked before it is imported."""
    loaded = load_kernel(Path(folder))
    sources = loaded.contract.sources
    return SourceArm(
        loaded.contract.kernel,
        Path(folder) / sources[0].path,
        load_op(loaded.contract.op).spec,
        loaded.module,
        loaded.contract,
        digest_of([source.sha256 for source in sources]),
    )


DISPATCHED = "dispatched"
"""Name that stands for the public door among the kernels of a run."""


@dataclass(frozen=True)
class DispatchedArm:
    """The op through its public door: whatever dispatch picks for each call."""

    name: str
    spec: OpSpec
    door: Callable[..., Any]
    source_sha256: str = ""
    reads_live_lengths: bool = True

    def unavailable(self, device: torch.device) -> str:
        """Why dispatch serves nothing on `device`; empty on a CUDA device."""
        if device.type != "cuda":
            return f"unavailable, because dispatch serves CUDA devices and this one is {device.type}"
        return ""

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        return [launcher(self.door, self.spec, call) for call in calls]


def dispatched_arm(spec: OpSpec) -> DispatchedArm:
    """The public function of an op: `kda_lab.qsa.packed_decode` of `qsa.packed_decode`.

    Its hash is that of all the op's exported kernels, since it may pick any of them; empty where there is none.
    """
    family, function = spec.name.split(".")
    # By name: the doors are a layer above the ops.
    door = getattr(importlib.import_module(f"kda_lab.{family}"), function)
    own = [folder.contract for folder in DISPATCHER.folders() if folder.contract.op == spec.name]
    sources = [source.sha256 for contract in own for source in contract.sources]
    return DispatchedArm(DISPATCHED, spec, door, digest_of(sources) if sources else "")


def find_arm(op_name: str, name: str) -> Arm:
    """An op's own arm (baseline or library) by name.

    Raises:
        ParameterError: the op has no arm of that name.
    """
    arms = load_op(op_name).baselines.ARMS
    for arm in arms:
        if arm.name == name:
            return arm
    raise ParameterError("ops", [Reason(f"arm of {op_name}", repr(name), ", ".join(a.name for a in arms))])


def chosen_arms(
    op_name: str, kernels: Sequence[str], baselines: Sequence[str], candidates: Path, exported: Path
) -> list[tuple[Arm, str]]:
    """The arms of a run with their roles, in order: candidates, the baseline, peers.

    Args:
        op_name: dotted name of the op.
        kernels: what is judged: the stem of a file in `candidates / op_name`, the name of a kernel
            folder in `exported`, or `dispatched`: the op's door, whichever kernel it picks for each call.
        baselines: names of the op's own arms; the first is the speed baseline, the others are peers.
        candidates: folder of candidate sources, one folder an op.
        exported: folder of exported kernels.

    Raises:
        ParameterError: an op or name is unknown, given twice, or a kernel's of another op; the text lists the
            allowed ones.
    """
    load_op(op_name)
    for field, names in (("kernels", kernels), ("baselines", baselines)):
        if doubled := sorted({name for name in names if list(names).count(name) > 1}):
            raise ParameterError(
                "ops", [Reason(field, repr(list(names)), "each once", f"Twice: {', '.join(doubled)}.")]
            )
    arms: list[tuple[Arm, str]] = [(_kernel_arm(op_name, n, candidates, exported), "candidate") for n in kernels]
    roles = ["baseline"] + ["peer"] * (len(baselines) - 1)
    return arms + [(find_arm(op_name, name), role) for name, role in zip(baselines, roles, strict=False)]


def _kernel_arm(op_name: str, name: str, candidates: Path, exported: Path) -> Arm:
    """The candidate or, where there is none of that name, the exported kernel; both must be of the op. Or its door."""
    if name == DISPATCHED:
        return dispatched_arm(load_op(op_name).spec)
    own = {path.stem: path for path in sorted((candidates / op_name).glob("*.py"))}
    folders = {path.parent.name: path.parent for path in sorted(exported.glob("*/contract.json"))}
    ops = {kernel: _op_of(folder) for kernel, folder in folders.items()}
    elsewhere = {path.stem: path.parent.name for path in sorted(candidates.glob("*/*.py"))} | ops
    allowed = ", ".join([*own, *(kernel for kernel, op in ops.items() if op == op_name)]) or "none"
    # A folder whose contract cannot be read is of no op: loading it says what is wrong with it.
    if name not in own and ops.get(name, "another") not in (op_name, ""):
        place = f"Candidates stand in {candidates / op_name}."
        remedy = f"It is a kernel of {elsewhere[name]}. {place}" if elsewhere.get(name) else place
        raise ParameterError("ops", [Reason("kernels", repr(name), allowed, remedy)])
    arm = candidate_arm(own[name]) if name in own else exported_arm(folders[name])
    if arm.spec.name != op_name:
        remedy = f"Its CONTRACT is of {arm.spec.name}."
        raise ParameterError("ops", [Reason(f"kernels of {op_name}", repr(name), allowed, remedy)])
    return arm


def _op_of(folder: Path) -> str:
    """The op that an exported kernel's contract names; empty when it cannot be read."""
    try:
        return str(json.loads((folder / "contract.json").read_bytes())["op"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
