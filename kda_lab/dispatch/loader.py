"""Loading kernel sources: a file by its path, and an exported kernel after its hashes were checked.

The bytes that are hashed are the bytes that run: a source is read once, hashed, compiled from
memory, and handed to `linecache`, from which `inspect.getsource` (and so Triton) reads it. A file
that changes between the check and the import can therefore not slip in. Device code in CUDA C++ is read by the
host code itself, so afterwards the module must hold the very text that was hashed.
"""

from __future__ import annotations

import hashlib
import io
import json
import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from kda_lab.contracts.model import CONTRACT_VERSION, Contract
from kda_lab.dispatch.kernel_files import CUDA, DEVICE_SUFFIX, digest_of, require_held
from kda_lab.errors import KernelLoadError, Reason

ROOM = "dispatch"
CONTRACT_FILE = "contract.json"
CODE_SUFFIXES = (".py", ".pyd", ".so", ".cu", ".cuh", ".ptx", ".cubin")
"""A file with one of these endings must be listed in the contract; `__pycache__` is never read."""
EXPORT_AGAIN = "Export the kernel again; exported files are not edited by hand."


@dataclass(frozen=True)
class KernelFolder:
    """An exported kernel's folder with its validated contract; its code is not imported."""

    path: Path
    contract: Contract


@dataclass(frozen=True)
class LoadedKernel:
    """An exported kernel after its hashes were checked and its module was imported."""

    contract: Contract
    module: ModuleType
    entry: Callable[..., Any]
    """The function that `contract.entry` names; takes the op's arguments."""


def load_source(path: str | Path, name: str | None = None) -> ModuleType:
    """Import a Python file by its path; `sys.path` stays as it is.

    Each call runs the file anew, so an edited candidate is seen without a restart.

    Args:
        path: the Python file.
        name: module name in `sys.modules`, replacing what had it; derived from the path when None.

    Raises:
        KernelLoadError: the file cannot be read, or is not valid Python.
        Exception: whatever the file itself raises when it runs.
    """
    file = Path(path).resolve()
    return import_bytes(
        file, read_source(file), name or f"kda_lab_source_{file.stem}_{_sha256(str(file).encode())[:12]}"
    )


def read_contract(folder: str | Path) -> Contract:
    """Read and validate `contract.json` of one kernel folder; no source is read or imported.

    Raises:
        KernelLoadError: the file is missing or broken, has another contract version, or names
            another kernel than its folder. Each wrong field is named.
    """
    folder = Path(folder)
    given = _parse_json(folder / CONTRACT_FILE)
    version = given.get("contract_version", "absent") if isinstance(given, dict) else "absent"
    if type(version) is not int or version != CONTRACT_VERSION:
        reason = Reason(f"{folder.name}.contract_version", repr(version), str(CONTRACT_VERSION), EXPORT_AGAIN)
        raise KernelLoadError(ROOM, [reason])
    try:
        contract = Contract.model_validate(given)
    except ValidationError as error:
        raise KernelLoadError(ROOM, _validation_reasons(folder.name, error)) from error
    if contract.kernel != folder.name:
        remedy = "A kernel lives in a folder of its own name."
        raise KernelLoadError(ROOM, [Reason(f"{folder.name}.kernel", repr(contract.kernel), repr(folder.name), remedy)])
    return contract


def kernel_folders(kernels_dir: str | Path) -> list[Path]:
    """Folders of the exported kernels, sorted by name; names that start with `.` or `_` are skipped."""
    root = Path(kernels_dir)
    if not root.is_dir():
        return []
    return sorted(p for p in root.iterdir() if p.is_dir() and p.name[0] not in "._")


def read_contracts(kernels_dir: str | Path) -> list[KernelFolder]:
    """Contracts of all exported kernels, sorted by name; metadata only, nothing is imported.

    Raises:
        KernelLoadError: one contract is broken. A damaged installation is loud, never skipped.
    """
    return [KernelFolder(folder, read_contract(folder)) for folder in kernel_folders(kernels_dir)]


