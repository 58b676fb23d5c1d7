"""AUD-2 and AUD-3 for a Python file: names, `__all__`, re-exports, constants, signatures and class attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kda_lab.audit.finding import Evidence, Finding, Rule, Severity
from kda_lab.audit.normal import Function, normal_form, one_line
from kda_lab.audit.parsing import PythonFile, Unit
from kda_lab.audit.signatures import Signature, differences, signature_of

TESTS = {
    "missing symbol": "Import the name from the export's module.",
    "missing re-export": "Import the name from the export's package.",
    "missing from __all__": "`from module import *`, then use the name.",
    "changed constant": "Print the constant in both trees; compare one output bit by bit.",
    "lost class attribute": "Read the attribute of the class in the export.",
    "changed class": "Construct the class in both trees; compare its attributes and bases.",
    "changed kind of symbol": "Import the name in both trees and use it as the callers do.",
}
SIGNATURE_TEST = "Call it as the source branch calls it: binding fails, or the changed default shows, without a GPU."


def symbol_findings(path: str, source: PythonFile, export: PythonFile) -> Iterator[Finding]:
    """Names that the export's version of a file lost or gave another value (AUD-2)."""
    listed = set(source.exported_names or ())
    for unit in source.units.values():
        other = export.units.get(unit.name)
        if unit.name == "__all__" or (other is None and unit.kind == "import" and not _is_public(path, unit, listed)):
            continue
        if other is None:
            category = "missing re-export" if unit.kind == "import" else "missing symbol"
            words = f"the {'imported name' if unit.kind == 'import' else unit.kind} {unit.name} is gone"
            yield _finding("AUD-2", "crash", path, source, unit, (category, words))
        elif unit.kind != other.kind and unit.kind in ("function", "class") and other.kind == "constant":
            words = f"{unit.name} was a {unit.kind} and is a {other.kind}"
            told = ("changed kind of symbol", words)
            yield _finding("AUD-2", "crash", path, source, unit, told, _at(path, export, other))
        elif unit.kind == other.kind == "constant" and unit.fingerprint != other.fingerprint and not _is_table(unit):
            words = f"`{_first_line(unit)}` became `{_first_line(other)}`"
            told = ("changed constant", words)
            yield _finding("AUD-2", "silent-wrong", path, source, unit, told, _at(path, export, other))
    for name in source.exported_names or ():
        if export.exported_names is not None and name not in export.exported_names:
            unit = source.units.get("__all__") or next(iter(source.units.values()))
            words = f"{name} is no longer in __all__"
            yield _finding("AUD-2", "crash", path, source, unit, ("missing from __all__", words)).model_copy(
                update={"symbol": name}
            )


def _is_public(path: str, unit: Unit, listed: set[str]) -> bool:
    """Whether an import is there for others: in a package's `__init__`, in `__all__`, or written `x as x`."""
    aliases = [a for n in unit.nodes if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names]
    itself = any(a.asname == a.name == unit.name for a in aliases)
    return path.endswith("__init__.py") or unit.name in listed or itself


def _is_table(unit: Unit) -> bool:
    """Whether a constant holds compile flags, which are compared one by one elsewhere (AUD-5)."""
    texts = [n.value for top in unit.nodes for n in ast.walk(top) if isinstance(n, ast.Constant)]
    return any(isinstance(t, str) and t.startswith("-") and len(t) > 2 for t in texts)


def _first_line(unit: Unit) -> str:
    return one_line(unit.nodes[0], 80)


def signature_findings(
    path: str, symbol: str, source: PythonFile, versions: tuple[Unit, PythonFile, str]
) -> list[Finding]:
    """What callers of one function lost by its new signature (AUD-3).

    Args:
        path: the file in the source tree.
        symbol: the function's qualified name there.
        source: the parsed file.
        versions: the export's unit, the file and the path that hold it; another file where it moved.
    """
    unit = source.units[symbol]
    other, file, place = versions
    if unit.function is None or other.function is None:
        return []
    found = []
    for change in differences(_signature(unit.function, symbol), _signature(other.function, symbol)):
        finding = Finding(
            rule="AUD-3",
            category=change.category,
            file=path,
            symbol=symbol,
            severity=change.severity,
            lost=change.words,
            test=SIGNATURE_TEST,
            evidence=(_at(path, source, unit, "source"), _at(place, file, other)),
        )
        found.append(finding)
    return found


def _signature(function: Function, symbol: str) -> Signature:
    static = any(ast.unparse(d).endswith("staticmethod") for d in function.decorator_list)
    return signature_of(function, skip_first="." in symbol and not static)


def class_findings(path: str, source: PythonFile, export: PythonFile) -> Iterator[Finding]:
    """Bases and attributes that a class lost or changed (AUD-3)."""
    for unit in source.units.values():
        other = export.units.get(unit.name)
        if unit.class_node is None or other is None or other.class_node is None:
            continue
        ours, theirs = _attributes(unit.class_node), _attributes(other.class_node)
        for name, statement in ours.items():
            if name not in theirs:
                words = f"the class attribute {name} is gone"
                yield _class_finding(path, (source, unit), (export, other), ("lost class attribute", words, "crash"))
            elif normal_form(statement) != normal_form(theirs[name]):
                words = f"`{one_line(statement, 80)}` became `{one_line(theirs[name], 80)}`"
                told: tuple[str, str, Severity] = ("changed class", words, "silent-wrong")
                yield _class_finding(path, (source, unit), (export, other), told)
        bases = [[one_line(b) for b in n.bases] for n in (unit.class_node, other.class_node)]
        if bases[0] != bases[1]:
            words = f"the bases {bases[0]} became {bases[1]}"
            yield _class_finding(path, (source, unit), (export, other), ("changed class", words, "crash"))


def _attributes(node: ast.ClassDef) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for statement in node.body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        found |= {t.id: statement for t in targets if isinstance(t, ast.Name)}
    return found


def _class_finding(
    path: str, ours: tuple[PythonFile, Unit], theirs: tuple[PythonFile, Unit], told: tuple[str, str, Severity]
) -> Finding:
    category, words, severity = told
    return _finding("AUD-3", severity, path, *ours, (category, words), _at(path, *theirs))


def _finding(
    rule: Rule,
    severity: Severity,
    path: str,
    file: PythonFile,
    unit: Unit,
    told: tuple[str, str],
    extra: Evidence | None = None,
) -> Finding:
    category, words = told
    evidence = (_at(path, file, unit, "source"), *([extra] if extra is not None else []))
    return Finding(
        rule=rule,
        category=category,
        file=path,
        symbol=unit.name,
        severity=severity,
        lost=words,
        test=TESTS[category],
        evidence=evidence,
    )


def _at(path: str, file: PythonFile, unit: Unit, role: str = "export") -> Evidence:
    return Evidence(tree=role, path=path, line=unit.line, text=file.line_text(unit.line))
