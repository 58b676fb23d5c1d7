"""A tree of source files, read once: a folder, `REPO@REV`, or a revision of the current repository."""

from __future__ import annotations

import hashlib
import os
import posixpath
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from kda_lab.errors import AuditError, Reason

MAXIMUM_BYTES = 16 * 1024 * 1024
"""Of one file of code; other files may be larger and are kept as their hash."""
LARGE = b"\0sha256 of a large file: "
"""Opens what stands in the place of a large file's content."""
SKIPPED_FOLDERS = {".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", ".mypy_cache", ".ruff_cache"}
SKIPPED_SUFFIXES = (".pyc", ".pyo")
PYTHON_SUFFIXES = (".py", ".pyi")
CUDA_SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".hip", ".cpp", ".cc", ".cxx", ".c", ".inl", ".inc")


@dataclass(frozen=True)
class Tree:
    """The files of one tree, in memory."""

    name: str
    """As it was given."""
    role: str
    """`source`, `export` or `base`."""
    files: dict[str, bytes] = field(repr=False)
    """Path below the root, with forward slashes, to content; sorted."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""

    def sha256(self, path: str) -> str:
        """Hash of one file; empty where the tree does not have it."""
        content = self.files.get(path)
        if content is not None and content.startswith(LARGE):
            return content.removeprefix(LARGE).decode()
        return "" if content is None else hashlib.sha256(content).hexdigest()


def read_tree(given: str | Path, role: str, repository: Path | None = None) -> Tree:
    """Read a tree.

    Args:
        given: an existing folder; or `REPO@REV`; or a revision of `repository`.
        role: `source`, `export` or `base`: names the tree in errors and evidence.
        repository: where a bare revision is looked up; None: the current folder's repository.

    Raises:
        AuditError: no such folder or revision, a link out of the tree, a file above 16 MiB, an empty tree.
    """
    text = str(given)
    if not text or text.startswith("-"):
        raise AuditError("audit", [Reason(role, repr(text), "a folder, REPO@REV, or a revision")])
    notes: tuple[str, ...] = ()
    if Path(text).is_dir():
        files = dict(sorted(_folder_files(Path(text), role)))
    else:
        place, revision = _repository_and_revision(text, repository)
        files, notes = _revision_files(place, revision, role)
    if not files:
        raise AuditError("audit", [Reason(role, repr(text), "a tree with at least one file")])
    return Tree(text, role, files, notes)


def repository_of(given: str | Path) -> Path | None:
    """The repository that a tree was named with (`REPO@REV`, or a folder that is one); None otherwise."""
    text = str(given)
    place = Path(text if Path(text).is_dir() else text.rpartition("@")[0] or ".")
    return place if (place / ".git").exists() or (place / "HEAD").is_file() else None


def in_scope(path: str, scope: Sequence[str]) -> bool:
    """Whether a path lies under one of the scope's folders or matches one of its globs (`*` crosses `/`)."""
    if not scope:
        return True
    return any(path == s.rstrip("/") or path.startswith(s.rstrip("/") + "/") or fnmatchcase(path, s) for s in scope)


def _folder_files(root: Path, role: str) -> Iterator[tuple[str, bytes]]:
    inside = root.resolve()
    for folder, names, files in os.walk(root, onerror=_unlisted(role)):
        linked = [n for n in names if (Path(folder) / n).is_symlink()]
        names[:] = sorted(n for n in names if n not in SKIPPED_FOLDERS and n not in linked)
        for name in sorted(files + linked):
            path = Path(folder) / name
            relative = _printable(os.fsencode(path.relative_to(root).as_posix()))
            if name.endswith(SKIPPED_SUFFIXES):
                continue
            if path.is_symlink():
                target = str(path.readlink())
                if not _stays_inside(path, inside):
                    raise _leaves_the_tree(role, relative, target)
                if name in linked or not path.exists():
                    yield relative, f"-> {target}".encode()
                    continue
            if not path.is_file():
                # A pipe or device has no content to read, and is still no part of the source branch.
                yield relative, b"-> no regular file"
                continue
            large = _is_large(role, relative, path.stat().st_size)
            content = _read(path, role, relative)
            yield relative, LARGE + hashlib.sha256(content).hexdigest().encode() if large else content


def _printable(name: bytes) -> str:
    """A file's name as text; bytes that are no UTF-8 are shown as escapes."""
    return name.decode(errors="backslashreplace")


