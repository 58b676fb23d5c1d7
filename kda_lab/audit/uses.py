"""Uses of names in a file: calls, launches, imports and attribute reads, with the conditions that guard them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from kda_lab.audit.names import Code, Definition, chain_of
from kda_lab.audit.normal import FUNCTIONS, Function, Guard, guard_words, guards_inside, locals_of, parameters_of
from kda_lab.audit.parsing import PythonFile
from kda_lab.audit.signatures import Arguments, arguments_of


@dataclass(frozen=True)
class Use:
    """One place that names a definition."""

    path: str
    line: int
    symbol: str
    """Function or method that holds it; empty at module level."""
    target: Definition
    guard: str
    """Conditions that guard it, in words."""
    call: ast.Call | None = None
    """The call; None where the name is imported or read only."""
    launch: bool = False
    """`kernel[grid](...)`, directly or through a local name."""

    @property
    def arguments(self) -> Arguments | None:
        return arguments_of(self.call) if self.call is not None else None


class Scope:
    """Names as one function (or the module level) sees them."""

    def __init__(self, code: Code, path: str, function: Function | None, owner: str) -> None:
        self.code, self.path, self.owner = code, path, owner
        self.function = function

    @cached_property
    def own(self) -> set[str]:
        """Names that the function binds, its parameters among them: they hide the module's."""
        if self.function is None:
            return set()
        return locals_of(self.function) | {p.arg for p in parameters_of(self.function)}

    @cached_property
    def bindings(self) -> dict[str, list[ast.AST]]:
        """Local name to the statements and values that bind it."""
        found: dict[str, list[ast.AST]] = {}
        for node in ast.walk(self.function) if self.function is not None else ():
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    found.setdefault((alias.asname or alias.name).split(".")[0], []).append(node)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                found.setdefault(node.targets[0].id, []).append(node.value)
        return found

    def targets(self, parts: Sequence[str], depth: int = 3) -> list[Definition]:
        """The definitions that a dotted name may mean here; empty where that is unknown."""
        first = parts[0]
        if first in ("self", "cls") and self.owner and len(parts) == 2:
            file = self.code.file(self.path)
            name = f"{self.owner}.{parts[1]}"
            return [Definition(self.path, name)] if file is not None and name in file.units else []
        if first not in self.own:
            return unique(self.code.expand(self.path, parts))
        found: list[Definition] = []
        for bound in self.bindings.get(first, ()):
            if isinstance(bound, (ast.Import, ast.ImportFrom)):
                found += self.code.follow(self.path, bound, parts)
            else:
                chain = chain_of(bound)
                if chain is not None and chain[0] != first and depth:
                    found += self.targets([*chain, *parts[1:]], depth - 1)
        return unique(found)

    def is_launch(self, call: ast.Call) -> bool:
        """Whether the call goes through `[grid]`, here or where its name was bound."""
        if isinstance(call.func, ast.Subscript):
            return True
        bound = self.bindings.get(call.func.id, ()) if isinstance(call.func, ast.Name) else ()
        return any(isinstance(b, ast.Subscript) for b in bound)


def unique(found: Iterator[Definition] | Sequence[Definition]) -> list[Definition]:
    """Each definition once, in order."""
    return list(dict.fromkeys(found))


def scopes(code: Code, path: str, file: PythonFile) -> Iterator[tuple[str, Scope, list[ast.stmt], frozenset[int]]]:
    """The functions, methods and the module level of a file: symbol, scope, statements, nodes to leave out."""
    taken: list[int] = []
    for unit in file.units.values():
        for node in unit.nodes:
            if isinstance(node, FUNCTIONS):
                taken.append(id(node))
                yield unit.name, Scope(code, path, node, unit.name.rpartition(".")[0]), [node], frozenset()
    yield "", Scope(code, path, None, ""), file.module.body, frozenset(taken)


@dataclass(frozen=True)
class Mention:
    """One place that names something, before it is known what the name means."""

    scope: Scope
    symbol: str
    node: ast.AST
    parts: list[str]
    call: ast.Call | None
    guards: tuple[Guard, ...]


class Mentions:
    """All names that one file mentions, collected in one walk; asked as often as there are names to look for."""

    def __init__(self, code: Code, path: str) -> None:
        file = code.file(path)
        self._found = list(_collected(code, path, file)) if file is not None else []
        self._given = list(_given_names(file)) if file is not None else []

    def uses(self, wanted: set[str] | None = None) -> Iterator[Use]:
        """Every use of a definition of the tree in the file.

        Args:
            wanted: last names worth resolving; None: all.
        """
        names = None if wanted is None else self._with_aliases(wanted)
        for m in self._found:
            if names is None or not names.isdisjoint(m.parts):
                yield from _resolved(m.scope, m.symbol, m.node, m.parts, m.call, guard_words(m.guards))

    def _with_aliases(self, wanted: set[str]) -> set[str]:
        """The wanted names and those that the file gives to them."""
        found, size = set(wanted), 0
        while size != len(found):
            size = len(found)
            found |= {name for name, origins in self._given if origins & found}
        return found


def uses(code: Code, path: str, wanted: set[str] | None = None) -> Iterator[Use]:
    """Every use of a definition of the tree in one file, asked once; see `Mentions`."""
    return Mentions(code, path).uses(wanted)


def _collected(code: Code, path: str, file: PythonFile) -> Iterator[Mention]:
    for symbol, scope, body, skip in scopes(code, path, file):
        called: set[int] = set()
        for node, guards in guards_inside(body, skip):
            if isinstance(node, ast.Call):
                called.add(id(node.func))
                called.add(id(node.func.value) if isinstance(node.func, ast.Subscript) else 0)
            for parts, call in _mentions(node, called):
                yield Mention(scope, symbol, node, parts, call, guards)


def _given_names(file: PythonFile) -> Iterator[tuple[str, set[str]]]:
    """Names that a file gives to others, with what they stand for: `import x as y`, `launch = x[grid]`, in any scope."""
    for node in ast.walk(file.module):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((a.asname, set(a.name.split("."))) for a in node.names if a.asname)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, set(chain_of(node.value) or ())


def _mentions(node: ast.AST, called: set[int]) -> Iterator[tuple[list[str], ast.Call | None]]:
    if isinstance(node, ast.Call):
        chain = chain_of(node.func)
        if chain is not None:
            yield chain, node
    elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and id(node) not in called:
        chain = chain_of(node)
        if chain is not None:
            yield chain, None
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            if alias.name != "*":
                whole = alias.name.split(".")
                yield (
                    ([alias.asname] if alias.asname else whole if isinstance(node, ast.Import) else [alias.name]),
                    None,
                )


def _resolved(
    scope: Scope, symbol: str, node: ast.AST, parts: list[str], call: ast.Call | None, guard: str
) -> Iterator[Use]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        found = unique(scope.code.follow(scope.path, node, parts))
    else:
        found = scope.targets(parts)
    line = getattr(node, "lineno", 0)
    for target in found:
        launch = call is not None and scope.is_launch(call)
        yield Use(scope.path, line, symbol, target, guard, call, launch)
