"""AUD-11: what is left of a changed block once the parts that other findings name are taken out of both versions."""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from kda_lab.audit.cuda_text import Block
from kda_lab.audit.finding import Finding
from kda_lab.audit.normal import FUNCTIONS, Function, locals_of, normal_form, parameters_of, without_docstring
from kda_lab.audit.parsing import Unit

OPTION = re.compile(r"^(\w+)=")


def python_differs(ours: Unit, theirs: Unit, told: Sequence[Finding]) -> bool:
    """Whether two versions of a function or class differ in more than the findings about it say.

    Args:
        ours: the source's unit, with one definition.
        theirs: the export's.
        told: the findings of other rules about this symbol.
    """
    if not told:
        return ours.fingerprint != theirs.fingerprint
    if ours.class_node is not None and theirs.class_node is not None:
        return _class_differs(ours.class_node, theirs.class_node)
    if ours.function is None or theirs.function is None:
        return True
    sides = [copy.deepcopy(ours.function), copy.deepcopy(theirs.function)]
    options = {m.group(1) for f in told if f.rule == "AUD-5" and (m := OPTION.match(f.lost))}
    decorators = {f.lost[1:].split("(")[0].split(" ")[0] for f in told if f.category == "changed decorator"}
    for side in sides:
        _without_options(side, options)
        side.decorator_list = [d for d in side.decorator_list if _name(d) not in decorators]
    _without_lost_guards(sides[0], sides[1], limit=sum(f.category == "lost guard" for f in told))
    # Names, kinds and defaults of parameters are compared by AUD-3 one by one; what they are annotated with is not.
    signature_told = any(f.rule == "AUD-3" for f in told)
    forms = [_form(side, signature_told) for side in sides]
    return forms[0] != forms[1]


def cuda_differs(ours: Block, theirs: Block, told: Sequence[Finding]) -> bool:
    """The same for a CUDA block: the body counts always, the header where no finding names its change."""
    if ours.body_fingerprint != theirs.body_fingerprint or not told:
        return ours.fingerprint != theirs.fingerprint
    categories = {f.category for f in told}
    return _header(ours, categories) != _header(theirs, categories)


def _header(block: Block, categories: set[str]) -> list[str]:
    texts = " ".join(t.text for t in block.header)
    if "changed launch bounds" in categories:
        texts = re.sub(r"__launch_bounds__ \([^()]*(?:\([^()]*\)[^()]*)*\)", "", texts)
    return texts.split(f" {block.name} (")[:1] if "changed parameters" in categories else texts.split()


def _class_differs(ours: ast.ClassDef, theirs: ast.ClassDef) -> bool:
    """By what AUD-3 does not compare: decorators, keywords, the order of attributes, other statements, new methods."""
    sides = []
    shared = {n for n, _ in _members(ours)} & {n for n, _ in _members(theirs)}
    for node in (ours, theirs):
        forms = [normal_form(n) for n in (*node.keywords, *node.decorator_list)]
        sides.append([*forms, *(n or normal_form(s) for n, s in _members(node) if n in shared or not n)])
    methods = [{s.name for s in node.body if isinstance(s, FUNCTIONS)} for node in (ours, theirs)]
    return sides[0] != sides[1] or not methods[1] <= methods[0]


def _members(node: ast.ClassDef) -> Iterator[tuple[str, ast.stmt]]:
    """Attributes by name and, without one, statements that are neither attribute, method nor docstring."""
    for statement in without_docstring(node.body):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Name):
            yield target.id, statement
        elif not isinstance(statement, (*FUNCTIONS, ast.Pass)):
            yield "", statement


def _name(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _without_options(function: Function, options: set[str]) -> None:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            node.keywords = [k for k in node.keywords if k.arg not in options]
        elif isinstance(node, ast.Dict):
            pairs = list(zip(node.keys, node.values, strict=True))
            kept = [p for p in pairs if not (isinstance(p[0], ast.Constant) and p[0].value in options)]
            node.keys, node.values = [k for k, _ in kept], [v for _, v in kept]


def _without_lost_guards(ours: Function, theirs: Function, limit: int) -> None:
    """Take out the guards that one version alone has, on each side at most as many as findings name."""
    forms = [Counter(_guard_form(s, f) for s in _guards(f)) for f in (ours, theirs)]
    for function, other in ((ours, forms[1]), (theirs, forms[0])):
        left, gone = Counter(other), set[int]()
        for statement in _guards(function):
            form = _guard_form(statement, function)
            if left[form] > 0:
                left[form] -= 1
            elif len(gone) < limit:
                gone.add(id(statement))
        for node in ast.walk(function):
            for field in ("body", "orelse", "finalbody"):
                body = getattr(node, field, None)
                if isinstance(body, list):
                    setattr(node, field, [s for s in body if id(s) not in gone])


def _guards(function: Function) -> list[ast.stmt]:
    """Assertions, and conditions that do nothing but raise."""
    found: list[ast.stmt] = []
    for node in ast.walk(function):
        raises = isinstance(node, ast.If) and not node.orelse and all(isinstance(s, ast.Raise) for s in node.body)
        if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and raises):
            found.append(node)
    return found


def _guard_form(statement: ast.stmt, function: Function) -> str:
    bound = locals_of(function)
    words = re.split(r"(\w+)", ast.unparse(statement))
    return "".join("_" if w in bound else w for w in words)


def _form(function: Function, signature_told: bool) -> str:
    annotations = [(p.arg, ast.unparse(p.annotation)) for p in parameters_of(function) if p.annotation is not None]
    if not signature_told:
        return normal_form(function)
    names = {p.arg for p in parameters_of(function)}
    function.args = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    # The parameters keep their names: with no argument list they would count as locals of the body.
    kept = [ast.arg(arg=n) for n in sorted(names & _used(function))]
    function.args.args = kept
    return normal_form(function) + repr(sorted(a for a in annotations if a[0] in _used(function)))


def _used(function: Function) -> set[str]:
    return {n.id for s in function.body for n in ast.walk(s) if isinstance(n, ast.Name)}
