"""A candidate file as the export reads it: its imports, its declaration and its hash.

The imports are checked before anything runs. A literal declaration is read without running the file; a
computed one is evaluated in a process of its own.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kda_lab.contracts.model import Declaration
from kda_lab.errors import ExportError, Reason
from kda_lab.export.fresh_process import evaluated_contract

ALLOWED_PACKAGES = ("torch", "triton")
ALLOWED_MODULES = (
    "__future__", "collections", "contextlib", "dataclasses", "enum", "functools", "itertools", "math", "operator", "typing",
)  # fmt: skip
"""Of the standard library: what a kernel needs. Not sys, gc, importlib or ctypes, which reach the code that judges."""


@dataclass(frozen=True)
class Candidate:
    """One candidate source, read once: what is judged, hashed and copied are the same bytes."""

    path: Path
    source: bytes
    sha256: str
    declaration: Declaration


def read_candidate(path: Path) -> Candidate:
    """Read a candidate; nothing of it runs in this process.

    Raises:
        ExportError: gate `declaration` (no CONTRACT, an invalid one, no such entry function, a
            language the export cannot compile) or gate `imports` (anything but torch, triton and `ALLOWED_MODULES`).
    """
    if not path.is_file():
        raise ExportError("export.declaration", [Reason("candidate", repr(str(path)), "a Python file that exists")])
    source = path.read_bytes()
    try:
        tree = ast.parse(source, filename=str(path))
    # ast.parse raises ValueError for NUL bytes.
    except (SyntaxError, ValueError) as error:
        raise ExportError("export.declaration", f"{path.name} is not valid Python: {error}") from error
    _check_imports(tree, path)
    declaration = _declaration(tree, path)
    _check_entry(tree, declaration, path)
    return Candidate(path, source, hashlib.sha256(source).hexdigest(), declaration)


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


def _check_entry(tree: ast.Module, declaration: Declaration, path: Path) -> None:
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    reasons = []
    if declaration.entry not in functions:
        reasons.append(Reason(f"{path.name}: CONTRACT.entry", repr(declaration.entry), f"one of {functions}"))
    for i, unit in enumerate(declaration.compile_units):
        if unit.function not in functions:
            reasons.append(
                Reason(f"{path.name}: CONTRACT.compile_units.{i}", repr(unit.function), f"one of {functions}")
            )
    if declaration.language != "triton":
        reasons.append(Reason(f"{path.name}: CONTRACT.language", repr(declaration.language), "'triton'"))
    if reasons:
        raise ExportError("export.declaration", reasons)


def _check_imports(tree: ast.Module, path: Path) -> None:
    reasons = []
    for node in ast.walk(tree):
        for name in _imported(node):
            root = name.split(".")[0]
            if root not in (*ALLOWED_PACKAGES, *ALLOWED_MODULES):
                allowed = ", ".join((*ALLOWED_PACKAGES, *ALLOWED_MODULES))
                remedy = f"Line {node.lineno}: an exported folder must work where kda_lab is not installed."  # type: ignore[attr-defined]
                reasons.append(Reason(f"{path.name}: import", repr(name), allowed, remedy))
    if reasons:
        raise ExportError("export.imports", reasons)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        # A relative import has no place in a folder that is copied alone.
        return ["." * node.level + (node.module or "")]
    return []
