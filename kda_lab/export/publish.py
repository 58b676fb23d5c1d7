"""Put a kernel's folder into the package in one step: a kill at any moment leaves the old one or the new one, whole.

`os.rename` cannot replace a folder that holds files, and two renames leave a moment with none. Linux's
`renameat2` with RENAME_EXCHANGE swaps two folders in one step; the first export of a kernel needs only
`os.rename`. Where a file system cannot exchange (some network and overlay mounts), an export over an
existing kernel is refused: nothing is written rather than something half done.

Work in progress lives in folders that start with `.export-`. Readers ignore them, and the next export
removes what a killed one has left. The lock is on the package folder itself, so it leaves no file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kda_lab.errors import ExportError, Reason
from kda_lab.run_folder import lock_folder, scratch_folder, write_atomic

SCRATCH_PREFIX = ".export-"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def export_lock(kernels_dir: Path) -> Iterator[None]:
    """Hold the package folder against a second export, and clear what a killed one left.

    Raises:
        ExportError: another process is exporting into the same folder.
    """
    kernels_dir.mkdir(parents=True, exist_ok=True)
    remedy = "Another export is running there; wait for it."
    reason = Reason("kernels_dir", repr(str(kernels_dir)), "a folder with one export at a time", remedy)
    handle = lock_folder(kernels_dir, ExportError("export.publish", [reason]))
    try:
        remove_leftovers(kernels_dir)
        yield
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> list[str]:
    """Remove scratch folders of killed exports; returns their names. Call it under `export_lock`."""
    left = sorted(p for p in folder.glob(f"{SCRATCH_PREFIX}*") if p.is_dir())
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return [p.name for p in left]


@contextmanager
def staged_folder(parent: Path, name: str, files: Mapping[str, bytes]) -> Iterator[Path]:
    """A complete folder called `name` in a scratch folder of `parent`, each file synced to disk; removed on exit."""
    with scratch_folder(parent, SCRATCH_PREFIX) as scratch:
        staged = scratch / name
        staged.mkdir(mode=0o755)
        for file, content in files.items():
            write_atomic(staged / file, content)
        yield staged


def put_in_place(staged: Path, final: Path) -> None:
    """Move a staged folder to its final name in one step; what stood there is afterwards in the staged place.

    Once it is in place nothing raises any more: a folder that cannot be synced to disk is in place all the same.

    Raises:
        ExportError: there is an old folder and the file system cannot swap two folders in one step.
    """
    if final.exists():
        exchange(staged, final)
    else:
        staged.rename(final)
    with contextlib.suppress(OSError):
        _sync_folder(final.parent)


def exchange(first: Path, second: Path) -> None:
    """Swap two folders of one file system in one step.

    Raises:
        ExportError: the operating system or the file system has no such step; both folders are as before.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    code = errno.ENOSYS
    if renameat2 is not None:
        if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
    remedy = f"Export into an empty folder on a local file system, then replace {second.name} by hand."
    reason = Reason("kernels_dir", repr(str(second.parent)), "a file system that can swap two folders", remedy)
    raise ExportError("export.publish", f"{os.strerror(code)}: {reason}")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
