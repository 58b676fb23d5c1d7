"""Trees are read whole or refused with one error: folders, revisions, links, sizes, scopes."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kda_lab.audit import reading
from kda_lab.audit.reading import in_scope, read_tree, repository_of
from kda_lab.errors import AuditError

Write = Callable[..., Path]


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder with an identity of its own."""
    options = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *options, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> Path:
    """Commit a folder as it is, in a repository of its own."""
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    return folder


def test_a_folder_is_read_sorted_and_without_caches(write_files: Write) -> None:
    """Paths have forward slashes; `.git`, `__pycache__` and compiled Python are no sources."""
    files = {"b/x.py": "1", "a.py": "2", "__pycache__/a.pyc": "3", ".git/config": "4", "b/y.pyc": "5"}
    assert read_tree(write_files("t", files), "source").files == {"a.py": b"2", "b/x.py": b"1"}


def test_a_revision_reads_like_the_folder(write_files: Write) -> None:
    """The committed tree, with names that need quoting and a link inside it."""
    folder = write_files("t", {"a b/ü.py": "x = 1\n", "c.bin": b"\0\n\xff\n", "empty": ""})
    (folder / "link.py").symlink_to("a b/ü.py")
    commit(folder)
    assert read_tree(f"{folder}@HEAD", "source").files == read_tree(folder, "source").files
    assert read_tree("HEAD", "source", folder).files["link.py"] == b"x = 1\n"


def test_uncommitted_changes_are_not_in_a_revision(write_files: Write) -> None:
    """A revision is what was committed, not what lies in the folder."""
    folder = commit(write_files("t", {"a.py": "x = 1\n"}))
    (folder / "a.py").write_text("x = 2\n")
    assert read_tree(f"{folder}@HEAD", "source").files == {"a.py": b"x = 1\n"}


@pytest.mark.parametrize("target", ["../outside.py", "/etc/hostname", "../../../nowhere"])
def test_a_link_out_of_the_tree_is_refused(target: str, write_files: Write) -> None:
    """In a folder and in a revision: one error that names the link and its target."""
    folder = write_files("t", {"a.py": "x = 1\n"})
    (folder.parent / "outside.py").write_text("secret = 1\n")
    (folder / "link.py").symlink_to(target)
    words = rf"audit: export:link\.py is a link to '{target}'; allowed: links that stay inside"
    with pytest.raises(AuditError, match=words):
        read_tree(folder, "export")
    commit(folder)
    with pytest.raises(AuditError, match=words):
        read_tree(f"{folder}@HEAD", "export")


def test_a_link_to_a_folder_is_read_as_a_link(write_files: Write) -> None:
    """A folder that links to itself does not make the tree endless."""
    folder = write_files("t", {"a/x.py": "x = 1\n"})
    (folder / "a" / "again").symlink_to(".", target_is_directory=True)
    assert read_tree(folder, "source").files == {"a/again": b"-> .", "a/x.py": b"x = 1\n"}


