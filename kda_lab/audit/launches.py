"""AUD-5: decorators, launch options, grids, PDL, environment variables and compile flags that the export changed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kda_lab.audit.comparison import CONFIRM, Item, Pair, Version, lost
from kda_lab.audit.finding import Evidence, Finding, Severity
from kda_lab.audit.names import chain_of
from kda_lab.audit.normal import Expressions, guard_words, guards_inside, normal_form, one_line
from kda_lab.audit.parsing import PythonFile, Unit

OPTIONS = {
    *("num_warps", "num_stages", "num_ctas", "launch_pdl", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack"),
    *("enable_pdl", "use_pdl", "launch_cooperative_grid", "do_not_specialize", "cluster_dims", "reg_dec_producer"),
}
PDL_CALLS = {"gdc_wait", "gdc_launch_dependents", "griddepcontrol_wait", "griddepcontrol_launch_dependents"}
FLAG = re.compile(r"^--?[A-Za-z][\w=:.,+/-]*$")
ENVIRONMENT_NAME = re.compile(r"^[A-Z][A-Z0-9_]{2,}$")


def launch_findings(pair: Pair) -> Iterator[Finding]:
    """What one function lost of its decorators, its launches and its PDL."""
    yield from _decorators(pair)
    ours, theirs = list(_options(pair.source)), list(_options(pair.export))
    kept = {item.key.split("\0")[0] for item in theirs} | _called(pair.export)
    for item in lost(ours, theirs):
        place, option = item.key.split("\0")[:2]
        if place not in kept:
            continue
        now = [o for o in theirs if o.key.split("\0")[:2] == [place, option]]
        became = f"became {now[0].words}" if now else "is gone"
        if now and now[0].words == item.words:
            became = "reads the same, and a name in it is assigned something else"
        severity: Severity = "silent-wrong" if item.category == "changed grid" else "performance"
        category = "lost PDL" if "pdl" in option and not now else item.category
        told = Item(category, item.key, f"{item.words} in the call of {place} {became}", item.line)
        yield pair.finding("AUD-5", severity, told, [pair.export.evidence(n.line) for n in now[:1]])
    for item in lost(_pdl(pair.source), _pdl(pair.export)):
        yield pair.finding("AUD-5", "performance", item)


def _decorators(pair: Pair) -> Iterator[Finding]:
    source, export = pair.source.unit.nodes, pair.export.unit.nodes
    ours = [d for n in source for d in getattr(n, "decorator_list", [])]
    theirs = [d for n in export for d in getattr(n, "decorator_list", [])]
    left = [normal_form(d) for d in theirs]
    for decorator in ours:
        if normal_form(decorator) in left:
            continue
        name = _name(decorator)
        now = next((d for d in theirs if _name(d) == name), None)
        became = f"became @{one_line(now, 100)}" if now is not None else "is gone"
        item = Item("changed decorator", "", f"@{one_line(decorator, 100)} {became}", decorator.lineno)
        severity: Severity = "silent-wrong" if now is None and name.endswith("heuristics") else "performance"
        yield pair.finding("AUD-5", severity, item, [pair.export.evidence(now.lineno)] if now is not None else [])


def _name(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _options(version: Version) -> Iterator[Item]:
    for node in (n for top in version.unit.nodes for n in ast.walk(top)):
        if isinstance(node, ast.Call):
            place = ".".join((chain_of(node.func) or ["an expression"])[-1:])
            if isinstance(node.func, ast.Subscript):
                grid = node.func.slice
                key = f"{place}\0grid\0{version.expressions.key(grid)}"
                yield Item("changed grid", key, f"grid {_meaning(version.expressions, grid)}", node.lineno)
            for keyword in node.keywords:
                if keyword.arg in OPTIONS:
                    yield _option(version, place, keyword.arg, keyword.value)
        elif isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and name.value in OPTIONS:
                    yield _option(version, "a dictionary", str(name.value), value)


def _option(version: Version, place: str, option: str, value: ast.expr) -> Item:
    key = f"{place}\0{option}\0{version.expressions.key(value)}"
    return Item("changed launch", key, f"{option}={_meaning(version.expressions, value)}", value.lineno)


def _meaning(expressions: Expressions, value: ast.expr) -> str:
    """The value as code; of a local name also what it is assigned."""
    text = one_line(value, 60)
    assigned = expressions.values.get(value.id, []) if isinstance(value, ast.Name) else []
    return f"{text} ({' | '.join(one_line(a, 60) for a in assigned)})" if assigned else text


def _called(version: Version) -> set[str]:
    calls = [n for top in version.unit.nodes for n in ast.walk(top) if isinstance(n, ast.Call)]
    return {chain[-1] for c in calls if (chain := chain_of(c.func))} | {"a dictionary"}


def _pdl(version: Version) -> Iterator[Item]:
    for node in (n for top in version.unit.nodes for n in ast.walk(top)):
        chain = chain_of(node.func) if isinstance(node, ast.Call) else None
        if chain is not None and chain[-1] in PDL_CALLS:
            yield Item("lost PDL", chain[-1], f"the call of {chain[-1]} is gone", getattr(node, "lineno", 0))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "griddepcontrol" in node.value:
            yield Item("lost PDL", "asm", "inline assembly with griddepcontrol is gone", node.lineno)


def file_findings(path: str, source: PythonFile, export: PythonFile) -> Iterator[Finding]:
    """Environment variables and compile flags that a file lost, or flags that it gained."""
    for item in lost(*(_named_once(_environment(f)) for f in (source, export))):
        yield _file_finding(path, source, item, "source")
    ours, theirs = list(_flags(source)), list(_flags(export))
    for item in lost(ours, theirs):
        yield _file_finding(path, source, item, "source")
    for item in lost(theirs, ours):
        added = Item(item.category, item.key, item.words.replace("is gone", "was added"), item.line)
        yield _file_finding(path, export, added, "export")


def _file_finding(path: str, file: PythonFile, item: Item, role: str) -> Finding:
    flags = item.category == "changed compile flags"
    return Finding(
        rule="AUD-5",
        category=item.category,
        file=path,
        symbol=file.enclosing(item.line),
        severity="silent-wrong" if flags else "performance",
        lost=item.words,
        test=CONFIRM[item.category],
        evidence=(Evidence(tree=role, path=path, line=item.line, text=file.line_text(item.line)),),
    )


def _named_once(items: Iterator[Item]) -> list[Item]:
    return list({item.key: item for item in items}.values())


def _environment(file: PythonFile) -> Iterator[Item]:
    for node in (n for n in ast.walk(file.module) if isinstance(n, (ast.Call, ast.Subscript, ast.Attribute))):
        names: list[str] = []
        if isinstance(node, ast.Call) and "env" in ast.unparse(node.func).lower():
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        elif isinstance(node, ast.Subscript) and "environ" in ast.unparse(node.value):
            names = [str(node.slice.value)] if isinstance(node.slice, ast.Constant) else []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "envs":
            names = [node.attr]
        for name in names:
            if ENVIRONMENT_NAME.match(name):
                words = f"the environment variable {name} is no longer read"
                yield Item("lost environment variable", name, words, node.lineno)


def _flags(file: PythonFile) -> Iterator[Item]:
    for unit in file.units.values():
        yield from _unit_flags(unit)
    yield from _flags_of(file.rest, "", None)


def _unit_flags(unit: Unit) -> Iterator[Item]:
    if unit.kind in ("function", "method", "constant"):
        statements = [n for n in unit.nodes if isinstance(n, ast.stmt)]
        yield from _flags_of(statements, unit.name, unit)


def _flags_of(statements: list[ast.stmt], symbol: str, unit: Unit | None) -> Iterator[Item]:
    expressions = Expressions(unit.function if unit is not None else None)
    table = _table_keys(statements)
    for node, guards in guards_inside(statements):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and FLAG.match(node.value)):
            continue
        if table.get(id(node)) == ["add_argument"]:
            continue
        under = [*table.get(id(node), []), *(g if isinstance(g, str) else expressions.key(g) for g in guards)]
        where = " under " + " and ".join(filter(None, [*table.get(id(node), []), guard_words(guards)]))
        words = f"the flag {node.value}{where if under else ''} is gone"
        yield Item("changed compile flags", "\0".join([symbol, node.value, *under]), words, node.lineno)


def _table_keys(statements: list[ast.stmt]) -> dict[int, list[str]]:
    """`id` of a string to the keys of the tables that it stands in: `FLAGS = {"rocm": ["-O3"]}`."""
    found: dict[int, list[str]] = {}
    for node in (n for s in statements for n in ast.walk(s)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                for below in ast.walk(value):
                    found.setdefault(id(below), []).append(one_line(key, 40) if key is not None else "**")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_argument"):
            for argument in node.args:
                found[id(argument)] = ["add_argument"]
    return found
