"""A folder has one writer at a time; the right to write it ends with its owner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kda_lab.captures.folder_lock import FolderLock, lock_file, require_free
from kda_lab.errors import CaptureError

HOLD = """
import sys
from pathlib import Path
from kda_lab.captures.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_one_lock_a_folder_by_any_name(tmp_path: Path) -> None:
    """The second is told who holds it and what to do; a release makes room; other folders are free."""
    (tmp_path / "other").symlink_to(tmp_path / "live")
    first = FolderLock(tmp_path / "live")
    for name in ("live", "other"):
        with pytest.raises(
            CaptureError, match=f"which process {os.getpid()} is recording into; .* its own folder, or wait"
        ):
            FolderLock(tmp_path / name)
    FolderLock(tmp_path / "free").release()
    first.release()
    first.release()
    assert not first.held and FolderLock(tmp_path / "live").held


def test_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    """A free folder stays as it was, and a held one stays held."""
    require_free(tmp_path / "absent" / "live")
    assert list(tmp_path.iterdir()) == []
    lock = FolderLock(tmp_path / "live")
    for _ in range(2):
        with pytest.raises(CaptureError, match="allowed: a folder with one writer"):
            require_free(tmp_path / "live")
    lock.release()
    require_free(tmp_path / "live")
    assert [p.name for p in tmp_path.iterdir()] == [lock_file(tmp_path / "live").name] == [".live.lock"]


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    """Another process is refused while it lives; after SIGKILL the folder is free."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "live")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "held\n"
        with pytest.raises(CaptureError, match=f"which process {owner.pid} is recording into"):
            FolderLock(tmp_path / "live")
        owner.kill()
        owner.wait()
        assert FolderLock(tmp_path / "live").held


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_hold_it(tmp_path: Path) -> None:
    """The child may not write, and the parent's lock outlives it."""
    lock = FolderLock(tmp_path / "live")
    child = os.fork()
    if child == 0:
        os._exit(1 if lock.held else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock.held
    with pytest.raises(CaptureError, match="allowed: a folder with one writer"):
        FolderLock(tmp_path / "live")
