"""A candidate as the export reads it: its files, its imports, its declaration and its hash.

The imports, and for CUDA C++ what it compiles, are checked before anything runs. A literal declaration is read
without running the file; a computed one is evaluated in a process of its own. The language must be literal: it
decides what may be imported.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kda_lab.contracts.model import Declaration
from kda_lab.dispatch.kernel_files import CUDA, DEVICE_SUFFIX, KernelFiles, kernel_files
from kda_lab.errors import ExportError, KernelLoadError, Reason
from kda_lab.export.cuda_source import check_device, check_host
from kda_lab.export.fresh_process import evaluated_contract

ALLOWED_PACKAGES = ("torch", "triton")
CUDA_PACKAGES = ("cuda.core", "cuda.bindings.driver")
"""For language `cuda` only: the first compiles device code with NVRTC and launches it; the second allows a kernel
more than 48 KB of shared memory, which `cuda.core` has no call for. Not NVRTC or the runtime by themselves."""
CUDA_MODULES = ("pathlib",)
"""For language `cuda` only: the host code finds and reads its own `.cu` file."""
ALLOWED_MODULES = (
    "__future__", "collections", "contextlib", "dataclasses", "enum", "functools", "itertools", "math", "operator", "typing",
)  # fmt: skip
"""Of the standard library: what a kernel needs. Not sys, gc, importlib or ctypes, which reach the code that judges."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_GLOBAL_FUNCTION = re.compile(r"__global__\b([^{;]*)\{")
_ATTRIBUTE = re.compile(r"__\w+__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)")
"""Such as `__launch_bounds__(128, 1)`, which stands between return type and name."""


@dataclass(frozen=True)
class Candidate:
    """One candidate source, read once: what is judged, hashed and copied are the same bytes."""

    path: Path
    files: KernelFiles
    declaration: Declaration

    @property
    def sha256(self) -> str:
        """The digest that records of this source carry."""
        return self.files.sha256

    @property
    def compiled(self) -> Path:
        """The file whose functions the compile units name: the Python file, or the `.cu` file."""
        return self.path if self.files.device is None else self.path.with_suffix(DEVICE_SUFFIX)


def read_candidate(path: Path) -> Candidate:
    """Read a candidate; nothing of it runs in this process.

    Raises:
        ExportError: gate `declaration` (no CONTRACT, an invalid one, no such entry function, a
            `.cu` file for language `cuda`), gate `imports` (anything but torch, triton and `ALLOWED_MODULES`;
            for language `cuda` also `CUDA_PACKAGES` and `CUDA_MODULES`) or gate `sources` (language `cuda`: what
            is compiled could be another text than the `.cu` file's).
    """
    if not path.is_file():
        raise ExportError("export.declaration", [Reason("candidate", repr(str(path)), "a Python file that exists")])
    source = path.read_bytes()
    try:
        tree = ast.parse(source, filename=str(path))
    # ast.parse raises ValueError for NUL bytes.
    except (SyntaxError, ValueError) as error:
        raise ExportError("export.declaration", f"{path.name} is not valid Python: {error}") from error
    language = _literal_language(tree)
    _check_imports(tree, path, language)
    if language == CUDA:
        check_host(tree, path.name)
    declaration = _declaration(tree, path)
    if CUDA in (language, declaration.language) and language != declaration.language:
        remedy = "It decides what may be imported, so it is read before anything runs."
        reason = Reason(f"{path.name}: CONTRACT.language", repr(language), "a literal", remedy)
        raise ExportError("export.declaration", [reason])
    try:
        files = kernel_files(path, source, declaration.language)
    except KernelLoadError as error:
        raise ExportError("export.declaration", error.reasons) from error
    if files.device is not None:
        check_device(files.device, path.with_suffix(DEVICE_SUFFIX).name, declaration.compile_units)
    _check_entry(tree, declaration, path, files)
    return Candidate(path, files, declaration)


def _literal_language(tree: ast.Module) -> str | None:
    """The value of `language` in the CONTRACT dictionary, read without running anything; None when it is no literal."""
    assigned = _contract_value(tree)
    pairs = zip(assigned.keys, assigned.values, strict=True) if isinstance(assigned, ast.Dict) else ()
    values = [
        v.value
        for k, v in pairs
        if isinstance(k, ast.Constant) and k.value == "language" and isinstance(v, ast.Constant)
    ]
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None


def _declaration(tree: ast.Module, path: Path) -> Declaration:
    assigned = _contract_value(tree)
    if assigned is None:
        remedy = "The kernel must say what it may be called with."
        raise ExportError("export.declaration", [Reason(f"{path.name}: CONTRACT", "absent", "one dict", remedy)])
    try:
        given = ast.literal_eval(assigned)
    except ValueError:
        # Computed, for instance from the kernel's schedules: a process of its own evaluates it.
        given = evaluated_contract(path)
    try:
        return Declaration.model_validate(given)
    except ValidationError as error:
        reasons = [_reason(path, e["loc"], e["input"], e["msg"]) for e in error.errors()]
        raise ExportError("export.declaration", reasons) from error


def _contract_value(tree: ast.Module) -> ast.expr | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "CONTRACT" for t in node.targets):
            return node.value
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "CONTRACT":
            return node.value
    return None


def _reason(path: Path, location: tuple[int | str, ...], given: object, message: str) -> Reason:
    field = ".".join(str(part) for part in location)
    return Reason(f"{path.name}: CONTRACT.{field}", repr(given)[:120], message)


def _check_entry(tree: ast.Module, declaration: Declaration, path: Path, files: KernelFiles) -> None:
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    reasons = []
    if declaration.entry not in functions:
        reasons.append(Reason(f"{path.name}: CONTRACT.entry", repr(declaration.entry), f"one of {functions}"))
    compiled = functions if files.device is None else device_functions(files.device)
    for i, unit in enumerate(declaration.compile_units):
        # `gemm_kernel<1, 16>` is an instantiation of the template gemm_kernel.
        if unit.function.split("<")[0].strip() not in compiled:
            reasons.append(
                Reason(f"{path.name}: CONTRACT.compile_units.{i}", repr(unit.function), f"one of {compiled}")
            )
    if reasons:
        raise ExportError("export.declaration", reasons)


def device_functions(device: bytes) -> list[str]:
    """Names of the `__global__` functions in device code, in order; whether they compile is the compiler's business."""
    headers = _GLOBAL_FUNCTION.findall(_COMMENT.sub(" ", device.decode(errors="replace")))
    names = [re.search(r"(\w+)\s*\(", _ATTRIBUTE.sub(" ", header)) for header in headers]
    return list(dict.fromkeys(name.group(1) for name in names if name is not None))


def _check_imports(tree: ast.Module, path: Path, language: str | None) -> None:
    names: tuple[str, ...] = (*ALLOWED_PACKAGES, *ALLOWED_MODULES)
    if language == CUDA:
        names += (*CUDA_PACKAGES, *CUDA_MODULES)
    reasons = []
    for node in ast.walk(tree):
        for name in _imported(node):
            if not any(name == allowed or name.startswith(f"{allowed}.") for allowed in names):
                remedy = f"Line {node.lineno}: an exported folder must work where kda_lab is not installed."  # type: ignore[attr-defined]
                reasons.append(Reason(f"{path.name}: import", repr(name), ", ".join(names), remedy))
    if reasons:
        raise ExportError("export.imports", reasons)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        # A relative import has no place in a folder that is copied alone.
        return [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
    return []