def _unlisted(role: str) -> Callable[[OSError], None]:
    def refuse(error: OSError) -> None:
        raise AuditError("audit", f"{role}: the folder {error.filename} cannot be listed: {error.strerror}.") from error

    return refuse


def _stays_inside(link: Path, inside: Path) -> bool:
    try:
        return link.resolve().is_relative_to(inside)
    except (OSError, RuntimeError):
        # A link that leads to itself: Python before 3.13 raises RuntimeError.
        return False


def _read(path: Path, role: str, relative: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AuditError("audit", f"{role}: {relative} cannot be read: {error.strerror}.") from error


def _leaves_the_tree(role: str, path: str, target: str) -> AuditError:
    remedy = "Audit a copy without the link, or narrow the scope's tree."
    return AuditError("audit", [Reason(f"{role}:{path}", f"a link to {target!r}", "links that stay inside", remedy)])


def _is_large(role: str, path: str, size_bytes: int) -> bool:
    """Whether a file is kept as its hash; code that large is refused."""
    if size_bytes > MAXIMUM_BYTES and path.endswith(PYTHON_SUFFIXES + CUDA_SUFFIXES):
        allowed = f"at most {MAXIMUM_BYTES} bytes"
        raise AuditError(
            "audit", [Reason(f"{role}:{path}", f"{size_bytes} bytes", allowed, "Audit the sources alone.")]
        )
    return size_bytes > MAXIMUM_BYTES


def _repository_and_revision(text: str, repository: Path | None) -> tuple[Path, str]:
    folder, at, revision = text.rpartition("@")
    if at and folder and Path(folder).is_dir():
        return Path(folder), revision
    return repository or Path(), text


class _GitRefusedError(AuditError):
    """Git ran and said no."""


def _git(place: Path, role: str, *arguments: str, given: bytes | None = None) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(place), *arguments], input=given, capture_output=True, check=False)
    except OSError as error:
        raise AuditError("audit", f"{role}: a revision needs git, which cannot be started: {error}.") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise _GitRefusedError(
            "audit", f"{role}: git {arguments[0]} failed in {place}: {said[-1] if said else 'no message'}."
        )
    return done.stdout


def _revision_files(place: Path, revision: str, role: str) -> tuple[dict[str, bytes], tuple[str, ...]]:
    try:
        known = _git(
            place, role, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{tree}}"
        ).decode()
    except _GitRefusedError as error:
        allowed = f"an existing folder, REPO@REV, or a revision of the repository at {str(place)!r}"
        raise AuditError("audit", [Reason(role, repr(revision), allowed)]) from error
    entries: list[tuple[str, str, str]] = []
    notes: list[str] = []
    large: dict[str, bytes] = {}
    for line in _git(place, role, "ls-tree", "-r", "-z", "-l", "--full-tree", known.strip()).split(b"\0"):
        if not line:
            continue
        facts, name = line.split(b"\t", 1)
        mode, kind, blob, size = facts.decode().split()
        path = _printable(name)
        if kind != "blob":
            notes.append(f"{role}: {path} is a submodule and was not read")
        elif not path.endswith(SKIPPED_SUFFIXES) and not SKIPPED_FOLDERS & set(path.split("/")):
            if _is_large(role, path, int(size)):
                content = _git(place, role, "cat-file", "blob", blob)
                large[path] = LARGE + hashlib.sha256(content).hexdigest().encode()
            else:
                entries.append((path, mode, blob))
    files = dict(zip([e[0] for e in entries], _blobs(place, role, [e[2] for e in entries]), strict=True))
    for path, mode, _ in entries:
        if mode == "120000":
            files[path] = _link(role, path, files[path].decode(errors="replace"), files)
    return dict(sorted({**files, **large}.items())), tuple(notes)


def _link(role: str, path: str, target: str, files: dict[str, bytes]) -> bytes:
    goal = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if target.startswith("/") or goal == ".." or goal.startswith("../"):
        raise _leaves_the_tree(role, path, target)
    return files.get(goal, f"-> {target}".encode())


def _blobs(place: Path, role: str, blobs: Sequence[str]) -> Iterator[bytes]:
    output = _git(place, role, "cat-file", "--batch", given="".join(f"{b}\n" for b in blobs).encode())
    position = 0
    for _ in blobs:
        end = output.index(b"\n", position)
        size_bytes = int(output[position:end].split()[2])
        yield output[end + 1 : end + 1 + size_bytes]
        position = end + 2 + size_bytes
