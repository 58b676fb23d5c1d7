"""AUD-4 and AUD-7: calls of the served branch bound against the export's signatures, and live callers of what is gone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from kda_lab.audit.finding import Evidence, Finding
from kda_lab.audit.names import Code, Definition
from kda_lab.audit.parsing import Unit
from kda_lab.audit.reading import in_scope
from kda_lab.audit.signatures import Arguments, Signature, bind, dataclass_signature, signature_of
from kda_lab.audit.uses import Mentions, Use, uses

BINDING_TEST = "Bind these arguments to the export's signature, or run one decode step; no kernel needs to compile."
CALLER_TEST = (
    "Import the name under that condition in the export; an import inside a branch fails at request time only."
)


@dataclass
class Served:
    """The served branch with the export laid over its scope."""

    source: Code
    export: Code
    scope: Sequence[str]
    _mentions: dict[tuple[int, str], Mentions] = field(default_factory=dict)
    _uses: dict[tuple[int, str, frozenset[str]], list[Use]] = field(default_factory=dict)

    def uses(self, code: Code, path: str, wanted: set[str]) -> list[Use]:
        """The uses of some names in one file: the file is walked once, the names are resolved once."""
        key = (id(code), path, frozenset(wanted))
        if key not in self._uses:
            if key[:2] not in self._mentions:
                self._mentions[key[:2]] = Mentions(code, path)
            self._uses[key] = list(self._mentions[key[:2]].uses(wanted))
        return self._uses[key]

    def text(self, path: str, line: int) -> str:
        """One line of the source, for evidence."""
        file = self.source.file(path)
        return file.line_text(line) if file is not None else ""

    def mentioning(self, code: Code, wanted: set[str]) -> Iterator[str]:
        """Files that name one of some identifiers at all, in order."""
        for path in code.paths:
            if not wanted.isdisjoint(words_of(code.tree.files[path])):
                yield path


@cache
def words_of(content: bytes) -> frozenset[str]:
    """The identifiers of a file, comments and strings included."""
    return frozenset(w.decode() for w in re.findall(rb"[A-Za-z_][A-Za-z0-9_]*", content))


def signature(unit: Unit | None, owner: Unit | None = None) -> Signature | None:
    """What a call of a unit binds to; None where that cannot be told from the text."""
    if unit is None:
        return None
    if unit.function is not None:
        decorators = {getattr(d, "id", getattr(d, "attr", "")) for d in unit.function.decorator_list}
        if "property" in decorators:
            return None
        return signature_of(unit.function, skip_first=unit.kind == "method" and "staticmethod" not in decorators)
    if unit.class_node is not None:
        if owner is not None and owner.function is not None:
            return signature_of(owner.function, skip_first=True)
        return dataclass_signature(unit.class_node)
    return None


def _lookup(code: Code, target: Definition) -> Signature | None:
    """Signature of a definition in a tree, a name that moved followed through its import."""
    for found in code.expand(target.path, target.name.split(".")):
        file = code.file(found.path)
        if file is not None and found.name in file.units:
            return signature(file.units[found.name], file.units.get(f"{found.name}.__init__"))
    return None


def binding_findings(served: Served, changed: set[Definition]) -> Iterator[Finding]:
    """Calls that bind to the source's signature and not to the export's (AUD-4).

    Args:
        served: both trees.
        changed: definitions of the source whose unit the export changed.
    """
    pairs = {d: (_lookup(served.source, d), _lookup(served.export, d)) for d in changed}
    pairs = {d: (s, e) for d, (s, e) in pairs.items() if s is not None and e is not None and s != e}
    wanted = {d.name.split(".")[-1] for d in pairs}
    for path in served.mentioning(served.source, wanted):
        for use in served.uses(served.source, path, wanted):
            if use.call is not None and use.target in pairs:
                yield from _unbound(served, use, pairs[use.target], wanted)


def _unbound(
    served: Served, use: Use, pair: tuple[Signature | None, Signature | None], wanted: set[str]
) -> Iterator[Finding]:
    ours, theirs = pair
    arguments = use.arguments
    if arguments is None or ours is None or theirs is None or _why(ours, arguments, use):
        return
    why = _why(theirs, arguments, use)
    if not why:
        return
    own = _own_calls(served, use, wanted)
    adapted = bool(own) and all(not _why(theirs, a, u) for u in own if (a := u.arguments) is not None)
    if adapted and use.path == use.target.path:
        return
    crash = not (adapted and in_scope(use.path, served.scope))
    tail = "" if crash else "; the export's own version of the caller no longer passes it"
    guard = f" when `{use.guard}`" if use.guard else ""
    kind = "launch" if use.launch else "call"
    yield Finding(
        rule="AUD-4",
        category="call does not bind",
        file=use.path,
        symbol=use.symbol,
        severity="crash" if crash else "silent-wrong",
        lost=f"the {kind} of {use.target.name} ({use.target.path}) at line {use.line}{guard}: {why}{tail}",
        test=BINDING_TEST,
        evidence=(_evidence(served.source, use.path, use.line), _definition(served.export, use.target)),
    )


def _why(signature: Signature, arguments: Arguments, use: Use) -> str:
    """Why it cannot bind; launch options are free only where `[grid]` makes it a launch."""
    if use.launch and not signature.jitted:
        # A decorator that the audit does not know makes it launchable: options cannot be told from parameters.
        return bind(Signature(signature.parameters, True, True), arguments)
    return bind(signature, arguments)


def _own_calls(served: Served, use: Use, wanted: set[str]) -> list[Use]:
    """Calls of the same target from the same function of the export."""
    if use.path not in served.export.tree.files:
        return []
    found = served.uses(served.export, use.path, wanted)
    targets = set(served.export.expand(use.target.path, use.target.name.split("."))) | {use.target}
    return [u for u in found if u.call is not None and u.symbol == use.symbol and u.target in targets]


def own_binding_findings(served: Served, changed_files: Sequence[str]) -> Iterator[Finding]:
    """Calls in the export's changed files that do not bind to the export's own signatures, and did before (AUD-4)."""
    for path in changed_files:
        for use in uses(served.export, path):
            arguments = use.arguments
            theirs = _lookup(served.export, use.target) if arguments is not None else None
            why = _why(theirs, arguments, use) if theirs is not None and arguments is not None else ""
            if not why or arguments is None or _failed_before(served, use, arguments):
                continue
            yield Finding(
                rule="AUD-4",
                category="call does not bind",
                file=path,
                symbol=use.symbol,
                severity="crash",
                lost=f"the export's own call of {use.target.name} ({use.target.path}) at line {use.line}: {why}",
                test=BINDING_TEST,
                evidence=(_evidence(served.export, path, use.line), _definition(served.export, use.target)),
            )


def _failed_before(served: Served, use: Use, arguments: Arguments) -> bool:
    """Whether the source has the same call, against a signature that refuses it too: then the text is misread."""
    before = _lookup(served.source, use.target)
    if before is None or not _why(before, arguments, use):
        return False
    found = served.uses(served.source, use.path, {use.target.name.split(".")[-1]})
    return any(u.arguments == arguments and u.symbol == use.symbol for u in found)


def caller_findings(served: Served, gone: set[Definition]) -> Iterator[Finding]:
    """Live uses, on the served branch, of modules and symbols that the export does not have (AUD-7).

    Args:
        served: both trees.
        gone: definitions of the source that the export lost; an empty name is a whole module.
    """
    wanted = {d.name.split(".")[-1] if d.name else _module_name(d.path) for d in gone}
    modules = {d.path for d in gone if not d.name}
    found: dict[Definition, list[Use]] = defaultdict(list)
    for path in served.mentioning(served.source, wanted):
        for use in served.uses(served.source, path, wanted):
            target = use.target if use.target in gone else Definition(use.target.path)
            own = use.path == target.path
            if target in gone and not (own and (target.path in modules or not _still_named(served, use))):
                found[target].append(use)
    for target, users in sorted(found.items()):
        yield _caller_finding(served, target, users)


def _module_name(path: str) -> str:
    parts = path.rsplit(".", 1)[0].split("/")
    return parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1]


def _still_named(served: Served, use: Use) -> bool:
    content = served.export.tree.files.get(use.path, b"")
    return use.target.name.split(".")[-1] in words_of(content)


def _caller_finding(served: Served, target: Definition, users: list[Use]) -> Finding:
    places = {(u.path, u.line): u for u in users}
    ordered = [places[k] for k in sorted(places)]
    guarded = next((u for u in ordered if u.guard), None)
    condition = f"; for one when `{guarded.guard}` ({guarded.path}:{guarded.line})" if guarded else ""
    what = target.name or "the module"
    return Finding(
        rule="AUD-7",
        category="live caller of a lost symbol",
        file=target.path,
        symbol=target.name,
        severity="crash",
        lost=f"{what} is gone, and the served branch uses it in {len(ordered)} places{condition}",
        test=CALLER_TEST,
        evidence=tuple(
            _evidence(served.source, u.path, u.line, f"when {u.guard}" if u.guard else "") for u in ordered[:20]
        ),
    )


def _evidence(code: Code, path: str, line: int, text: str = "") -> Evidence:
    file = code.file(path)
    return Evidence(
        tree=code.tree.role, path=path, line=line, text=text or (file.line_text(line) if file is not None else "")
    )


def _definition(code: Code, target: Definition) -> Evidence:
    for found in code.expand(target.path, target.name.split(".")):
        file = code.file(found.path)
        if file is not None and found.name in file.units:
            return _evidence(code, found.path, file.units[found.name].line)
    return Evidence(tree=code.tree.role, path=target.path)
