"""AUD-2 outside of functions and classes: statements, conditions, alternatives and imports that decide by their order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from kda_lab.audit.comparison import Item, lost
from kda_lab.audit.cuda_text import CudaFile
from kda_lab.audit.finding import Evidence, Finding, Rule
from kda_lab.audit.normal import FUNCTIONS, fingerprint, normal_form, one_line, without_docstring
from kda_lab.audit.parsing import PythonFile, assigned

TEST = "Import or build both trees, and print what the statement sets, registers or checks."


def module_findings(path: str, source: PythonFile, export: PythonFile) -> Iterator[Finding]:
    """What a module lost or changed outside of its functions and classes, one finding a statement."""
    sides = [list(_statements(f.module.body)) for f in (source, export)]
    yield from _told(path, (source, export), sides)
    for name, unit in source.units.items():
        other = export.units.get(name)
        several = other is not None and max(len(unit.nodes), len(other.nodes)) > 1
        if other is None or not several or unit.fingerprint == other.fingerprint:
            continue
        if unit.kind in ("function", "class", "method"):
            words = f"one of the alternatives of {name} changed: {len(unit.nodes)} stand in the source, {len(other.nodes)} in the export"
            yield _finding("AUD-11", path, (source, export), ("retyped", name, words), (unit.line, other.line))
        elif unit.kind == other.kind == "import" and _origins(unit.nodes, name) != _origins(other.nodes, name):
            words = f"{name} is imported several times, and the last import now differs: `{one_line(unit.nodes[-1], 80)}` became `{one_line(other.nodes[-1], 80)}`"
            yield _finding("AUD-2", path, (source, export), ("changed import", name, words), (unit.line, other.line))


def cuda_module_findings(path: str, source: CudaFile, export: CudaFile) -> Iterator[Finding]:
    """The same for a CUDA or C++ file: constants, enumerations, instantiations, declarations, includes."""
    sides = [[(t.line, symbol, t.text, t.text) for symbol, t in f.statements()] for f in (source, export)]
    yield from _told(path, (source, export), sides)


Files = tuple[PythonFile, PythonFile] | tuple[CudaFile, CudaFile]
"""The source's and the export's version of a file."""

Statement = tuple[int, str, str, str]
"""Line, symbol, normal form, code."""


def _told(path: str, files: Files, sides: Sequence[Sequence[Statement]]) -> Iterator[Finding]:
    ours, theirs = ([Item(symbol, form, text, line) for line, symbol, form, text in side] for side in sides)
    new = lost(theirs, ours)
    for item in lost(ours, theirs):
        now = next((n for n in new if n.category == item.category), None)
        new = [n for n in new if n is not now]
        became = f"became `{now.words[:100]}`" if now is not None else "is gone"
        told = ("changed statement" if now else "lost statement", item.category, f"`{item.words[:100]}` {became}")
        yield _finding("AUD-2", path, files, told, (item.line, now.line if now is not None else 0))
    # A declaration that is new in C++ does nothing by itself; a statement of a Python module runs.
    for item in new if isinstance(files[0], PythonFile) else ():
        told = ("added statement", item.category, f"`{item.words[:100]}` was added")
        yield _finding("AUD-2", path, files, told, (0, item.line))


def _finding(
    rule: Rule,
    path: str,
    files: Files,
    told: tuple[str, str, str],
    lines: tuple[int, int],
) -> Finding:
    category, symbol, words = told
    texts = [files[0].line_text(lines[0]), files[1].line_text(lines[1])]
    places = zip(("source", "export"), lines, texts, strict=True)
    return Finding(
        rule=rule,
        category=category,
        file=path,
        symbol=symbol,
        severity="silent-wrong",
        lost=words,
        test=TEST,
        evidence=tuple(Evidence(tree=r, path=path, line=n, text=x) for r, n, x in places if n),
    )


def _statements(body: Sequence[ast.stmt], under: str = "") -> Iterator[Statement]:
    """Statements that define nothing, and the heads of `if`, `try`, `with` with the names that stand below them."""
    for statement in without_docstring(body):
        names = "|".join(",".join(_bound(part)) for part in _parts(statement))
        if isinstance(statement, (ast.If, ast.With, ast.Try)):
            head = _head(statement)
            symbol = names.replace("|", ",").strip(",").split(",")[0] or type(statement).__name__.lower()
            yield statement.lineno, symbol, f"{under}{head}:{names}", head
            for number, part in enumerate(_parts(statement)):
                yield from _statements(part, f"{under}{head}#{number}/")
        elif not _is_named(statement):
            yield statement.lineno, _symbol(statement), under + normal_form(statement), one_line(statement, 100)


def _is_named(statement: ast.stmt) -> bool:
    """Whether a statement is compared under the names that it binds, or does nothing."""
    if isinstance(statement, ast.ImportFrom):
        return all(a.name != "*" for a in statement.names)
    return isinstance(statement, (*FUNCTIONS, ast.ClassDef, ast.Import, ast.Pass)) or bool(assigned(statement))


def _parts(statement: ast.stmt) -> list[list[ast.stmt]]:
    handlers = [h.body for h in getattr(statement, "handlers", [])]
    return [
        getattr(statement, "body", []),
        *handlers,
        getattr(statement, "orelse", []),
        getattr(statement, "finalbody", []),
    ]


def _head(statement: ast.If | ast.With | ast.Try) -> str:
    if isinstance(statement, ast.If):
        return f"if {ast.unparse(statement.test)}"
    if isinstance(statement, ast.With):
        return f"with {', '.join(ast.unparse(i) for i in statement.items)}"
    caught = [ast.unparse(h.type) if h.type is not None else "any error" for h in statement.handlers]
    return f"try, on {', '.join(caught)}" if caught else "try"


def _bound(body: Sequence[ast.stmt]) -> list[str]:
    """Names that statements of a module define, import or assign, in their order."""
    found: list[str] = []
    for statement in body:
        found += [statement.name] if isinstance(statement, (*FUNCTIONS, ast.ClassDef)) else assigned(statement)
    return found


def _symbol(statement: ast.stmt) -> str:
    """What a statement is about: the object that it sets, the function that it calls, or its keyword."""
    node: ast.AST = statement
    if isinstance(statement, (ast.Assign, ast.Delete)):
        node = statement.targets[0]
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        node = statement.target
    elif isinstance(statement, ast.Expr):
        node = statement.value.func if isinstance(statement.value, ast.Call) else statement.value
    if isinstance(node, ast.expr):
        return ast.unparse(node)[:80]
    return type(statement).__name__.lower()


def _origins(nodes: Sequence[ast.AST], name: str) -> list[str]:
    """Where the imports of one name take it from, in order."""
    return [
        fingerprint(ast.ImportFrom(module=getattr(n, "module", None), names=[a], level=getattr(n, "level", 0)))
        for n in nodes
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for a in n.names
        if (a.asname or a.name).split(".")[0] == name
    ]
