"""One writer a folder: a lock file beside a capture set, held while the set is written and gone with the process."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from kda_lab.errors import CaptureError, Reason

SHOWN_BYTES = 80


class FolderLock:
    """The right to write one folder, until `release`, the end of this object, or the end of the process.

    The kernel drops the lock with its last descriptor, so a killed process leaves none behind; the
    empty file stays. A forked child does not inherit the right.

    Args:
        folder: the folder to write; it need not exist, its parent is made.
    Raises:
        CaptureError: another writer, of this or of another process, holds it.
    """

    def __init__(self, folder: Path) -> None:
        file = lock_file(folder)
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # A finalizer and not a file object: one that is dropped open would warn.
        self._finalizer = weakref.finalize(self, os.close, descriptor)
        try:
            _lock(descriptor, folder)
        except BaseException:
            self.release()
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}".encode(), 0)
        _HELD.add(self)

    @property
    def held(self) -> bool:
        """Whether the folder may be written through this lock."""
        return self._finalizer.alive

    def release(self) -> None:
        """Give the folder free; more than once does no harm."""
        self._finalizer()


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def lock_file(folder: Path) -> Path:
    """The lock file of a folder: hidden, beside it, so that the set holds only what its manifest names."""
    whole = Path(os.path.realpath(folder))
    return whole.parent / f".{whole.name}.lock"


def require_free(folder: Path) -> None:
    """Refuse a folder that is being written; nothing is made and nothing stays locked.

    Raises:
        CaptureError: another writer holds it.
    """
    try:
        descriptor = os.open(lock_file(folder), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _lock(descriptor, folder)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(descriptor, SHOWN_BYTES, 0).decode(errors="replace") or "another process"
        given = f"{str(folder)!r}, which {owner} is recording into"
        remedy = "Give each tap and each process its own folder, or wait until the other has ended."
        raise CaptureError("captures", [Reason("directory", given, "a folder with one writer", remedy)]) from error


def _forget_in_child() -> None:
    # The child shares the parent's lock; were it kept, two processes would write under one.
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
