"""AUD-6: assertions, raises, architecture conditions, masks, branches and calls that a function lost."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from kda_lab.audit.comparison import Item, Pair, Version, lost
from kda_lab.audit.finding import Finding, Severity
from kda_lab.audit.names import chain_of
from kda_lab.audit.normal import Guard, guard_words, guards_inside, one_line

ARCHITECTURE = re.compile(r"capability|arch|\bsm_?\d|is_hip|is_cuda|is_rocm|is_xpu|is_npu|is_blackwell|is_hopper", re.I)
MEMORY = {"load": 1, "store": 2, "atomic_add": 2, "atomic_max": 2, "atomic_min": 2, "atomic_cas": 3, "atomic_xchg": 2}
"""Functions of `tl` that take a mask, and its place among positional arguments."""

Memory = list[tuple[str, ast.expr | None, ast.Call]]
"""Accesses: function, mask, call."""
Known = Callable[[str, list[str]], bool]
"""Whether a dotted name in a file means something that the tree defines."""


def guard_findings(pair: Pair, known: Known) -> Iterator[Finding]:
    """What one function lost of its guards, masks and paths.

    Args:
        pair: the function in both trees.
        known: tells a call of the tree's own code from one of a library; only the former is a path.
    """
    told: set[str] = set()
    for item in lost(_refusals(pair.source), _refusals(pair.export)):
        told |= item.parts
        yield pair.finding("AUD-6", "silent-wrong", item)
    yield from _masks(pair)
    calls = [list(_calls(v, known)) for v in (pair.source, pair.export)]
    for item in _once(lost(*calls)):
        told |= item.parts
        yield pair.finding("AUD-6", "performance", item)
    for item in _once(lost(_branches(pair.source), _branches(pair.export))):
        if item.key not in told:
            severity: Severity = "crash" if item.category == "lost arch condition" else "performance"
            yield pair.finding("AUD-6", severity, item)


def _nodes(version: Version) -> Iterator[tuple[ast.AST, tuple[Guard, ...]]]:
    function = version.unit.function
    yield from guards_inside(function.body if function is not None else [])


def _condition(version: Version, guard: Guard) -> str:
    return guard if isinstance(guard, str) else version.expressions.key(guard)


def _parts(version: Version, guards: tuple[Guard, ...]) -> frozenset[str]:
    """Keys of the conditions, of a negated one also its positive."""
    positive = [g.operand for g in guards if isinstance(g, ast.UnaryOp) and isinstance(g.op, ast.Not)]
    return frozenset(_condition(version, g) for g in (*guards, *positive))


def _refusals(version: Version) -> Iterator[Item]:
    for node, guards in _nodes(version):
        parts = _parts(version, guards)
        if isinstance(node, ast.Assert):
            words = f"the assertion `{one_line(node.test, 100)}` is gone"
            yield Item("lost guard", "assert " + version.expressions.key(node.test), words, node.lineno, parts)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            kind = one_line(node.exc.func if isinstance(node.exc, ast.Call) else node.exc, 60)
            under = guard_words(guards[-1:])
            words = f"`raise {kind}`{f' when `{under}`' if under else ''} is gone"
            key = " ".join(["raise", kind, *(_condition(version, g) for g in guards[-1:])])
            yield Item("lost guard", key, words, node.lineno, parts)


def _masks(pair: Pair) -> Iterator[Finding]:
    ours, theirs = list(_memory(pair.source)), list(_memory(pair.export))
    unmasked = set()
    for name in MEMORY:
        bare = [sum(c == name and mask is None for c, mask, _ in side) for side in (ours, theirs)]
        masked = [sum(c == name and mask is not None for c, mask, _ in side) for side in (ours, theirs)]
        if masked[1] < masked[0] and bare[1] > bare[0]:
            unmasked.add(name)
            line = next(call.lineno for c, mask, call in ours if c == name and mask is not None)
            words = f"{masked[0] - masked[1]} of {masked[0]} masked tl.{name} lost their mask"
            bare_at = next(call.lineno for c, mask, call in theirs if c == name and mask is None)
            evidence = [pair.export.evidence(bare_at)]
            yield pair.finding("AUD-6", "silent-wrong", Item("lost mask", "", words, line), evidence)
    yield from _weaker(pair, ours, theirs, unmasked)


def _weaker(pair: Pair, ours: Memory, theirs: Memory, unmasked: set[str]) -> Iterator[Finding]:
    """Parts of masks that are gone; where whole accesses went, a part that another access keeps is none."""
    before, after = list(_conjuncts(pair.source, ours)), list(_conjuncts(pair.export, theirs))
    kept = {item.key for item in after}
    for item in _once(lost(before, after)):
        name = item.key.split(" ")[0]
        fewer = sum(c == name for c, _, _ in theirs) < sum(c == name for c, _, _ in ours)
        if item.key not in kept or not (fewer or name in unmasked):
            yield pair.finding("AUD-6", "silent-wrong", item)


def _once(items: list[Item]) -> list[Item]:
    """The first item of each key."""
    return list({item.key: item for item in reversed(items)}.values())[::-1]


def _memory(version: Version) -> Iterator[tuple[str, ast.expr | None, ast.Call]]:
    for node, _ in _nodes(version):
        chain = chain_of(node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and chain is not None and len(chain) > 1 and chain[-1] in MEMORY:
            if chain[0] not in ("tl", "triton", "gl", "ttgl"):
                continue
            place = MEMORY[chain[-1]]
            named = next((k.value for k in node.keywords if k.arg == "mask"), None)
            mask = named or (node.args[place] if len(node.args) > place else None)
            hidden = any(k.arg is None for k in node.keywords)
            absent = mask is None or (isinstance(mask, ast.Constant) and mask.value is None)
            yield chain[-1], (ast.Constant(value="?") if hidden else None) if absent else mask, node


def _conjuncts(version: Version, memory: Memory) -> Iterator[Item]:
    for name, mask, call in memory:
        for part in version.expressions.conjuncts(mask) if mask is not None else ():
            words = f"the mask of tl.{name} lost `{one_line(part, 80)}`"
            yield Item("weaker mask", f"{name} {version.expressions.key(part, 0)}", words, call.lineno)


def _calls(version: Version, known: Known) -> Iterator[Item]:
    for node, guards in _nodes(version):
        chain = chain_of(node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and chain is not None and known(version.path, chain):
            parts = _parts(version, guards)
            under = guard_words(guards)
            name = ".".join(chain)
            words = f"the call of {name}{f' when `{under}`' if under else ''} is gone"
            yield Item("lost call", chain[-1], words, node.lineno, parts)


def _branches(version: Version) -> Iterator[Item]:
    for node, _ in _nodes(version):
        if isinstance(node, (ast.If, ast.While)):
            text = one_line(node.test, 100)
            category = "lost arch condition" if ARCHITECTURE.search(text) else "lost branch"
            words = f"the branch under `{text}` is gone"
            yield Item(category, version.expressions.key(node.test), words, node.lineno)
