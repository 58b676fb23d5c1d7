"""Normal forms of Python syntax: equal for code that differs in comments, formatting, docstrings or names of locals."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SKIPPED = {"ctx", "type_comment", "type_ignores", "kind"}
ELLIPSIS_DEPTH = 3


def digest(text: str) -> str:
    """Short hash of a normal form."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]


def fingerprint(node: ast.AST | Sequence[ast.AST]) -> str:
    """Hash of the normal form of a node or of statements in order."""
    nodes = [node] if isinstance(node, ast.AST) else node
    return digest("".join(normal_form(n) for n in nodes))


def normal_form(node: ast.AST) -> str:
    """The node as text: no positions, no docstrings, each function's locals numbered in order of appearance."""
    out: list[str] = []
    _dump(node, {}, out)
    return "".join(out)


def parameters_of(function: Function) -> list[ast.arg]:
    """Every parameter of a function, `*args` and `**kwargs` included."""
    a = function.args
    extra = [p for p in (a.vararg, a.kwarg) if p is not None]
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *extra]


def locals_of(function: Function) -> set[str]:
    """Names that a function binds itself, nested scopes included; its parameters and globals are not among them."""
    bound: set[str] = set()
    outer: set[str] = set()
    for node in (n for statement in function.body for n in ast.walk(statement)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            outer |= set(node.names)
    return bound - outer - {p.arg for p in parameters_of(function)}


def without_docstring(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements of a body, bare string constants left out."""
    return [s for s in body if not (isinstance(s, ast.Expr) and _is_text(s.value))] or [ast.Pass()]


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _dump(node: object, names: dict[str, str], out: list[str]) -> None:
    """Append the normal form of a syntax node, a list of them, or a plain value; one stack frame a level of nesting."""
    if isinstance(node, list):
        out.append("[")
        for item in node:
            _dump(item, names, out)
            out.append(",")
        out.append("]")
        return
    if isinstance(node, ast.Name):
        out.append(names.get(node.id, node.id))
        return
    if not isinstance(node, ast.AST):
        out.append(repr(node))
        return
    names = names or (_Numbering(locals_of(node)) if isinstance(node, FUNCTIONS) else names)
    out.append(type(node).__name__ + "(")
    for name, value in ast.iter_fields(node):
        if name not in SKIPPED:
            _dump(_field(node, name, value, names), names, out)
            out.append(";")
    out.append(")")


def _field(node: ast.AST, name: str, value: object, names: dict[str, str]) -> object:
    """The value of a field as it is compared: bodies without docstrings, bound names numbered."""
    if name in ("body", "orelse", "finalbody") and isinstance(value, list) and value:
        return _sorted_imports(without_docstring(value))
    if isinstance(node, ast.Call) and name == "keywords" and all(k.arg and _is_plain(k.value) for k in node.keywords):
        # Names and constants are evaluated without effect: their order in a call is a matter of taste.
        return sorted(node.keywords, key=lambda k: k.arg or "")
    if isinstance(node, ast.alias) and name == "asname":
        bound = str(value or node.name.split(".")[0])
        return names.get(bound, bound)
    if isinstance(value, str) and name in ("name", "arg") and not isinstance(node, (ast.keyword, ast.alias)):
        return names.get(value, value)
    return value


def _is_plain(value: ast.expr) -> bool:
    return isinstance(value, (ast.Constant, ast.Name))


class _Numbering(dict[str, str]):
    """Locals to numbers, given in order of first use."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names
        # Marks the dictionary as in use, so that nested functions share it.
        self[""] = ""

    def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
        if name not in self.names:
            return default
        return self.setdefault(name, f"${len(self)}")


def _sorted_imports(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Neighbouring imports in one order, one name each: sorting them changes only text, unless one shadows another."""
    done: list[ast.stmt] = []
    run: list[ast.Import | ast.ImportFrom] = []
    for statement in [*body, None]:
        if isinstance(statement, ast.Import):
            run += [ast.Import(names=[a]) for a in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            run += [ast.ImportFrom(module=statement.module, names=[a], level=statement.level) for a in statement.names]
        else:
            done += run if _shadowing(run) else sorted(run, key=ast.dump)
            run = []
            if statement is not None:
                done.append(statement)
    return done


def _shadowing(run: Sequence[ast.Import | ast.ImportFrom]) -> bool:
    """Whether the order of imports of one name each decides what a name is bound to."""
    bound: dict[str, set[str]] = {}
    for statement in run:
        alias = statement.names[0]
        # `import a.b` and `import a.c` bind the same `a`.
        plain = isinstance(statement, ast.Import) and alias.asname is None
        name = alias.name.split(".")[0] if plain else alias.asname or alias.name
        bound.setdefault(name, set()).add(f"import {name}" if plain else ast.dump(statement))
    return ("*" in bound and len(run) > 1) or any(len(origins) > 1 for origins in bound.values())


class Expressions:
    """Normal forms of single expressions of one function, comparable between two versions of it.

    A local is replaced by what it is assigned, up to three levels deep; a local without one plain
    assignment is `_`. Parameters and globals keep their names.
    """

    def __init__(self, function: Function | None) -> None:
        self.locals = locals_of(function) if function is not None else set()
        self.values: dict[str, list[ast.expr]] = {}
        self._keys: dict[tuple[int, int], tuple[ast.AST, str]] = {}
        for node in ast.walk(function) if function is not None else ():
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.values.setdefault(node.targets[0].id, []).append(node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.values.setdefault(node.target.id, []).append(node.value)

    def key(self, node: ast.AST | None, depth: int = ELLIPSIS_DEPTH) -> str:
        """The normal form; locals are opened `depth` levels."""
        if node is None:
            return ""
        # The node is kept beside its form, so that its `id` stays its own.
        known = self._keys.get((id(node), depth))
        if known is None:
            out: list[str] = []
            _dump(node, _Opened(self, depth), out)
            known = self._keys[id(node), depth] = (node, "".join(out))
        return known[1]

    def conjuncts(self, node: ast.expr, depth: int = ELLIPSIS_DEPTH) -> list[ast.expr]:
        """The parts of `a & b`, `a and b`, also behind locals that name such a conjunction."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            return self.conjuncts(node.left, depth) + self.conjuncts(node.right, depth)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            return [part for value in node.values for part in self.conjuncts(value, depth)]
        if isinstance(node, ast.Name) and depth and node.id in self.locals and self.values.get(node.id):
            return [part for value in self.values[node.id] for part in self.conjuncts(value, depth - 1)]
        return [node]


class _Opened(dict[str, str]):
    """Locals to the normal forms of what they are assigned."""

    def __init__(self, expressions: Expressions, depth: int) -> None:
        super().__init__({"": ""})
        self.expressions = expressions
        self.depth = depth

    def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
        if name not in self.expressions.locals:
            return default
        values = self.expressions.values.get(name, [])
        if not values or self.depth <= 0:
            return "_"
        if name not in self:
            self[name] = "_"
            self[name] = "{" + "|".join(sorted({self.expressions.key(v, self.depth - 1) for v in values})) + "}"
        return self[name]


def one_line(node: ast.AST, width: int = 160) -> str:
    """The node as code on one line, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= width else text[: width - 1] + "…"


Guard = ast.expr | str
"""A condition, or words for one that is no expression: `on ImportError`."""


def guards_inside(
    body: Sequence[ast.stmt], skip: frozenset[int] = frozenset()
) -> Iterator[tuple[ast.AST, tuple[Guard, ...]]]:
    """Every node below some statements, with the conditions that guard it from the outside in.

    Args:
        body: the statements.
        skip: `id` of nodes that are left out with all below them.
    """
    yield from _walk(list(body), (), skip)


def _walk(node: object, guards: tuple[Guard, ...], skip: frozenset[int]) -> Iterator[tuple[ast.AST, tuple[Guard, ...]]]:
    if isinstance(node, list):
        for item in node:
            yield from _walk(item, guards, skip)
        return
    if not isinstance(node, ast.AST) or id(node) in skip:
        return
    yield node, guards
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        otherwise = guards if isinstance(node, ast.While) else (*guards, negated(node.test))
        yield from _walk(node.test, guards, skip)
        yield from _walk(node.body, (*guards, node.test), skip)
        yield from _walk(node.orelse, otherwise, skip)
    elif isinstance(node, ast.ExceptHandler):
        caught = ast.unparse(node.type) if node.type is not None else "any error"
        yield from _walk(node.body, (*guards, f"on {caught}"), skip)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _walk(child, guards, skip)


def negated(test: ast.expr) -> ast.expr:
    """`not test`, a double negation removed."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.copy_location(ast.UnaryOp(op=ast.Not(), operand=test), test)


def guard_words(guards: Sequence[Guard]) -> str:
    """The conditions in words; empty where nothing guards."""
    return " and ".join(g if isinstance(g, str) else one_line(g, 120) for g in guards)
