"""AUD-12: tests whose oracle reaches the kernel under test, so that they compare it with itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from kda_lab.audit.finding import Evidence, Finding
from kda_lab.audit.names import Code, Definition, chain_of
from kda_lab.audit.normal import FUNCTIONS
from kda_lab.audit.parsing import PythonFile
from kda_lab.audit.uses import Use, uses

ORACLE = re.compile(r"(^|_)(ref|reference|oracle|naive|golden|expected|baseline|truth|want)(_|s?$|\d)", re.I)
OPAQUE = re.compile(r"load_jit|load_inline|cpp_extension|_jit_.*module|get_.*module|load_module", re.I)
"""Calls that hand back compiled code: what they run cannot be read from the text."""
TEST = "Let the kernel under test return zeros: the test must fail."


@dataclass
class Reach:
    """What a function reaches through the calls of its tree, found once a definition."""

    code: Code
    _uses: dict[str, dict[str, list[Use]]] = field(default_factory=dict)
    _closures: dict[Definition, tuple[frozenset[Definition], frozenset[Definition]]] = field(default_factory=dict)

    def from_file(self, path: str) -> dict[str, list[Use]]:
        """Calls and reads of a file by the function that holds them."""
        if path not in self._uses:
            found: dict[str, list[Use]] = {}
            for use in uses(self.code, path):
                found.setdefault(use.symbol, []).append(use)
            self._uses[path] = found
        return self._uses[path]

    def closure(self, start: Definition) -> tuple[frozenset[Definition], frozenset[Definition]]:
        """Every definition that a function reaches, itself included; and those that are launched on the way."""
        if start not in self._closures:
            seen: set[Definition] = set()
            launched: set[Definition] = set()
            todo = [start]
            while todo:
                at = todo.pop()
                if at in seen or not at.name:
                    continue
                seen.add(at)
                inside = self._inside(at)
                launched |= {u.target for u in inside if u.launch}
                launched |= {Definition("torch.ops", name) for name in self._extern(at)}
                todo += [u.target for u in inside]
            self._closures[start] = (frozenset(seen), frozenset(launched))
        return self._closures[start]

    def artifacts(self, start: Definition) -> frozenset[Definition]:
        """The compiled things among what a function reaches: launched kernels, torch ops, callers of opaque loaders."""
        seen, launched = self.closure(start)
        return launched | {d for d in seen if self._loads(d)}

    def _inside(self, at: Definition) -> list[Use]:
        if at.path not in self.code.tree.files:
            return []
        by_symbol = self.from_file(at.path)
        below = [s for s in by_symbol if s == at.name or s.startswith(f"{at.name}.")]
        return [u for s in below for u in by_symbol[s]]

    def _node(self, at: Definition) -> ast.AST | None:
        file = self.code.file(at.path)
        unit = file.units.get(at.name) if file is not None else None
        return unit.nodes[0] if unit is not None else None

    def _extern(self, at: Definition) -> Iterator[str]:
        node = self._node(at)
        for call in ast.walk(node) if node is not None else ():
            chain = chain_of(call.func) if isinstance(call, ast.Call) else None
            if chain is not None and chain[:2] == ["torch", "ops"]:
                yield ".".join(chain[2:])

    def _loads(self, at: Definition) -> bool:
        """Whether a function runs compiled code that its text does not show."""
        node = self._node(at)
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)] if isinstance(node, FUNCTIONS) else []
        return any(OPAQUE.search(ast.unparse(c.func)) for c in calls)


def is_test(path: str) -> bool:
    """Whether a path is a test module by its name."""
    name = PurePosixPath(path).name
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def self_comparison_findings(code: Code) -> Iterator[Finding]:
    """The void tests of a tree: an oracle that reaches a kernel that the same test judges."""
    reach = Reach(code)
    for path in code.paths:
        file = code.file(path) if is_test(path) else None
        if file is not None and any(ORACLE.search(w) for w in re.findall(r"\w+", "\n".join(file.lines))):
            for name in [u.name for u in file.functions() if u.name.split(".")[-1].startswith("test")]:
                yield from _void(reach, path, file, name)


def _void(reach: Reach, path: str, file: PythonFile, name: str) -> Iterator[Finding]:
    calls = [u for u in reach.from_file(path).get(name, []) if u.call is not None and u.target.name]
    kept = _assigned_names(file, name)
    oracles = {u.target: u for u in calls if _is_oracle(u, kept)}
    by_name = {u.target for u in calls if ORACLE.search(u.target.name.split(".")[-1])}
    subjects = {u.target: u for u in calls if u.target not in by_name and not (_is_oracle(u, kept) and _once(calls, u))}
    for oracle, use in sorted(oracles.items()):
        judged = {a for s in subjects for a in reach.artifacts(s)}
        shared = sorted(judged & reach.artifacts(oracle))
        if shared:
            kernel = shared[0]
            words = f"the oracle {oracle.name} reaches {kernel.name} ({kernel.path}), the kernel under test: the test is void"
            yield Finding(
                rule="AUD-12",
                category="self-comparison",
                file=path,
                symbol=name,
                severity="silent-wrong",
                lost=words,
                test=TEST,
                evidence=tuple(_places(reach.code, path, file, use, (oracle, kernel))),
            )


def _once(calls: list[Use], use: Use) -> bool:
    return sum(u.target == use.target for u in calls) == 1


def _is_oracle(use: Use, kept: dict[int, str]) -> bool:
    return bool(ORACLE.search(use.target.name.split(".")[-1]) or ORACLE.search(kept.get(use.line, "")))


def _assigned_names(file: PythonFile, name: str) -> dict[int, str]:
    """Line to the name that the line's call is assigned to."""
    function = file.units[name].function
    found = {}
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.value.lineno] = node.targets[0].id
    return found


def _places(code: Code, path: str, file: PythonFile, use: Use, names: tuple[Definition, ...]) -> Iterator[Evidence]:
    yield Evidence(tree=code.tree.role, path=path, line=use.line, text=file.line_text(use.line))
    for at in names:
        other = code.file(at.path)
        if other is not None and at.name in other.units:
            line = other.units[at.name].line
            yield Evidence(tree=code.tree.role, path=at.path, line=line, text=other.line_text(line))