def test_a_large_file_that_is_no_code_is_its_hash(write_files: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder and in a revision alike; the hash is that of the file."""
    monkeypatch.setattr(reading, "MAXIMUM_BYTES", 10)
    folder = commit(write_files("t", {"data.bin": "x" * 11, "a.py": "x = 1\n"}))
    trees = [read_tree(given, "source") for given in (folder, f"{folder}@HEAD")]
    assert trees[0].files == trees[1].files
    assert trees[0].sha256("data.bin") == hashlib.sha256(b"x" * 11).hexdigest()


def test_a_huge_file_is_refused(write_files: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code, before it is read, in a folder and in a revision."""
    monkeypatch.setattr(reading, "MAXIMUM_BYTES", 10)
    folder = commit(write_files("t", {"big.py": "x" * 11}))
    words = r"audit: source:big\.py is 11 bytes; allowed: at most 10 bytes. Audit the sources alone\."
    for given in (folder, f"{folder}@HEAD"):
        with pytest.raises(AuditError, match=words):
            read_tree(given, "source")


@pytest.mark.parametrize("given", ["", "-x", "--help", "nowhere", "nofolder@HEAD"])
def test_what_is_no_tree_is_refused(given: str, write_files: Write) -> None:
    """Nothing that starts with a dash reaches git, and no revision is guessed."""
    folder = commit(write_files("t", {"a.py": "x = 1\n"}))
    with pytest.raises(AuditError, match=r"audit: base is .+; allowed: .*folder, REPO@REV"):
        read_tree(given, "base", folder)


def test_a_folder_without_repository_has_no_revisions(write_files: Write) -> None:
    """The error names the revision and the place where it was looked up."""
    folder = write_files("t", {"a.py": "x = 1\n"})
    with pytest.raises(AuditError, match=r"base is 'HEAD'; allowed: .* the repository at"):
        read_tree(f"{folder}@HEAD", "base")


def test_an_empty_tree_is_refused(tmp_path: Path) -> None:
    """An empty folder would make every audit clean."""
    with pytest.raises(AuditError, match=r"audit: export is '.+'; allowed: a tree with at least one file"):
        read_tree(tmp_path, "export")


def test_the_repository_of_a_name(write_files: Write) -> None:
    """A folder that is a repository, or what stands before the last `@`."""
    folder = commit(write_files("t", {"a.py": "x = 1\n"}))
    assert repository_of(folder) == folder
    assert repository_of(f"{folder}@HEAD") == folder
    assert repository_of(folder.parent) is None


@pytest.mark.parametrize(
    ("path", "scope", "inside"),
    [
        ("a/b.py", (), True),
        ("a/b.py", ("a",), True),
        ("a/b.py", ("a/",), True),
        ("a/b.py", ("a/*.py",), True),
        ("a/c/b.py", ("a/*.py",), True),
        ("ab/c.py", ("a",), False),
        ("a/b.py", ("b", "A"), False),
    ],
)
def test_scope(path: str, scope: tuple[str, ...], inside: bool) -> None:
    """A folder holds what lies below it; a glob's star crosses folders; nothing else is in scope."""
    assert in_scope(path, scope) is inside


def test_the_hash_of_an_absent_file_is_empty(write_files: Write) -> None:
    """A file's hash is that of its bytes."""
    tree = read_tree(write_files("t", {"a": ""}), "source")
    assert tree.sha256("a").startswith("e3b0c44298fc1c14")
    assert tree.sha256("b") == ""


def test_a_link_to_itself_is_refused(write_files: Write) -> None:
    """A loop is one error, not an endless walk."""
    folder = write_files("t", {"a.py": "x = 1\n"})
    (folder / "loop.py").symlink_to("loop.py")
    with pytest.raises(
        AuditError, match=r"source:loop\.py is a link to 'loop\.py'; allowed: links that stay inside"
    ) as caught:
        read_tree(folder, "source")
    assert len(caught.value.reasons) == 1


def test_names_that_are_no_utf8_are_shown_as_escapes(write_files: Write) -> None:
    """The same in a folder and in a revision; nothing that a terminal or JSON cannot print."""
    folder = write_files("t", {"a.py": "x = 1\n"})
    try:
        Path(os.fsdecode(os.fsencode(folder) + b"/\xff.py")).write_bytes(b"x = 2\n")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    commit(folder)
    for given in (folder, f"{folder}@HEAD"):
        assert set(read_tree(given, "source").files) == {"a.py", "\\xff.py"}


def test_a_folder_that_cannot_be_listed_is_refused(write_files: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the tree that is silently missing would look like a clean audit."""
    folder = write_files("t", {"a/x.py": "x = 1\n"})
    scan = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("/a"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(AuditError, match=r"audit: export: the folder .+/a cannot be listed: Permission denied\."):
        read_tree(folder, "export")


def test_a_file_that_cannot_be_read_is_refused(write_files: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its name and the reason of the system."""
    folder = write_files("t", {"a.py": "x = 1\n"})

    def refuse(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(AuditError, match=r"audit: export: a\.py cannot be read: Permission denied\."):
        read_tree(folder, "export")


def test_without_git_there_are_no_revisions(write_files: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error, no traceback."""
    folder = commit(write_files("t", {"a.py": "x = 1\n"}))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(AuditError, match="audit: source: a revision needs git, which cannot be started"):
        read_tree(f"{folder}@HEAD", "source")


def test_a_pipe_is_an_entry_and_is_not_read(tmp_path: Path) -> None:
    """A tree that gained a named pipe is not the same tree; opening it would wait for ever."""
    (tmp_path / "a.py").write_text("x = 1\n")
    os.mkfifo(tmp_path / "pipe")
    assert read_tree(tmp_path, "export").files == {"a.py": b"x = 1\n", "pipe": b"-> no regular file"}
