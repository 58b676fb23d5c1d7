"""AUD-8: a file outside the scope whose source version holds all that the export's holds must not be overlaid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kda_lab.audit.cuda_text import CudaFile
from kda_lab.audit.finding import Evidence, Finding
from kda_lab.audit.parsing import PythonFile
from kda_lab.audit.reading import Tree, in_scope

TEST = "Leave the file out of the composite arm; then start the served branch and look for the names it holds more."


def names_of(file: PythonFile | CudaFile) -> set[str]:
    """The symbols of a file, macros included."""
    return set(file.units) if isinstance(file, PythonFile) else set(file.blocks) | set(file.macros)


def is_superset(source: PythonFile | CudaFile, export: PythonFile | CudaFile) -> bool:
    """Whether the source's version of a file has every symbol of the export's: then it must not be overlaid."""
    return names_of(source) >= names_of(export)


def superset_candidates(source: Tree, export: Tree, base: Tree, scope: Sequence[str]) -> Iterator[str]:
    """Files outside the scope that the export changed against the base and that the source has otherwise."""
    for path, theirs in export.files.items():
        ours = source.files.get(path)
        if not in_scope(path, scope) and ours is not None and ours != theirs != base.files.get(path):
            yield path


def superset_finding(path: str, source: PythonFile | CudaFile, export: PythonFile | CudaFile) -> Finding | None:
    """The finding that forbids to overlay one file; None where the export holds a symbol that the source lacks."""
    if not is_superset(source, export):
        return None
    more = sorted(names_of(source) - names_of(export))
    words = f"the source's version also holds {', '.join(more[:8])}" if more else "both versions hold the same symbols"
    return Finding(
        rule="AUD-8",
        category="must not be overlaid",
        file=path,
        severity="silent-wrong",
        lost=f"the file is outside the scope and the export changes it, but {words}; overlaying it would lose that",
        test=TEST,
        evidence=(Evidence(tree="source", path=path), Evidence(tree="export", path=path)),
    )
