"""Whose name is that: modules of a tree by dotted name, and names followed through imports and aliases to definitions."""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePosixPath

from kda_lab.audit.parsing import PythonFile, Unparsable, parse_python
from kda_lab.audit.reading import PYTHON_SUFFIXES, Tree

HOPS = 12
"""Imports that are followed before a name counts as unknown; a cycle ends here."""


@dataclass(frozen=True, order=True)
class Definition:
    """A function, class or method of the tree; an empty name is the module itself."""

    path: str
    name: str = ""


class Cache:
    """Parsed files by content, shared by the trees of one audit: what is identical is parsed once."""

    def __init__(self) -> None:
        self._parsed: dict[bytes, PythonFile | Unparsable] = {}

    def parse(self, content: bytes) -> PythonFile | Unparsable:
        """The parsed file, or why it is none."""
        key = hashlib.sha256(content).digest()
        if key not in self._parsed:
            self._parsed[key] = parse_python(content)
        return self._parsed[key]


class Code:
    """The Python files of a tree, parsed when they are asked for, and the names in them."""

    def __init__(self, tree: Tree, cache: Cache) -> None:
        self.tree = tree
        self.paths = [p for p in tree.files if p.endswith(PYTHON_SUFFIXES)]
        self._cache = cache
        self._by_tail: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for path in self.paths:
            parts = PurePosixPath(path).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if parts:
                self._by_tail[parts[-1]].append(parts)
        self._of_parts = {self._parts(p): p for p in reversed(self.paths)}

    @staticmethod
    def _parts(path: str) -> tuple[str, ...]:
        parts = PurePosixPath(path).with_suffix("").parts
        return parts[:-1] if parts[-1] == "__init__" else parts

    def file(self, path: str) -> PythonFile | None:
        """A parsed file; None where there is none or it cannot be parsed."""
        found = self.parsed(path)
        return found if isinstance(found, PythonFile) else None

    def parsed(self, path: str) -> PythonFile | Unparsable | None:
        """A parsed file, why it is none, or None where the tree has no such file."""
        content = self.tree.files.get(path)
        return None if content is None else self._cache.parse(content)

    def module(self, dotted: str, near: str = "") -> str | None:
        """Path of the module with a dotted name below any root of the tree.

        Of several roots, the one that shares most folders with the importing file `near` wins, then the shortest.
        """
        parts = tuple(dotted.split("."))
        fitting = [p for p in self._by_tail.get(parts[-1], ()) if p[-len(parts) :] == parts]
        here = PurePosixPath(near).parts

        def order(found: tuple[str, ...]) -> tuple[int, int, tuple[str, ...]]:
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(found, here, strict=False)))
            return (-shared, len(found), found)

        best = min(fitting, key=order, default=None)
        return None if best is None else self._of_parts.get(best)

    def imported(self, path: str, node: ast.ImportFrom) -> str:
        """Dotted name of the module that a `from` import names, relative ones resolved within the tree."""
        if not node.level:
            return node.module or ""
        parts = list(PurePosixPath(path).parts[:-1])
        base = parts[: len(parts) - (node.level - 1)]
        return ".".join([*base, *(node.module.split(".") if node.module else [])])

    def expand(self, path: str, parts: Sequence[str], hops: int = HOPS) -> Iterator[Definition]:
        """Every definition that a dotted name of a module may mean; nothing where it leaves the tree."""
        file = self.file(path)
        if file is None or hops <= 0:
            return
        if not parts:
            yield Definition(path)
            return
        unit = file.units.get(parts[0])
        if unit is None:
            yield from self._without_unit(path, file, parts, hops)
            return
        for node in unit.nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from self.follow(path, node, parts, hops - 1)
            elif isinstance(node, ast.Assign):
                chain = chain_of(node.value)
                if chain is not None:
                    yield from self.expand(path, [*chain, *parts[1:]], hops - 1)
                elif len(parts) == 1:
                    yield Definition(path, parts[0])
            elif ".".join(parts) in file.units:
                yield Definition(path, ".".join(parts))

    def _without_unit(self, path: str, file: PythonFile, parts: Sequence[str], hops: int) -> Iterator[Definition]:
        inside = self.module(".".join([*self._parts(path), parts[0]])) if path.endswith("__init__.py") else None
        if inside is not None:
            yield from self.expand(inside, parts[1:], hops - 1)
            return
        for statement in file.rest + [n for u in file.units.values() for n in u.nodes]:
            if isinstance(statement, ast.ImportFrom) and any(a.name == "*" for a in statement.names):
                origin = self.module(self.imported(path, statement), path)
                if origin is not None and origin != path:
                    yield from self.expand(origin, parts, hops - 1)

    def follow(
        self, path: str, node: ast.Import | ast.ImportFrom, parts: Sequence[str], hops: int = HOPS
    ) -> Iterator[Definition]:
        """What a name bound by one import statement means; `parts[0]` is the bound name."""
        for alias in node.names:
            bound = (alias.asname or alias.name).split(".")[0]
            if alias.asname is None and isinstance(node, ast.Import):
                if bound == parts[0]:
                    yield from self._from_module(path, list(parts), hops)
            elif (alias.asname or alias.name) == parts[0]:
                whole = alias.name if isinstance(node, ast.Import) else f"{self.imported(path, node)}.{alias.name}"
                yield from self._from_module(path, [*whole.split("."), *parts[1:]], hops)

    def _from_module(self, near: str, parts: list[str], hops: int) -> Iterator[Definition]:
        """A dotted name from outside: a symbol of the longest prefix that is a module, or that module."""
        for cut in range(len(parts), 0, -1):
            path = self.module(".".join(parts[:cut]), near)
            if path is None:
                continue
            found = list(self.expand(path, parts[cut:], hops - 1))
            # `from package import name`: the package's own binding wins over a module of that name.
            package = self.module(".".join(parts[: cut - 1]), near) if cut == len(parts) and cut > 1 else None
            file = self.file(package) if package is not None and package != path else None
            if package is not None and file is not None and parts[-1] in file.units:
                found = list(self.expand(package, parts[-1:], hops - 1)) or found
            yield from found
            return


def chain_of(node: ast.AST) -> list[str] | None:
    """`a.b.c` as its names, `kernel[grid]` as the kernel's; None for any other expression."""
    names: list[str] = []
    if isinstance(node, ast.Subscript):
        node = node.value
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return [node.id, *reversed(names)]
