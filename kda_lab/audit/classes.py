"""AUD-1: the class of every file under scope, by its bytes: identical, differs, missing, extra, equals the merge-base."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kda_lab.audit.finding import Evidence, FileClass, FileState, Finding, Severity
from kda_lab.audit.reading import CUDA_SUFFIXES, PYTHON_SUFFIXES, Tree, in_scope

PROSE_SUFFIXES = (".md", ".rst", ".txt")
CODE_SUFFIXES = PYTHON_SUFFIXES + CUDA_SUFFIXES
TESTS: dict[FileClass, str] = {
    "differs": "Read the findings of the file; then compare the outputs of both versions bit by bit.",
    "missing": "Import or include the file in the export.",
    "extra": "Ask the source branch who would use it.",
    "equals-merge-base": "Diff the file against the source branch, not against the main branch.",
}


def classify(source: Tree, export: Tree, base: Tree | None, scope: Sequence[str]) -> dict[str, FileClass]:
    """The class of every file under scope, sorted by path.

    With a base, the files that neither tree changed are left out: nobody exports them.
    """
    found: dict[str, FileClass] = {}
    for path in sorted(set(source.files) | set(export.files)):
        ours, theirs = source.files.get(path), export.files.get(path)
        before = base.files.get(path) if base is not None else None
        if not in_scope(path, scope) or (base is not None and ours == theirs == before):
            continue
        if ours == theirs:
            found[path] = "identical"
        elif theirs is None:
            found[path] = "missing"
        elif ours is None:
            found[path] = "extra"
        else:
            found[path] = "equals-merge-base" if base is not None and theirs == before else "differs"
    return found


def states(classes: dict[str, FileClass], trees: Sequence[Tree], cosmetic: Callable[[str], bool]) -> list[FileState]:
    """The classes with the hashes of each tree; `cosmetic` tells whether a difference is one of bytes alone."""
    return [
        FileState(
            path=path,
            state=state,
            cosmetic=state in ("differs", "equals-merge-base") and cosmetic(path),
            sha256={t.role: sha for t in trees if (sha := t.sha256(path))},
        )
        for path, state in classes.items()
    ]


def class_findings(found: Sequence[FileState], base: Tree | None, changes: Callable[[str], str]) -> Iterator[Finding]:
    """One finding a file that is not identical.

    Args:
        found: the files' states.
        base: the merge-base, where it was given.
        changes: names the changed symbols of a file, in words.
    """
    for file in found:
        if file.state == "identical":
            continue
        roles = [r for r in ("source", "export") if r in file.sha256]
        yield Finding(
            rule="AUD-1",
            category=file.state,
            file=file.path,
            severity=_severity(file),
            lost=_words(file, base, changes),
            test=TESTS[file.state],
            evidence=tuple(Evidence(tree=r, path=file.path, text=f"sha256 {file.sha256[r]}") for r in roles),
        )


def _severity(file: FileState) -> Severity:
    if file.cosmetic or file.state == "extra" or file.path.endswith(PROSE_SUFFIXES):
        return "cosmetic"
    return "crash" if file.state == "missing" and file.path.endswith(CODE_SUFFIXES) else "silent-wrong"


def _words(file: FileState, base: Tree | None, changes: Callable[[str], str]) -> str:
    if file.state == "missing":
        return "the file is not in the export"
    if file.state == "extra":
        was = base is not None and file.path in base.files
        return "the source branch deleted the file" if was else "the file is not in the source branch"
    if file.cosmetic:
        return "the bytes differ; the code does not"
    detail = changes(file.path)
    tail = f": {detail}" if detail else ""
    if file.state == "equals-merge-base":
        return f"the source branch's change was not exported at all: the file equals the merge-base{tail}"
    return f"the file differs{tail}"
