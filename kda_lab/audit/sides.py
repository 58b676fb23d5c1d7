"""The two trees of an audit file by file: parsed on demand, compared as code, cut into blocks."""

from __future__ import annotations

from kda_lab.audit.cuda_text import CudaFile
from kda_lab.audit.moves import Block, cuda_blocks, python_blocks
from kda_lab.audit.names import Cache, Code
from kda_lab.audit.parsing import PythonFile, Unparsable, decode_text
from kda_lab.audit.reading import CUDA_SUFFIXES, PYTHON_SUFFIXES, Tree


class Sides:
    """Both trees, each distinct content parsed once."""

    def __init__(self, source: Tree, export: Tree) -> None:
        self.source, self.export = source, export
        cache = Cache()
        self.code = {t.role: Code(t, cache) for t in (source, export)}
        self._cuda: dict[bytes, CudaFile | Unparsable] = {}
        self._blocks: dict[tuple[str, str], dict[str, Block]] = {}

    def python_pair(self, path: str) -> tuple[PythonFile | None, PythonFile | None]:
        """Both parsed versions of a Python file; None for one that is absent or cannot be parsed."""
        return self.code["source"].file(path), self.code["export"].file(path)

    def cuda_file(self, tree: Tree, path: str) -> CudaFile | Unparsable | None:
        """A CUDA or C++ file, or why it is none."""
        content = tree.files.get(path)
        if content is None:
            return None
        if content not in self._cuda:
            text = decode_text(content)
            self._cuda[content] = text if isinstance(text, Unparsable) else CudaFile(text)
        return self._cuda[content]

    def cuda_pair(self, path: str) -> tuple[CudaFile | None, CudaFile | None]:
        """Both versions of a CUDA or C++ file; None for one that is absent or unreadable."""
        ours, theirs = self.cuda_file(self.source, path), self.cuda_file(self.export, path)
        return (ours if isinstance(ours, CudaFile) else None, theirs if isinstance(theirs, CudaFile) else None)

    def is_cosmetic(self, path: str) -> bool:
        """Whether both versions of a file are the same code."""
        if path.endswith(PYTHON_SUFFIXES):
            python = self.python_pair(path)
            return None not in python and python[0].fingerprint == python[1].fingerprint  # type: ignore[union-attr]
        cuda = self.cuda_pair(path) if path.endswith(CUDA_SUFFIXES) else (None, None)
        return cuda[0] is not None and cuda[1] is not None and cuda[0].fingerprint == cuda[1].fingerprint

    def blocks(self, tree: Tree, path: str) -> dict[str, Block]:
        """Functions, classes and CUDA blocks of a file by name, found once."""
        key = (tree.role, path)
        if key not in self._blocks:
            self._blocks[key] = self._read_blocks(tree, path)
        return self._blocks[key]

    def _read_blocks(self, tree: Tree, path: str) -> dict[str, Block]:
        if path.endswith(PYTHON_SUFFIXES):
            file = self.code[tree.role].file(path)
            return {b.name: b for b in python_blocks(path, file)} if file is not None else {}
        cuda = self.cuda_file(tree, path) if path.endswith(CUDA_SUFFIXES) else None
        return {b.name: b for b in cuda_blocks(path, cuda)} if isinstance(cuda, CudaFile) else {}

    def changed_symbols(self, path: str) -> str:
        """The blocks that a file lost, gained or changed, in words."""
        ours, theirs = self.blocks(self.source, path), self.blocks(self.export, path)
        if not path.endswith(PYTHON_SUFFIXES + CUDA_SUFFIXES) or any(
            self.why_not(t, path) for t in (self.source, self.export)
        ):
            return ""
        gone = [n for n in ours if n not in theirs]
        new = [n for n in theirs if n not in ours]
        changed = [n for n in ours if n in theirs and ours[n].hash != theirs[n].hash]
        told = (("changed", changed), ("lost", gone), ("new", new))
        return "; ".join(
            f"{word} {', '.join(names[:8])}{' …' if len(names) > 8 else ''}" for word, names in told if names
        )

    def why_not(self, tree: Tree, path: str) -> Unparsable | None:
        """Why a file of a tree cannot be read; None where it can, or is not there."""
        python = path.endswith(PYTHON_SUFFIXES)
        found = self.code[tree.role].parsed(path) if python else self.cuda_file(tree, path)
        return found if isinstance(found, Unparsable) else None