def load_kernel(folder: str | Path) -> LoadedKernel:
    """Check an exported kernel's contract and every source hash, then import those very bytes.

    Raises:
        KernelLoadError: the contract is broken, a source is missing or differs from its hash, a
            code file is not listed, or the entry is missing; or host code in language `cuda` does not
            hold the text of its `.cu` file. Before the entry and the text are looked at, nothing was imported.
    """
    folder = Path(folder)
    contract = read_contract(folder)
    sources, reasons = _checked_sources(folder, contract)
    reasons += _unlisted_code(folder, contract)
    main = _main_source(contract)
    if main is None:
        listed = repr([source.path for source in contract.sources])
        reasons.append(Reason(f"{folder.name}.sources", listed, "kernel.py, or a single .py file", EXPORT_AGAIN))
    if reasons or main is None:
        raise KernelLoadError(ROOM, reasons)
    digest = digest_of([source.sha256 for source in contract.sources])
    name = f"kda_lab_kernel_{contract.kernel}_{digest[:12]}"
    module = import_bytes((folder / main).resolve(), sources[main], name)
    if contract.language == CUDA:
        _check_device_code(module, contract, sources)
    entry = getattr(module, contract.entry, None)
    if not callable(entry):
        given = "missing" if entry is None else f"a {type(entry).__name__}"
        reason = Reason(f"{folder.name}.entry", given, f"a function called {contract.entry!r} in {main}", EXPORT_AGAIN)
        raise KernelLoadError(ROOM, [reason])
    return LoadedKernel(contract, module, entry)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_source(file: Path) -> bytes:
    """Bytes of a file.

    Raises:
        KernelLoadError: it cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        given = f"{str(file)!r} ({error.strerror or error})"
        raise KernelLoadError(ROOM, [Reason("source", given, "a readable file")]) from error


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _parse_json(file: Path) -> Any:
    data = read_source(file)
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    # UnicodeDecodeError and JSONDecodeError are ValueErrors; deep nesting is a RecursionError.
    except (ValueError, RecursionError) as error:
        reason = Reason(f"{file.parent.name}/{file.name}", f"unreadable ({error})", "a JSON object", EXPORT_AGAIN)
        raise KernelLoadError(ROOM, [reason]) from error


def _validation_reasons(kernel: str, error: ValidationError) -> list[Reason]:
    reasons = []
    for found in error.errors(include_url=False, include_context=False):
        field = ".".join([kernel, *(str(part) for part in found["loc"])])
        given = "missing" if found["type"] == "missing" else repr(found["input"])[:120]
        reasons.append(Reason(field, given, found["msg"], EXPORT_AGAIN))
    return reasons


def _checked_sources(folder: Path, contract: Contract) -> tuple[dict[str, bytes], list[Reason]]:
    """Bytes of every listed source, and a reason for each that is missing or differs from its hash."""
    sources: dict[str, bytes] = {}
    reasons: list[Reason] = []
    for source in contract.sources:
        field = f"{folder.name}/{source.path}"
        try:
            data = (folder / source.path).read_bytes()
        except OSError as error:
            reasons.append(Reason(field, f"missing ({error.strerror or error})", "a readable file", EXPORT_AGAIN))
            continue
        sources[source.path] = data
        if _sha256(data) != source.sha256:
            reasons.append(Reason(f"{field} sha256", repr(_sha256(data)), repr(source.sha256), EXPORT_AGAIN))
    return sources, reasons


def _unlisted_code(folder: Path, contract: Contract) -> list[Reason]:
    listed = {source.path for source in contract.sources}
    found = (p.relative_to(folder) for p in sorted(folder.rglob("*")) if p.suffix in CODE_SUFFIXES)
    extra = [p.as_posix() for p in found if "__pycache__" not in p.parts and p.as_posix() not in listed]
    remedy = "Remove it, or export the kernel again so that it is hashed."
    return [Reason(f"{folder.name}/{p}", "not in the contract", "only listed code files", remedy) for p in extra]


def _check_device_code(module: ModuleType, contract: Contract, sources: dict[str, bytes]) -> None:
    """Whether the module holds the hashed text of every `.cu` source; one that does not leaves `sys.modules`."""
    try:
        for path in (s.path for s in contract.sources if s.path.endswith(DEVICE_SUFFIX)):
            require_held(module, f"{contract.kernel}/{path}", sources[path])
    except KernelLoadError:
        sys.modules.pop(module.__name__, None)
        raise


def _main_source(contract: Contract) -> str | None:
    """Path of the Python file that holds the entry; None when that is not clear."""
    python = [source.path for source in contract.sources if source.path.endswith(".py")]
    if "kernel.py" in python:
        return "kernel.py"
    return python[0] if len(python) == 1 else None


def import_bytes(file: Path, data: bytes, name: str) -> ModuleType:
    """Run `data` as the module of `file` and enter it in `sys.modules` as `name`, replacing what had that name.

    Raises:
        KernelLoadError: the bytes are not valid Python in UTF-8.
        Exception: whatever the code itself raises when it runs.
    """
    filename = os.fspath(file)
    try:
        code = compile(data, filename, "exec", dont_inherit=True)
        text = data.decode("utf-8-sig")
    # A NUL byte is a ValueError (SyntaxError from 3.12); bytes that are not UTF-8 are either.
    except (SyntaxError, ValueError) as error:
        reason = Reason("source", f"{filename!r} ({error})", "valid Python in UTF-8", "Correct the file.")
        raise KernelLoadError(ROOM, [reason]) from error
    module = ModuleType(name)
    module.__file__ = filename
    # A modification time of None makes linecache keep this entry: source and code stay one.
    linecache.cache[filename] = (len(data), None, io.StringIO(text, newline=None).readlines(), filename)
    previous = sys.modules.get(name)
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)  # noqa: S102 - the file is the caller's own, or its hash was checked
    except BaseException:
        sys.modules.pop(name, None)
        if previous is not None:
            sys.modules[name] = previous
        raise
    return module
