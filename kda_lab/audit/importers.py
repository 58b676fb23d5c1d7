"""AUD-7 beyond definitions: who imports a name that a module only hands on, and who names a CUDA file that is gone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from kda_lab.audit.callers import CALLER_TEST, Served
from kda_lab.audit.finding import Evidence, Finding
from kda_lab.audit.normal import guard_words, guards_inside
from kda_lab.audit.reading import CUDA_SUFFIXES, PYTHON_SUFFIXES

FILE_TEST = "Compile the file that includes it, or call the function that loads it, in the export."
MOST_PLACES = 20
"""Places that a finding lists as evidence; its words give their number."""


def importer_findings(served: Served, lost: Mapping[str, set[str]]) -> Iterator[Finding]:
    """Imports of names that a module of the source handed on and the export's does not.

    Args:
        served: both trees.
        lost: path of a module to the names that it imported and no longer has.
    """
    places: dict[tuple[str, str], list[Evidence]] = {}
    for path in served.mentioning(served.source, {n for names in lost.values() for n in names}):
        file = served.source.file(path)
        for node, guards in guards_inside(file.module.body) if file is not None else ():
            if not isinstance(node, ast.ImportFrom):
                continue
            origin = served.source.module(served.source.imported(path, node), path)
            for alias in node.names if origin is not None and origin != path else ():
                if origin is not None and alias.name in lost.get(origin, ()):
                    text = f"when {guard_words(guards)}" if guards else ""
                    at = Evidence(
                        tree="source", path=path, line=node.lineno, text=text or served.text(path, node.lineno)
                    )
                    places.setdefault((origin, alias.name), []).append(at)
    for (origin, name), found in sorted(places.items()):
        words = f"{name} can no longer be imported from here, and the served branch does so in {_count(found)}"
        yield _finding(origin, name, words, CALLER_TEST, found)


def file_user_findings(served: Served, missing: Sequence[str]) -> Iterator[Finding]:
    """Files of the source that name a CUDA or C++ file which is not in the export: includes and loaders."""
    for gone in missing:
        name = PurePosixPath(gone).name
        mention = re.compile(rf"[\"'</]{re.escape(name)}[\"'>]")
        found = []
        for path, content in served.source.tree.files.items():
            if path in missing or not path.endswith(PYTHON_SUFFIXES + CUDA_SUFFIXES) or name.encode() not in content:
                continue
            for line, text in enumerate(content.decode(errors="replace").split("\n"), 1):
                if mention.search(text):
                    found.append(Evidence(tree="source", path=path, line=line, text=text.strip()[:160]))
        if found:
            words = f"the file is gone, and the served branch names it in {_count(found)}"
            yield _finding(gone, "", words, FILE_TEST, found)


def _count(found: Sequence[Evidence]) -> str:
    return f"{len(found)} place{'s' if len(found) != 1 else ''}"


def _finding(path: str, symbol: str, words: str, test: str, found: Sequence[Evidence]) -> Finding:
    return Finding(
        rule="AUD-7",
        category="live caller of a lost symbol",
        file=path,
        symbol=symbol,
        severity="crash",
        lost=words,
        test=test,
        evidence=tuple(found[:MOST_PLACES]),
    )
