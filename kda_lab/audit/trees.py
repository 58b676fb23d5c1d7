"""The audit of two trees: what an export lost against the branch it serves, each file parsed once, no GPU needed."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kda_lab.audit import classes
from kda_lab.audit.allow import apply, read_allow_list
from kda_lab.audit.callers import Served, binding_findings, caller_findings, own_binding_findings
from kda_lab.audit.comparison import Pair, Version
from kda_lab.audit.cuda_checks import cuda_findings
from kda_lab.audit.finding import Audit, Evidence, FileClass, FileState, Finding, in_order
from kda_lab.audit.guards import guard_findings
from kda_lab.audit.importers import file_user_findings, importer_findings
from kda_lab.audit.launches import file_findings, launch_findings
from kda_lab.audit.module_level import cuda_module_findings, module_findings
from kda_lab.audit.moves import MOST_PAIRS, Block, move_findings, moves, retyped_in_place
from kda_lab.audit.names import Definition
from kda_lab.audit.parsing import DEEPEST, PythonFile, Unparsable
from kda_lab.audit.reading import CUDA_SUFFIXES, PYTHON_SUFFIXES, Tree, in_scope, read_tree, repository_of
from kda_lab.audit.residue import cuda_differs, python_differs
from kda_lab.audit.self_comparison import self_comparison_findings
from kda_lab.audit.sides import Sides
from kda_lab.audit.superset import superset_candidates, superset_finding
from kda_lab.audit.symbols import class_findings, signature_findings, symbol_findings
from kda_lab.errors import AuditError, Reason

CODE_RULES = ("AUD-2", "AUD-3", "AUD-5", "AUD-6")
"""Rules whose findings name a part of a block that changed; the others say nothing about what it does."""


def audit_trees(
    source: str | Path,
    export: str | Path,
    base: str | Path | None = None,
    scope: Sequence[str] = (),
    allow: str | Path | None = None,
    semantic: bool = False,
) -> Audit:
    """Audit an export against the branch that it serves.

    Args:
        source: tree of the served branch: a folder, `REPO@REV`, or a revision of the current repository.
        export: tree of the export, named likewise.
        base: their merge-base; with it only files that one of the trees changed are classed.
        scope: folders or globs that the export covers; empty: the whole trees. Callers are searched everywhere.
        allow: YAML allow-list, one reason an entry.
        semantic: cosmetic findings (comments, formatting, docstrings, names of locals) do not fail the audit.

    Raises:
        AuditError: a tree, a revision or the allow-list is not usable, a file cannot be parsed in either tree though
            they differ, or the scope names nothing. Nothing is written.
    """
    entries = read_allow_list(allow) if allow is not None else ()
    place = repository_of(source)
    trees = [read_tree(source, "source"), read_tree(export, "export", place)]
    before = read_tree(base, "base", place) if base is not None else None
    comparison = Comparison(trees[0], trees[1], before, tuple(scope))
    with _deep_recursion():
        found, stale = apply(entries, in_order(comparison.findings()))
    return Audit(
        source=str(source),
        export=str(export),
        base=str(base) if base is not None else "",
        scope=tuple(scope),
        semantic=semantic,
        files=tuple(comparison.states()),
        findings=tuple(found),
        stale=stale,
        notes=tuple(comparison.notes()),
    )


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Room for the nesting that `parsing.DEEPEST` lets through; the limit of the process comes back."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 20 * DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@dataclass
class Comparison:
    """Both trees, parsed on demand, and the checks in their order."""

    source: Tree
    export: Tree
    base: Tree | None
    scope: tuple[str, ...]
    classes: dict[str, FileClass] = field(init=False)

    def __post_init__(self) -> None:
        self.classes = classes.classify(self.source, self.export, self.base, self.scope)
        if not self.classes and not any(in_scope(p, self.scope) for p in (*self.source.files, *self.export.files)):
            raise AuditError("audit", [Reason("scope", repr(list(self.scope)), "a folder or glob that names a file")])
        self.sides = Sides(self.source, self.export)
        self._unjudged: list[str] = []
        self.told: dict[tuple[str, str], list[Finding]] = defaultdict(list)
        self.served = Served(self.sides.code["source"], self.sides.code["export"], self.scope)

    def findings(self) -> Iterator[Finding]:
        """Every finding, in no fixed order."""
        for finding in self._all():
            self.told[finding.file, finding.symbol].append(finding)
            yield finding
        yield from self._unexplained()

    def _all(self) -> Iterator[Finding]:
        yield from classes.class_findings(self.states(), self.base, self.sides.changed_symbols)
        for path in self._paths(CUDA_SUFFIXES):
            ours, theirs = self.sides.cuda_pair(path)
            if ours is not None and theirs is not None:
                yield from cuda_findings(path, ours, theirs)
                yield from cuda_module_findings(path, ours, theirs)
        for path in self._paths(PYTHON_SUFFIXES):
            source, export = self.sides.python_pair(path)
            if source is not None and export is not None and source.fingerprint != export.fingerprint:
                yield from self._python(path, source, export)
        yield from self._parse_failures()
        lost, new = list(self._lost_blocks()), list(self._new_blocks())
        if len(lost) * len(new) > MOST_PAIRS:
            self._unjudged.append(
                f"AUD-11 compared {len(lost)} lost with {len(new)} new blocks by content and name alone, not by likeness"
            )
        yield from move_findings(moves(lost, new))
        yield from caller_findings(self.served, self._gone())
        yield from importer_findings(self.served, self._lost_imports())
        yield from file_user_findings(self.served, self._paths(CUDA_SUFFIXES, ("missing",)))
        yield from binding_findings(self.served, self._changed_definitions())
        yield from own_binding_findings(self.served, self._paths(PYTHON_SUFFIXES, ("differs", "extra")))
        yield from self._supersets()
        yield from self_comparison_findings(self.sides.code["export"])

    def states(self) -> list[FileState]:
        """The class of every file, with hashes."""
        return classes.states(
            self.classes, [t for t in (self.source, self.export, self.base) if t], self.sides.is_cosmetic
        )

    def notes(self) -> Iterator[str]:
        """What was not judged."""
        yield from (note for t in (self.source, self.export, self.base) if t is not None for note in t.notes)
        if self.base is None:
            yield "AUD-1 equals-merge-base and AUD-8 were not judged: no base was given"
        yield "AUD-9, AUD-10 and AUD-13 need a build or a GPU: this audit read the sources alone"
        yield from self._unjudged
        for path, state in self.classes.items():
            parsed = self.sides.code["source"].parsed(path) if path.endswith(PYTHON_SUFFIXES) else None
            if state == "identical" and isinstance(parsed, Unparsable):
                yield f"{path}:{parsed.line} is the same in both trees and was not read: {parsed.reason}"

    def _paths(self, suffixes: tuple[str, ...], wanted: Sequence[str] = ("differs", "equals-merge-base")) -> list[str]:
        return [p for p, state in self.classes.items() if state in wanted and p.endswith(suffixes)]

    def _python(self, path: str, source: PythonFile, export: PythonFile) -> Iterator[Finding]:
        missing = set()
        for finding in symbol_findings(path, source, export):
            owner = finding.symbol.partition(".")[0]
            missing |= {finding.symbol} if finding.category == "missing symbol" else set()
            if owner == finding.symbol or owner not in missing:
                yield finding
        yield from class_findings(path, source, export)
        yield from file_findings(path, source, export)
        yield from module_findings(path, source, export)
        for unit in source.functions():
            found = self._in_export(path, unit.name)
            if found is None:
                continue
            file, place = found
            other = file.units[unit.name]
            yield from signature_findings(path, unit.name, source, (other, file, place))
            if other.function is not None and other.fingerprint != unit.fingerprint:
                pair = Pair(Version("source", path, source, unit), Version("export", place, file, other))
                yield from launch_findings(pair)
                yield from guard_findings(pair, self._known)

    def _in_export(self, path: str, name: str) -> tuple[PythonFile, str] | None:
        """File and path of the export that hold a name of a file, followed through a re-export."""
        for found in self.sides.code["export"].expand(path, name.split(".")):
            file = self.sides.code["export"].file(found.path)
            if file is not None and found.name == name:
                return file, found.path
        return None

    def _known(self, path: str, chain: list[str]) -> bool:
        return any(d.name for code in self.sides.code.values() for d in code.expand(path, chain))

    def _parse_failures(self) -> Iterator[Finding]:
        for path in self._paths(PYTHON_SUFFIXES + CUDA_SUFFIXES, ("differs", "equals-merge-base", "extra")):
            sides = {t.role: self.sides.why_not(t, path) for t in (self.source, self.export)}
            ours, theirs = sides["source"], sides["export"]
            if ours is not None and theirs is not None:
                raise AuditError("audit", f"{path} cannot be read in either tree: source:{ours.line} {ours.reason}.")
            for role, why in sides.items():
                if why is not None:
                    yield _unreadable(path, role, why)

    def _lost_blocks(self) -> Iterator[Block]:
        for path in self._paths(PYTHON_SUFFIXES + CUDA_SUFFIXES, ("differs", "equals-merge-base", "missing")):
            theirs = self.sides.blocks(self.export, path)
            if self.sides.why_not(self.export, path) is None:
                yield from (b for n, b in self.sides.blocks(self.source, path).items() if n not in theirs)

    def _new_blocks(self) -> Iterator[Block]:
        for path in self._paths(PYTHON_SUFFIXES + CUDA_SUFFIXES, ("differs", "equals-merge-base", "extra")):
            ours = self.sides.blocks(self.source, path)
            yield from (b for n, b in self.sides.blocks(self.export, path).items() if n not in ours)

    def _gone(self) -> set[Definition]:
        """Modules and module-level names of the source that the export lost, re-exports followed."""
        gone = {Definition(p) for p in self._paths(PYTHON_SUFFIXES, ("missing",))}
        for path in self._paths(PYTHON_SUFFIXES):
            source, export = self.sides.python_pair(path)
            if source is not None and export is not None:
                lost = [n for n, u in source.units.items() if u.kind != "import" and "." not in n]
                gone |= {Definition(path, n) for n in lost if n not in export.units and self._absent(path, n)}
        return gone

    def _lost_imports(self) -> dict[str, set[str]]:
        """Names that a module of the source imports, and the export's no longer has in any form."""
        found: dict[str, set[str]] = {}
        for path in self._paths(PYTHON_SUFFIXES):
            source, export = self.sides.python_pair(path)
            if source is not None and export is not None:
                bound = {n for n, u in source.units.items() if u.kind == "import" and n not in export.units}
                found[path] = {n for n in bound if self._absent(path, n)}
        return {path: names for path, names in found.items() if names}

    def _absent(self, path: str, name: str) -> bool:
        return next(iter(self.sides.code["export"].expand(path, [name])), None) is None

    def _changed_definitions(self) -> set[Definition]:
        """Functions, methods and classes of the source whose export differs."""
        changed = set()
        for path in self._paths(PYTHON_SUFFIXES):
            source, export = self.sides.python_pair(path)
            if source is None or export is None or source.fingerprint == export.fingerprint:
                continue
            for name, unit in source.units.items():
                other = export.units.get(name)
                if unit.kind in ("function", "method", "class") and (
                    other is None or other.fingerprint != unit.fingerprint or unit.kind == "class"
                ):
                    changed.add(Definition(path, name))
        return changed

    def _supersets(self) -> Iterator[Finding]:
        if self.base is None:
            return
        for path in superset_candidates(self.source, self.export, self.base, self.scope):
            pair = self.sides.python_pair(path) if path.endswith(PYTHON_SUFFIXES) else self.sides.cuda_pair(path)
            if path.endswith(classes.CODE_SUFFIXES) and pair[0] is not None and pair[1] is not None:
                finding = superset_finding(path, pair[0], pair[1])
                yield from [finding] if finding is not None else []

    def _unexplained(self) -> Iterator[Finding]:
        """Blocks that changed where they stand, in more than other findings about them name (AUD-11)."""
        for path in self._paths(PYTHON_SUFFIXES + CUDA_SUFFIXES):
            ours, theirs = self.sides.blocks(self.source, path), self.sides.blocks(self.export, path)
            for name in (n for n, b in ours.items() if n in theirs and theirs[n].hash != b.hash):
                told = [f for f in self.told.get((path, name), ()) if f.rule in CODE_RULES]
                # A class whose methods changed is told by its methods.
                below = [
                    n for n in ours if n.startswith(f"{name}.") and ours[n].hash != getattr(theirs.get(n), "hash", "")
                ]
                below_told = [f for n in below for f in self.told.get((path, n), ())]
                if self._differs(path, name, told or below_told, bool(below)):
                    yield retyped_in_place(ours[name], theirs[name], bool(told))

    def _differs(self, path: str, name: str, told: Sequence[Finding], by_methods: bool) -> bool:
        """Whether a block differs in more than the findings about it name."""
        source, export = self.sides.python_pair(path) if path.endswith(PYTHON_SUFFIXES) else (None, None)
        if source is not None and export is not None:
            ours, theirs = source.units[name], export.units[name]
            if ours.kind == "class" and not told and not by_methods:
                return True
            return python_differs(ours, theirs, told)
        cuda = self.sides.cuda_pair(path)
        return cuda[0] is None or cuda[1] is None or cuda_differs(cuda[0].blocks[name], cuda[1].blocks[name], told)


def _unreadable(path: str, role: str, why: Unparsable) -> Finding:
    return Finding(
        rule="AUD-1",
        category="unreadable",
        file=path,
        severity="crash",
        lost=f"the {role} version cannot be read, at line {why.line}: {why.reason}",
        test="Compile the file.",
        evidence=(Evidence(tree=role, path=path, line=why.line),),
    )
