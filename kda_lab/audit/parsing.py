"""Files parsed once: Python into its units (functions, classes, methods, constants, imports), bad files into one reason."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from kda_lab.audit.normal import FUNCTIONS, Function, fingerprint, normal_form, without_docstring

DEEPEST = 300
"""Levels of nesting that are read; only generated code goes deeper."""
UnitKind = Literal["function", "class", "method", "constant", "import"]


@dataclass(frozen=True)
class Unparsable:
    """Why a file is not readable code, and where."""

    reason: str
    line: int = 0


@dataclass
class Unit:
    """One named thing of a module; alternatives under `if` and `try` share the name and stand together."""

    name: str
    kind: UnitKind
    nodes: list[ast.AST] = field(default_factory=list)

    @property
    def line(self) -> int:
        return int(getattr(self.nodes[0], "lineno", 0))

    @property
    def function(self) -> Function | None:
        """The definition, where there is exactly one; None for anything else."""
        node = self.nodes[0]
        return node if len(self.nodes) == 1 and isinstance(node, FUNCTIONS) else None

    @property
    def class_node(self) -> ast.ClassDef | None:
        """The class, where there is exactly one definition; None for anything else."""
        node = self.nodes[0]
        return node if len(self.nodes) == 1 and isinstance(node, ast.ClassDef) else None

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the normal form; of a class its header and attributes, its methods are units themselves."""
        if self.kind != "class":
            return fingerprint(self.nodes)
        parts = []
        for node in self.nodes:
            if isinstance(node, ast.ClassDef):
                parts += [normal_form(n) for n in (*node.bases, *node.keywords, *node.decorator_list)]
                parts += [normal_form(s) for s in without_docstring(node.body) if not isinstance(s, FUNCTIONS)]
        return fingerprint([ast.Constant(value=p) for p in parts])


class PythonFile:
    """One parsed module."""

    def __init__(self, module: ast.Module, text: str) -> None:
        self.module = module
        self.lines = text.split("\n")
        self.units: dict[str, Unit] = {}
        self.rest: list[ast.stmt] = []
        """Module-level statements that name nothing."""
        for statement in flattened(module.body):
            self._take(statement)

    def line_text(self, line: int) -> str:
        """One line, stripped, for evidence."""
        return self.lines[line - 1].strip()[:160] if 0 < line <= len(self.lines) else ""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the module's normal form."""
        return fingerprint(self.module)

    @cached_property
    def exported_names(self) -> tuple[str, ...] | None:
        """The names in `__all__`, additions included; None where the module has none or computes it."""
        names: list[str] = []
        seen = False
        for statement in flattened(self.module.body):
            value = _all_value(statement)
            if value is not None:
                seen = True
                names += [e.value for e in value if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        return tuple(names) if seen else None

    def functions(self) -> Iterator[Unit]:
        """Functions and methods with one definition, in order of the file."""
        return (u for u in self.units.values() if u.function is not None)

    def enclosing(self, line: int) -> str:
        """Qualified name of the function or method around a line; empty at module level."""
        best = ""
        for unit in self.units.values():
            for node in unit.nodes:
                if isinstance(node, FUNCTIONS) and node.lineno <= line <= (node.end_lineno or node.lineno):
                    best = unit.name
        return best

    def _take(self, statement: ast.stmt) -> None:
        if isinstance(statement, FUNCTIONS):
            self._add(statement.name, "function", statement)
        elif isinstance(statement, ast.ClassDef):
            self._add(statement.name, "class", statement)
            for member in flattened(statement.body):
                if isinstance(member, FUNCTIONS):
                    self._add(f"{statement.name}.{member.name}", "method", member)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                if alias.name != "*" and getattr(statement, "module", "") != "__future__":
                    self._add((alias.asname or alias.name).split(".")[0], "import", statement)
            if any(alias.name == "*" for alias in statement.names):
                self.rest.append(statement)
        elif names := assigned(statement):
            for name in names:
                self._add(name, "constant", statement)
        else:
            self.rest.append(statement)

    def _add(self, name: str, kind: UnitKind, node: ast.AST) -> None:
        unit = self.units.setdefault(name, Unit(name, kind))
        unit.nodes.append(node)
        if kind != "import":
            # A definition beside an import of the same name is a fallback: it is what the audit compares.
            unit.kind = kind


def flattened(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module or class, those under `if`, `try` and `with` included."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from flattened([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            handled = [s for h in statement.handlers for s in h.body]
            yield from flattened([*statement.body, *handled, *statement.orelse, *statement.finalbody])
        elif isinstance(statement, ast.With):
            yield from flattened(statement.body)
        else:
            yield statement


def assigned(statement: ast.stmt) -> list[str]:
    """Names that an assignment binds; empty for one to an attribute or an item, and for other statements."""
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        targets = [statement.target]
    else:
        return []
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _all_value(statement: ast.stmt) -> list[ast.expr] | None:
    target: ast.expr | None = None
    value: ast.expr | None = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        target, value = statement.target, statement.value
    if isinstance(target, ast.Name) and target.id == "__all__" and isinstance(value, (ast.List, ast.Tuple)):
        return value.elts
    return None


def parse_python(content: bytes) -> PythonFile | Unparsable:
    """Parse a Python file; what cannot be parsed comes back as its reason and line."""
    if b"\0" in content:
        return Unparsable("it holds NUL bytes: a binary file", content[: content.index(b"\0")].count(b"\n") + 1)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
        with warnings.catch_warnings():
            # An invalid escape in somebody else's string is not this audit's business.
            warnings.simplefilter("ignore")
            module = ast.parse(text)
    except UnicodeDecodeError as error:
        return Unparsable(f"byte {error.start} is not {encoding}", content[: error.start].count(b"\n") + 1)
    except SyntaxError as error:
        return Unparsable(f"syntax error: {error.msg}", error.lineno or 1)
    except (ValueError, RecursionError, MemoryError) as error:
        return Unparsable(f"it cannot be parsed: {error or type(error).__name__}", 1)
    deep = _deeper_than(module, DEEPEST)
    if deep is not None:
        return Unparsable(f"it is nested deeper than {DEEPEST} levels", deep)
    return PythonFile(module, text)


def _deeper_than(module: ast.Module, levels: int) -> int | None:
    """Line of the first node below so many levels; None where there is none."""
    row: list[tuple[ast.AST, int]] = [(module, 1)]
    for _ in range(levels):
        row = [(c, getattr(c, "lineno", line)) for node, line in row for c in ast.iter_child_nodes(node)]
        if not row:
            return None
    return row[0][1]


def decode_text(content: bytes) -> str | Unparsable:
    """Text of a CUDA or C++ file; binary and non-UTF-8 content comes back as its reason and line."""
    if b"\0" in content:
        return Unparsable("it holds NUL bytes: a binary file", content[: content.index(b"\0")].count(b"\n") + 1)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        return Unparsable(f"byte {error.start} is not UTF-8", line)
